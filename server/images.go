package server

import (
	"context"
	"fmt"

	"github.com/streamraft/streamraft/kv"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// newImages makes what sends and receives images of the node's groups.
func (s *Server) newImages() (err error) {
	s.imageCounters = new(snapshot.Counters)
	if s.receiver, err = snapshot.NewReceiver(snapshot.ReceiverOptions{Counters: s.imageCounters, Logger: s.log}); err != nil {
		return err
	}
	s.foreground = s.newForeground()
	pacing := snapshot.PacingOptions{Foreground: s.foreground, Rate: int64(s.config.SnapshotRate)}
	if s.config.SnapshotPacing == pacingOff {
		pacing.Mode = snapshot.PacingOff
	}
	if s.pacer, err = snapshot.NewRatePacer(pacing); err != nil {
		return err
	}
	s.source, err = snapshot.NewSource(snapshot.SourceOptions{
		Provider: imageProvider{s}, Pacer: s.pacer, Counters: s.imageCounters, Logger: s.log,
		// What is compressed at rest goes as it is.
		WireCompression: s.config.Compression == kv.CompressionNone,
	})
	return err
}

func (s *Server) snapshotOptions() *raftnode.SnapshotOptions {
	return &raftnode.SnapshotOptions{
		Receiver: s.receiver, Counters: s.imageCounters, ImageExpiry: s.config.SnapshotExpiry,
		FullOnly:  s.config.SnapshotDelta == deltaOff,
		MaxImages: s.config.SnapshotKeep, MaxImageBytes: uint64(max(s.config.SnapshotKeepBytes, 0)),
	}
}

// The values of snapshot_pacing.
const (
	pacingLatency = "latency"
	pacingOff     = "off"
)

// The values of snapshot_delta.
const (
	deltaOn  = "on"
	deltaOff = "off"
)

// imageProvider serves images once the node is open.
type imageProvider struct{ s *Server }

// Provide implements snapshot.Provider.
func (p imageProvider) Provide(ctx context.Context, req *snapshotv1.Open, progress func(done, total uint64)) (snapshot.OpenedImage, snapshot.Choice, error) {
	node := p.s.node.Load()
	if node == nil {
		return nil, "", fmt.Errorf("%w: node %s is starting", snapshot.ErrBusy, p.s.config.Name)
	}
	return node.Provide(ctx, req, progress)
}
