package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

const (
	// saveChunk is how much of an archive travels in a message.
	saveChunk = 1 << 20
	// saveTell is the longest silence towards who saves: making the images of a
	// large state takes a while.
	saveTell = time.Second
	// saveConfirm bounds the wait for a majority before an archive is begun.
	saveConfirm = 10 * time.Second
)

// SaveSnapshot implements AdminService. One archive is made at a time. Each
// group's part is a consistent state at one index, which has every write that
// was acknowledged before the call, unless stale was asked for.
func (a *adminService) SaveSnapshot(q *adminv1.SaveSnapshotRequest, stream grpc.ServerStreamingServer[adminv1.SaveSnapshotResponse]) error {
	groups, err := a.s.groupsToSave(q)
	if err != nil {
		return statusOf(err, false)
	}
	ctx, done, err := a.s.imageUsers.begin(stream.Context())
	if err != nil {
		return imageStatus(err)
	}
	if !a.s.saving.CompareAndSwap(false, true) {
		done()
		return imageStatus(fmt.Errorf("%w: an archive of this node is being saved; try again, or save from another node", snapshot.ErrBusy))
	}
	w := &saveWriter{ctx: ctx, out: make(chan []byte, 2)}
	// It holds the images and ends with ctx, whatever the stream does: a client that
	// takes nothing must not keep the node from stopping.
	var saved error
	a.s.goroutines.Go(func() {
		defer done()
		defer close(w.out)
		// Before the client can see the end: it may save again at once.
		defer a.s.saving.Store(false)
		saved = a.s.save(ctx, q, groups, w)
	})
	if err := w.send(stream); err != nil {
		return err // which ends ctx
	}
	if saved != nil {
		return imageStatus(saved)
	}
	return nil
}

// groupsToSave returns the replicas that an archive is to hold.
func (s *Server) groupsToSave(q *adminv1.SaveSnapshotRequest) ([]replica, error) {
	if s.node.Load() == nil {
		return nil, errNotReady
	}
	if len(q.GetGroups()) == 0 {
		return s.replicas(), nil
	}
	var list []replica
	for _, id := range slices.Compact(slices.Sorted(slices.Values(q.GetGroups()))) {
		r, err := s.replicaOf(id)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// save writes an archive of groups to w.
func (s *Server) save(ctx context.Context, q *adminv1.SaveSnapshotRequest, groups []replica, w *saveWriter) (err error) {
	if !q.GetStale() {
		if err := confirmed(ctx, groups); err != nil {
			return err
		}
	}
	var images []*snapshot.Image
	defer func() {
		for i, image := range images {
			// Made for this alone; a transfer that took it meanwhile needs it on.
			if image.Info().Holders == 1 {
				err = errors.Join(err, groups[i].group.RemoveImage(image.Manifest().GetImage()))
			}
			image.Release()
		}
	}()
	for _, r := range groups {
		image, err := r.group.CreateImage(ctx)
		if err != nil {
			return err
		}
		images = append(images, image)
		w.total.Add(image.Manifest().GetBytes())
	}
	m := images[0].Manifest()
	header := &snapshotv1.ArchiveHeader{
		ClusterId: m.GetClusterId(), HistoryEpoch: m.GetHistoryEpoch(), CreatedUnixMs: time.Now().UnixMilli(), Release: s.options.Version,
		Node: s.config.Name, Groups: groupIDs(s.node.Load()), Stale: q.GetStale(),
	}
	buffered := bufio.NewWriterSize(w, saveChunk)
	archive, err := snapshot.NewArchiveWriter(buffered, header)
	if err != nil {
		return err
	}
	pace := s.pacer.Begin(snapshotv1.Class_CLASS_NORMAL) // it gives way to clients as a transfer does
	defer pace.End()
	for _, image := range images {
		if err := archive.Add(ctx, &pacedImage{Image: image, ctx: ctx, read: &w.read, pace: pace}); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}

// confirmed makes sure that the replicas have all that was acknowledged.
func confirmed(ctx context.Context, groups []replica) error {
	ctx, cancel := context.WithTimeoutCause(ctx, saveConfirm, errUnconfirmed)
	defer cancel()
	for _, r := range groups {
		if _, err := r.group.Read(ctx, raftnode.ReadOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// errUnconfirmed says what to do when no majority answers.
var errUnconfirmed = fmt.Errorf("no majority confirmed in %v that this node has every acknowledged write; with --stale it saves what it has", saveConfirm)

// pacedImage paces and counts what is read of an image.
type pacedImage struct {
	*snapshot.Image
	ctx  context.Context
	read *atomic.Uint64
	pace snapshot.Pace
}

// OpenFile implements snapshot.OpenedImage.
func (i *pacedImage) OpenFile(name string) (snapshot.File, error) {
	f, err := i.Image.OpenFile(name)
	if err != nil {
		return nil, err
	}
	return pacedFile{f, i}, nil
}

type pacedFile struct {
	snapshot.File
	image *pacedImage
}

// ReadAt implements io.ReaderAt.
func (f pacedFile) ReadAt(p []byte, offset int64) (int, error) {
	if err := f.image.pace.Wait(f.image.ctx, len(p)); err != nil {
		return 0, err
	}
	n, err := f.File.ReadAt(p, offset)
	f.image.read.Add(uint64(max(n, 0)))
	return n, err
}

// saveWriter hands an archive from who makes it to who sends it.
type saveWriter struct {
	ctx         context.Context
	out         chan []byte
	read, total atomic.Uint64 // bytes of image files
}

// Write implements io.Writer, for the goroutine that makes the archive.
func (w *saveWriter) Write(p []byte) (int, error) {
	for written := 0; written < len(p); {
		part := slices.Clone(p[written:min(len(p), written+saveChunk)])
		select {
		case w.out <- part:
			written += len(part)
		case <-w.ctx.Done():
			return written, context.Cause(w.ctx)
		}
	}
	return len(p), nil
}

var _ io.Writer = (*saveWriter)(nil)

// send sends what is written until that ends, and something each second.
func (w *saveWriter) send(stream grpc.ServerStreamingServer[adminv1.SaveSnapshotResponse]) error {
	ticker := time.NewTicker(saveTell)
	defer ticker.Stop()
	for {
		var data []byte
		select {
		case part, more := <-w.out:
			if !more {
				return nil
			}
			data = part
		case <-ticker.C:
		}
		if err := stream.Send(&adminv1.SaveSnapshotResponse{Data: data, BytesDone: w.read.Load(), BytesTotal: w.total.Load()}); err != nil {
			return err
		}
	}
}
