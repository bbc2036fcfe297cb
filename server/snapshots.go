package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// defaultKeep is how long an image that somebody asked for is kept: until
// tomorrow's.
const defaultKeep = 24 * time.Hour

// CreateSnapshot implements AdminService.
func (a *adminService) CreateSnapshot(ctx context.Context, q *adminv1.CreateSnapshotRequest) (*adminv1.CreateSnapshotResponse, error) {
	r, err := a.s.replicaOf(q.GetGroup())
	if err != nil {
		return nil, statusOf(err, false)
	}
	ctx, done, err := a.s.imageUsers.begin(ctx)
	if err != nil {
		return nil, imageStatus(err)
	}
	defer done()
	image, err := r.group.CreateImage(ctx)
	if err != nil {
		return nil, imageStatus(err)
	}
	defer image.Release()
	keep := defaultKeep
	if seconds := q.GetKeepSeconds(); seconds > 0 {
		keep = time.Duration(min(seconds, uint64(snapshot.MaxKeep/time.Second))) * time.Second
	}
	if err := image.Keep(keep); err != nil {
		return nil, imageStatus(err)
	}
	info := image.Info()
	info.Holders-- // this call's own
	return &adminv1.CreateSnapshotResponse{Snapshot: keptSnapshot(info)}, nil
}

// ListSnapshots implements AdminService.
func (a *adminService) ListSnapshots(context.Context, *adminv1.ListSnapshotsRequest) (*adminv1.ListSnapshotsResponse, error) {
	node := a.s.node.Load()
	if node == nil {
		return nil, statusOf(errNotReady, false)
	}
	answer := &adminv1.ListSnapshotsResponse{Node: a.s.config.Name}
	for _, g := range node.Groups() {
		for _, info := range g.Images() {
			answer.Snapshots = append(answer.Snapshots, keptSnapshot(info))
		}
	}
	return answer, nil
}

func keptSnapshot(info snapshot.ImageInfo) *adminv1.Snapshot {
	m := info.Manifest
	return &adminv1.Snapshot{
		Image: m.GetImage(), Group: m.GetGroup(), Kind: m.GetKind(), FromIndex: m.GetFromIndex(), Index: m.GetIndex(), Term: m.GetTerm(),
		Bytes: m.GetBytes(), RawBytes: m.GetRawBytes(), Records: m.GetRecords(), Files: uint32(len(m.GetFiles())),
		CreatedUnixMs: unixMilli(info.Created), ExpiresUnixMs: unixMilli(info.Expires), Holders: uint32(max(info.Holders, 0)),
	}
}

// imageStatus makes the status error of an error while an image is made or read.
func imageStatus(err error) error {
	switch {
	case errors.Is(err, snapshot.ErrNoSpace):
		return withFailure(codes.ResourceExhausted, &kvv1.Failure{Reason: kvv1.Reason_REASON_NO_SPACE, Message: err.Error()})
	case errors.Is(err, snapshot.ErrBusy):
		return withFailure(codes.ResourceExhausted, &kvv1.Failure{Reason: kvv1.Reason_REASON_OVERLOADED, Message: err.Error()})
	case errors.Is(err, snapshot.ErrRefused), errors.Is(err, snapshot.ErrUnfit):
		return withFailure(codes.FailedPrecondition, &kvv1.Failure{Reason: kvv1.Reason_REASON_INVALID, Message: err.Error()})
	case errors.Is(err, snapshot.ErrClosed), errors.Is(err, errUnconfirmed):
		return withFailure(codes.Unavailable, &kvv1.Failure{Reason: kvv1.Reason_REASON_UNAVAILABLE, Message: err.Error()})
	}
	if _, is := status.FromError(err); is {
		return err
	}
	return statusOf(err, false)
}

// imageUsers are the calls that hold images: the groups cannot close before they
// have ended.
type imageUsers struct {
	mu      sync.Mutex
	ended   bool
	cancels map[int]context.CancelCauseFunc
	next    int
	running sync.WaitGroup
}

// begin enters a call; its context ends with the server too, and done must be
// called once it holds nothing any more.
func (u *imageUsers) begin(ctx context.Context) (_ context.Context, done func(), _ error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return nil, nil, fmt.Errorf("%w: this node is stopping", ErrStopped)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	if u.cancels == nil {
		u.cancels = make(map[int]context.CancelCauseFunc)
	}
	number := u.next
	u.next++
	u.cancels[number] = cancel
	u.running.Add(1)
	return ctx, func() {
		cancel(nil)
		u.mu.Lock()
		delete(u.cancels, number)
		u.mu.Unlock()
		u.running.Done()
	}, nil
}

// end ends all calls, lets none begin, and waits.
func (u *imageUsers) end() {
	u.mu.Lock()
	u.ended = true
	for _, cancel := range u.cancels {
		cancel(fmt.Errorf("%w: this node is stopping", ErrStopped))
	}
	u.mu.Unlock()
	u.running.Wait()
}
