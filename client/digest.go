package client

import (
	"context"

	"google.golang.org/grpc"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// Digest is a digest of one replica's state at one index.
type Digest struct {
	// Node that answered.
	Node string
	// Index that was digested.
	Index uint64
	// Digest is the xxhash64 over all journaled spaces, in key order.
	Digest uint64
	// Records are the entries under the digest.
	Records uint64
}

// Digest has every replica of a group digest its state at one index, and
// returns the leader's. DigestAt then reads the others' at the same index.
func (c *Client) Digest(ctx context.Context, group uint64) (Digest, error) {
	return c.digest(ctx, callOptions{op: "digest", target: toLeader, group: group, repeatable: true, read: true, slow: true},
		&kvv1.DigestRequest{Group: group})
}

// DigestAt returns one node's digest of an index that was digested before. The
// node is asked once; one that has not come to the index yet says so.
func (c *Client) DigestAt(ctx context.Context, endpoint string, group, index uint64) (Digest, error) {
	return c.digest(ctx, callOptions{op: "digest", target: toEndpoint, endpoint: endpoint, read: true},
		&kvv1.DigestRequest{Group: group, Index: index})
}

func (c *Client) digest(ctx context.Context, o callOptions, request *kvv1.DigestRequest) (Digest, error) {
	var d Digest
	err := c.call(ctx, o, func(ctx context.Context, conn *grpc.ClientConn, _ string) error {
		response, err := kvv1.NewKvServiceClient(conn).Digest(ctx, request)
		if err != nil {
			return err
		}
		d = Digest{
			Node: response.GetHeader().GetNode(), Index: response.GetIndex(),
			Digest: response.GetDigest(), Records: response.GetRecords(),
		}
		return nil
	})
	return d, err
}

// SetFeedMode chooses what a group's change journal holds from now on, and
// returns the index from which that is so.
func (c *Client) SetFeedMode(ctx context.Context, group uint64, mode kvv1.FeedMode) (uint64, error) {
	var index uint64
	err := c.call(ctx, callOptions{op: "set feed mode", target: toLeader, group: group, repeatable: true},
		func(ctx context.Context, conn *grpc.ClientConn, _ string) error {
			response, err := kvv1.NewKvServiceClient(conn).SetFeedMode(ctx, &kvv1.SetFeedModeRequest{Group: group, Mode: mode})
			index = response.GetIndex()
			return err
		})
	return index, err
}
