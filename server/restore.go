package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
)

// RestoreOptions configures Restore.
type RestoreOptions struct {
	// Name of the node to make, and Advertise, host:port at which others will reach
	// it. Required.
	Name, Advertise string
	// DataDir is its directory, absent or empty. Required.
	DataDir string
	// Archive is read to its end. Required.
	Archive io.Reader
	// StartOver removes what an interrupted restore left in DataDir.
	StartOver bool
	// FS is the file system of DataDir. nil: the operating system's.
	FS vfs.FS
	// Logger takes the steps. nil: nothing is logged.
	Logger *slog.Logger

	// logSegmentBytes is smaller in tests.
	logSegmentBytes int64
}

// Restored describes what Restore made.
type Restored = raftnode.Restored

// Restore makes a directory from which Open runs the first node of a new cluster,
// with the state of an archive; raftnode.Restore has the rules. The node
// directory and the plans of the old cluster are forgotten. Errors: a
// *ConfigError, those of raftnode.Restore; KindOf sorts them.
func Restore(ctx context.Context, o RestoreOptions) (*Restored, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	shared, err := kv.NewShared(kv.SharedOptions{CacheBytes: 64 << 20})
	if err != nil {
		return nil, err
	}
	var failed atomic.Bool
	restored, err := raftnode.Restore(ctx, raftnode.RestoreOptions{
		Dir: o.DataDir, FS: o.FS, Node: o.Name, Address: o.Advertise, Archive: o.Archive, StartOver: o.StartOver,
		LogSegmentBytes: o.logSegmentBytes, Logger: o.Logger,
		NewStateMachine: func(group uint64) raftnode.StateMachine {
			options := kv.Options{
				FS: o.FS, Shared: shared, Group: group, Logger: o.Logger,
				// It was checked on the way in, and the node does it again.
				ScrubBytesPerSecond: -1,
				OnFailure:           func(error) { failed.Store(true) },
			}
			if group == raftnode.MetaGroup {
				options.ClusterBound = []string{nodePrefix, planPrefix}
			}
			store, err := kv.New(options)
			if err != nil {
				return brokenMachine{err: err}
			}
			return store
		},
	})
	if !failed.Load() { // a failed store keeps its caches
		err = errors.Join(err, shared.Close())
	}
	if err != nil {
		return nil, err
	}
	return restored, nil
}

// unspecified tells that a host stands for all addresses of a machine.
func unspecified(host string) bool {
	address, err := netip.ParseAddr(host)
	return err == nil && address.IsUnspecified()
}

// validate reports what a node would refuse when it is started.
func (o *RestoreOptions) validate() error {
	var problems []Problem
	bad := func(key, value, format string, args ...any) {
		problems = append(problems, Problem{Key: key, Value: value, Reason: fmt.Sprintf(format, args...)})
	}
	switch {
	case o.Name == "":
		bad("name", "", "missing; give the node a name")
	case !validNodeName(o.Name):
		bad("name", o.Name, "must have 1 to 64 characters of A-Z a-z 0-9 . _ -")
	}
	if o.DataDir == "" {
		bad("data_dir", "", "missing; name the directory of the node")
	}
	if err := checkDialAddress(o.Advertise); err != nil {
		bad("advertise", o.Advertise, "%v", err)
	} else if host, _, _ := net.SplitHostPort(o.Advertise); unspecified(host) {
		bad("advertise", o.Advertise, "names no host; the nodes that join must learn where this one is reached")
	}
	if len(problems) > 0 {
		return &ConfigError{Problems: problems}
	}
	return nil
}
