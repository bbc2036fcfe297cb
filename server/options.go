package server

import (
	"log/slog"
	"net"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamraft/streamraft/raftnode"
)

// Options is what the program, not the operator, gives to a Server. Every field
// may be zero.
type Options struct {
	// Logger takes what an operator should read. nil: nothing is logged.
	Logger *slog.Logger
	// Version is told by Status and metrics, such as "v0.1.0".
	Version string
	// Registry takes the server's metrics and is shown on /metrics. A registry
	// holds the metrics of one server. nil: one of the server's own.
	Registry *prometheus.Registry
	// FS is the file system of the data directory. nil: the operating system's.
	FS vfs.FS
	// Listener and HTTPListener are used instead of listening on the config's
	// addresses; the server closes them, also when Open fails.
	Listener, HTTPListener net.Listener
	// Events is told what happens in the node, see raftnode.EventListener.
	Events raftnode.EventListener
}

// EnsureDefaults fills the fields that were left zero, except the listeners.
func (o *Options) EnsureDefaults() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Version == "" {
		o.Version = "dev"
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
}

// Validate never fails: every value is usable. It is there so that all options
// of this module are used alike.
func (o *Options) Validate() error { return nil }
