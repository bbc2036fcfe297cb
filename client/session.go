package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// ClientSession makes writes exactly-once: each carries the session's id and a
// sequence, by which the replicas recognise a write that they have applied and
// answer with its recorded result. Writes whose outcome is uncertain are
// therefore sent again until their deadline. (Raft thesis, section 6.3.)
//
// A client session expires on the cluster when it is not used for its time to
// live; then its writes fail with ErrSessionExpired.
type ClientSession struct {
	client *Client
	id     uint64

	mu sync.Mutex
	// next is the next sequence, from 1.
	next uint64
	// low is the low-water mark: all sequences below it are finished.
	low uint64
	// finished holds the finished sequences at or above low.
	finished map[uint64]struct{}
}

// OpenClientSession starts a client session that expires after timeToLive
// without a write; 0: the server's default (1 hour).
func (c *Client) OpenClientSession(ctx context.Context, timeToLive time.Duration) (*ClientSession, error) {
	var id uint64
	// Repeatable: at worst a session is left behind that nobody uses and that
	// expires.
	err := c.call(ctx, callOptions{op: "open client session", target: toLeader, group: DataGroup, repeatable: true},
		func(ctx context.Context, conn *grpc.ClientConn, _ string) error {
			response, err := kvv1.NewKvServiceClient(conn).OpenClientSession(ctx,
				&kvv1.OpenClientSessionRequest{TimeToLiveMs: uint64(max(timeToLive, 0).Milliseconds())})
			id = response.GetId()
			return err
		})
	if err != nil {
		return nil, err
	}
	return &ClientSession{client: c, id: id, next: 1, low: 1, finished: map[uint64]struct{}{}}, nil
}

// ID returns the session's id.
func (s *ClientSession) ID() uint64 { return s.id }

// Close has the cluster forget the session and its recorded results. Writes of
// the session must be finished.
func (s *ClientSession) Close(ctx context.Context) error {
	return s.client.call(ctx, callOptions{op: "close client session", target: toLeader, group: DataGroup, repeatable: true},
		func(ctx context.Context, conn *grpc.ClientConn, _ string) error {
			_, err := kvv1.NewKvServiceClient(conn).CloseClientSession(ctx, &kvv1.CloseClientSessionRequest{Id: s.id})
			return err
		})
}

// begin takes the next sequence. Every begin needs a finish.
func (s *ClientSession) begin() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sequence := s.next
	s.next++
	return sequence
}

// finish tells that a sequence will not be sent again, and raises the low-water
// mark over all that are finished in a row.
func (s *ClientSession) finish(sequence uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished[sequence] = struct{}{}
	for {
		if _, ok := s.finished[s.low]; !ok {
			return
		}
		delete(s.finished, s.low)
		s.low++
	}
}

// ref returns what a write of this sequence carries, with the mark of now.
func (s *ClientSession) ref(sequence uint64) *kvv1.ClientSessionRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &kvv1.ClientSessionRef{Id: s.id, Sequence: sequence, LowWaterMark: s.low}
}

// Put sets a record, exactly once. See Client.Put.
func (s *ClientSession) Put(ctx context.Context, key, value []byte) (Result, error) {
	return s.client.write(ctx, s, putOperation(key, value))
}

// Delete removes a record, exactly once. See Client.Delete.
func (s *ClientSession) Delete(ctx context.Context, key []byte) (Result, error) {
	return s.client.write(ctx, s, deleteOperation(key))
}

// DeleteRange removes all records in [start, end), exactly once. See
// Client.DeleteRange.
func (s *ClientSession) DeleteRange(ctx context.Context, start, end []byte) (Result, error) {
	return s.client.write(ctx, s, deleteRangeOperation(start, end))
}

// Txn runs a transaction, exactly once. See Client.Txn.
func (s *ClientSession) Txn(ctx context.Context, txn *kvv1.Txn) (Result, error) {
	return s.client.write(ctx, s, txnOperation(txn))
}

// Batch runs writes atomically, exactly once. See Client.Batch.
func (s *ClientSession) Batch(ctx context.Context, operations []*kvv1.BatchOperation) (Result, error) {
	return s.client.write(ctx, s, batchOperation(operations))
}
