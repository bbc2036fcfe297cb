package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

// CreateSnapshot has one node make an image of its replica of a group and keep it
// for about that long; 0: a day. The image is durable when it returns.
func (c *Client) CreateSnapshot(ctx context.Context, endpoint string, group uint64, keep time.Duration) (*adminv1.Snapshot, error) {
	var response *adminv1.CreateSnapshotResponse
	seconds := uint64(max(keep, 0) / time.Second)
	if keep > 0 {
		seconds = max(seconds, 1)
	}
	err := c.call(ctx, callOptions{op: "create snapshot", endpoint: endpoint, target: toEndpoint, read: true},
		func(ctx context.Context, conn *grpc.ClientConn, _ string) (err error) {
			response, err = adminv1.NewAdminServiceClient(conn).CreateSnapshot(ctx, &adminv1.CreateSnapshotRequest{Group: group, KeepSeconds: seconds})
			return err
		})
	return response.GetSnapshot(), err
}

// Snapshots returns the images that one node keeps, and its name.
func (c *Client) Snapshots(ctx context.Context, endpoint string) (*adminv1.ListSnapshotsResponse, error) {
	var response *adminv1.ListSnapshotsResponse
	err := c.call(ctx, callOptions{op: "list snapshots", endpoint: endpoint, target: toEndpoint, read: true},
		func(ctx context.Context, conn *grpc.ClientConn, _ string) (err error) {
			response, err = adminv1.NewAdminServiceClient(conn).ListSnapshots(ctx, &adminv1.ListSnapshotsRequest{})
			return err
		})
	return response, err
}

// SaveOptions say what SaveSnapshot saves.
type SaveOptions struct {
	// Groups to save; none: all. An archive that lacks a group cannot be restored.
	Groups []uint64
	// Stale saves what the node has, though it may lack acknowledged writes: for a
	// cluster that has no leader any more.
	Stale bool
	// Progress, if not nil, is told the bytes of images that are in the archive and
	// in all, at least once a second, on SaveSnapshot's goroutine.
	Progress func(done, total uint64)
}

// saveSilence is the longest silence of a node that saves; it tells something
// each second.
const saveSilence = 30 * time.Second

// errSilent is the cause of a save that was given up.
var errSilent = fmt.Errorf("the node has said nothing for %v", saveSilence)

// SaveSnapshot writes an archive of one node's replicas to w, as it comes. Only if
// it returns nil has w a whole archive; snapshot.VerifyArchive tells whether it is
// sound. It takes as long as it takes: RequestTimeout does not bound it, a silence
// of 30 s ends it, and so does ctx.
func (c *Client) SaveSnapshot(ctx context.Context, endpoint string, o SaveOptions, w io.Writer) error {
	if c.isClosed() {
		return fmt.Errorf("save snapshot: client %w", ErrClosed)
	}
	conn, err := c.connections.get(endpoint)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(saveSilence, func() { cancel(errSilent) })
	defer silence.Stop()
	stream, err := adminv1.NewAdminServiceClient(conn).SaveSnapshot(ctx, &adminv1.SaveSnapshotRequest{Groups: o.Groups, Stale: o.Stale})
	for err == nil {
		var part *adminv1.SaveSnapshotResponse
		if part, err = stream.Recv(); err != nil {
			break
		}
		silence.Reset(saveSilence)
		if len(part.GetData()) > 0 {
			// The writer's error is not the cluster's.
			if _, err := w.Write(part.GetData()); err != nil {
				return fmt.Errorf("save snapshot: write the archive: %w", err)
			}
		}
		if o.Progress != nil {
			o.Progress(part.GetBytesDone(), part.GetBytesTotal())
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	v := judgeError(err)
	if cause := context.Cause(ctx); cause != nil {
		v.message, v.cause = cause.Error(), cause
	}
	return c.callError(callOptions{op: "save snapshot", read: true}, v, endpoint, nil)
}
