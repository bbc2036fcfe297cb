package server

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/streamraft/streamraft/kv"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// replica is a group with its state, both open.
type replica struct {
	group *raftnode.Group
	store *kv.Store
}

// replicaOf returns this node's replica of a group; 0 is the data group. The
// error is errNotReady, ErrStopped, or ErrUnknownGroup.
func (s *Server) replicaOf(group uint64) (replica, error) {
	node := s.node.Load()
	if node == nil {
		return replica{}, errNotReady
	}
	if group == 0 {
		group = raftnode.FirstDataGroup
	}
	g, err := node.Group(group)
	if err != nil {
		return replica{}, err
	}
	store, ok := g.StateMachine().(*kv.Store)
	if !ok {
		return replica{}, fmt.Errorf("%w: group %d has no records", raftnode.ErrUnknownGroup, group)
	}
	return replica{group: g, store: store}, nil
}

// kvService is KvService over the groups of a node.
type kvService struct {
	kvv1.UnimplementedKvServiceServer
	s *Server
}

// header tells where an answer comes from.
func (k *kvService) header(group, index uint64) *kvv1.ResponseHeader {
	return &kvv1.ResponseHeader{Group: group, Node: k.s.config.Name, Index: index}
}

// writeOverhead is counted for each write in flight beside its bytes: what the
// node holds for it in structs and slices.
const writeOverhead = 256

// propose replicates one command and returns what its application answered. The
// error is a status.
func (k *kvService) propose(ctx context.Context, r replica, command []byte) (*kvv1.OperationResult, error) {
	cost := min(int64(len(command))+writeOverhead, int64(k.s.config.MaxInflightBytes))
	if err := k.s.inflight.acquire(ctx, cost); err != nil {
		return nil, statusOf(fmt.Errorf("%w: %v of writes wait on this node already: %w", raftnode.ErrOverloaded, k.s.config.MaxInflightBytes, err), false)
	}
	defer k.s.inflight.release(cost)
	result, err := r.group.Propose(ctx, command)
	if err != nil {
		return nil, statusOf(err, true)
	}
	op, failure, err := kv.DecodeResult(result)
	if err != nil {
		return nil, statusOf(err, true)
	}
	if failure != nil {
		return nil, withFailure(codeOf(failure), failure)
	}
	return op, nil
}

// write proposes a client's write to the data group: check first, so that what
// breaks a limit never reaches the log.
func (k *kvService) write(ctx context.Context, session *kvv1.ClientSessionRef, check func(kv.Limits) error, encode func() ([]byte, error)) (*kvv1.ResponseHeader, *kvv1.OperationResult, error) {
	r, err := k.s.replicaOf(0)
	if err != nil {
		return nil, nil, statusOf(err, false)
	}
	limits := r.store.Limits()
	if err := check(limits); err != nil {
		return nil, nil, statusOf(err, false)
	}
	if err := limits.CheckSession(session); err != nil {
		return nil, nil, statusOf(err, false)
	}
	command, err := encode()
	if err != nil {
		return nil, nil, statusOf(err, false)
	}
	op, err := k.propose(ctx, r, command)
	if err != nil {
		return nil, nil, err
	}
	return k.header(r.group.ID(), op.GetRevision()>>16), op, nil
}

// Put implements KvService.
func (k *kvService) Put(ctx context.Context, q *kvv1.PutRequest) (*kvv1.PutResponse, error) {
	header, op, err := k.write(ctx, q.GetSession(),
		func(l kv.Limits) error { return l.CheckPut(q.GetKey(), q.GetValue()) },
		func() ([]byte, error) {
			return kv.EncodePut(make([]byte, 0, len(q.GetKey())+len(q.GetValue())+64), q.GetKey(), q.GetValue(), q.GetSession()), nil
		})
	if err != nil {
		return nil, err
	}
	return &kvv1.PutResponse{Header: header, Revision: op.GetRevision()}, nil
}

// Delete implements KvService.
func (k *kvService) Delete(ctx context.Context, q *kvv1.DeleteRequest) (*kvv1.DeleteResponse, error) {
	header, op, err := k.write(ctx, q.GetSession(),
		func(l kv.Limits) error { return l.CheckKey(q.GetKey()) },
		func() ([]byte, error) { return kv.EncodeDelete(nil, q.GetKey(), q.GetSession()), nil })
	if err != nil {
		return nil, err
	}
	return &kvv1.DeleteResponse{Header: header, Revision: op.GetRevision(), Existed: op.GetExisted()}, nil
}

// DeleteRange implements KvService.
func (k *kvService) DeleteRange(ctx context.Context, q *kvv1.DeleteRangeRequest) (*kvv1.DeleteRangeResponse, error) {
	header, op, err := k.write(ctx, q.GetSession(),
		func(l kv.Limits) error { return l.CheckRange(q.GetStart(), q.GetEnd()) },
		func() ([]byte, error) {
			return kv.EncodeDeleteRange(nil, q.GetStart(), q.GetEnd(), q.GetSession()), nil
		})
	if err != nil {
		return nil, err
	}
	return &kvv1.DeleteRangeResponse{Header: header, Revision: op.GetRevision()}, nil
}

// Txn implements KvService.
func (k *kvService) Txn(ctx context.Context, q *kvv1.TxnRequest) (*kvv1.TxnResponse, error) {
	txn := q.GetTxn()
	header, op, err := k.write(ctx, q.GetSession(),
		func(l kv.Limits) error {
			return l.CheckOperation(&kvv1.Operation{Operation: &kvv1.Operation_Txn{Txn: txn}})
		},
		func() ([]byte, error) { return kv.EncodeTxn(nil, txn, q.GetSession()) })
	if err != nil {
		return nil, err
	}
	return &kvv1.TxnResponse{Header: header, Revision: op.GetRevision(), Succeeded: op.GetSucceeded(), Results: op.GetTxn()}, nil
}

// Batch implements KvService.
func (k *kvService) Batch(ctx context.Context, q *kvv1.BatchRequest) (*kvv1.BatchResponse, error) {
	batch := q.GetBatch()
	header, op, err := k.write(ctx, q.GetSession(),
		func(l kv.Limits) error {
			return l.CheckOperation(&kvv1.Operation{Operation: &kvv1.Operation_Batch{Batch: batch}})
		},
		func() ([]byte, error) { return kv.EncodeBatch(nil, batch, q.GetSession()) })
	if err != nil {
		return nil, err
	}
	return &kvv1.BatchResponse{Header: header, Revision: op.GetRevision()}, nil
}

// OpenClientSession implements KvService.
func (k *kvService) OpenClientSession(ctx context.Context, q *kvv1.OpenClientSessionRequest) (*kvv1.OpenClientSessionResponse, error) {
	r, op, err := k.command(ctx, 0, &kvv1.Command{Command: &kvv1.Command_OpenClientSession{
		OpenClientSession: &kvv1.OpenClientSession{TimeToLiveMs: q.GetTimeToLiveMs()},
	}})
	if err != nil {
		return nil, err
	}
	return &kvv1.OpenClientSessionResponse{Header: k.header(r.group.ID(), op.GetRevision()>>16), Id: op.GetRevision()}, nil
}

// CloseClientSession implements KvService.
func (k *kvService) CloseClientSession(ctx context.Context, q *kvv1.CloseClientSessionRequest) (*kvv1.CloseClientSessionResponse, error) {
	r, op, err := k.command(ctx, 0, &kvv1.Command{Command: &kvv1.Command_CloseClientSession{
		CloseClientSession: &kvv1.CloseClientSession{Id: q.GetId()},
	}})
	if err != nil {
		return nil, err
	}
	return &kvv1.CloseClientSessionResponse{Header: k.header(r.group.ID(), op.GetRevision()>>16)}, nil
}

// SetFeedMode implements KvService.
func (k *kvService) SetFeedMode(ctx context.Context, q *kvv1.SetFeedModeRequest) (*kvv1.SetFeedModeResponse, error) {
	r, op, err := k.command(ctx, q.GetGroup(), &kvv1.Command{Command: &kvv1.Command_SetFeedMode{
		SetFeedMode: &kvv1.SetFeedMode{Mode: q.GetMode()},
	}})
	if err != nil {
		return nil, err
	}
	index := op.GetRevision() >> 16
	return &kvv1.SetFeedModeResponse{Header: k.header(r.group.ID(), index), Index: index}, nil
}

// command checks and proposes a command that takes no client session.
func (k *kvService) command(ctx context.Context, group uint64, c *kvv1.Command) (replica, *kvv1.OperationResult, error) {
	r, err := k.s.replicaOf(group)
	if err != nil {
		return r, nil, statusOf(err, false)
	}
	if err := r.store.Limits().CheckCommand(c); err != nil {
		return r, nil, statusOf(err, false)
	}
	command, err := kv.EncodeCommand(nil, c)
	if err != nil {
		return r, nil, statusOf(err, false)
	}
	op, err := k.propose(ctx, r, command)
	return r, op, err
}

// Digest implements KvService. With an index, the node answers its own digest
// of it, waiting until it applied that index; without one, the leader puts a
// digest command into the log and answers its own digest of its index.
func (k *kvService) Digest(ctx context.Context, q *kvv1.DigestRequest) (*kvv1.DigestResponse, error) {
	r, err := k.s.replicaOf(q.GetGroup())
	if err != nil {
		return nil, statusOf(err, false)
	}
	index := q.GetIndex()
	if index == 0 {
		_, op, err := k.command(ctx, q.GetGroup(), &kvv1.Command{Command: &kvv1.Command_TakeDigest{TakeDigest: &kvv1.TakeDigest{}}})
		if err != nil {
			return nil, err
		}
		index = op.GetRevision() >> 16
	}
	d, err := r.store.DigestAt(ctx, index)
	if err != nil {
		return nil, statusOf(err, false)
	}
	return &kvv1.DigestResponse{Header: k.header(r.group.ID(), index), Index: d.Index, Digest: d.Hash, Records: d.Records}, nil
}

// Bounds of reads.
const (
	// maxPageRecords bounds a page: each record costs some 25 bytes on the wire
	// beside key and value.
	maxPageRecords = 10_000
	// maxPageBytes bounds keys and values of a page, so that the response stays
	// below 4 MiB; a single larger record is a page of its own.
	maxPageBytes = 3 << 20
	// maxRanges is how many Ranges are read at a time: each may hold a page.
	maxRanges = 64
)

// await waits until the local state may be read as the consistency asks.
func (k *kvService) await(ctx context.Context, consistency kvv1.Consistency, minIndex uint64) (replica, error) {
	r, err := k.s.replicaOf(0)
	if err != nil {
		return r, statusOf(err, false)
	}
	o := raftnode.ReadOptions{MinIndex: minIndex}
	switch consistency {
	case kvv1.Consistency_CONSISTENCY_UNSPECIFIED, kvv1.Consistency_CONSISTENCY_LINEARIZABLE:
		o.Level = raftnode.Linearizable
	case kvv1.Consistency_CONSISTENCY_STALE:
		o.Level = raftnode.Stale
	default:
		return r, withFailure(codes.InvalidArgument, &kvv1.Failure{Reason: kvv1.Reason_REASON_INVALID,
			Message: fmt.Sprintf("consistency %d is none this release knows", consistency)})
	}
	if _, err := r.group.Read(ctx, o); err != nil {
		return r, statusOf(err, false)
	}
	return r, nil
}

// Get implements KvService.
func (k *kvService) Get(ctx context.Context, q *kvv1.GetRequest) (*kvv1.GetResponse, error) {
	r, err := k.await(ctx, q.GetConsistency(), q.GetMinIndex())
	if err != nil {
		return nil, err
	}
	if err := r.store.Limits().CheckKey(q.GetKey()); err != nil {
		return nil, statusOf(err, false)
	}
	found, err := r.store.Get(q.GetKey())
	if err != nil {
		return nil, statusOf(err, false)
	}
	answer := &kvv1.GetResponse{Header: k.header(r.group.ID(), found.Index)}
	if found.Found {
		answer.Record = &kvv1.KeyValue{Key: found.Record.Key, Value: found.Record.Value, ModRevision: found.Record.ModRevision}
	}
	return answer, nil
}

// Range implements KvService.
func (k *kvService) Range(ctx context.Context, q *kvv1.RangeRequest) (*kvv1.RangeResponse, error) {
	r, err := k.await(ctx, q.GetConsistency(), q.GetMinIndex())
	if err != nil {
		return nil, err
	}
	if err := r.store.Limits().CheckRange(q.GetStart(), q.GetEnd()); err != nil {
		return nil, statusOf(err, false)
	}
	if err := k.s.ranges.acquire(ctx, 1); err != nil {
		return nil, statusOf(fmt.Errorf("%d ranges are read on this node already: %w", maxRanges, err), false)
	}
	defer k.s.ranges.release(1)
	limit := int(min(q.GetLimit(), maxPageRecords))
	page, err := r.store.Range(ctx, kv.RangeOptions{
		Start: q.GetStart(), End: q.GetEnd(), Limit: limit, MaxBytes: maxPageBytes,
		Reverse: q.GetReverse(), KeysOnly: q.GetKeysOnly(), CountOnly: q.GetCountOnly(), Page: q.GetPage(),
	})
	if err != nil {
		return nil, statusOf(err, false)
	}
	answer := &kvv1.RangeResponse{
		Header: k.header(r.group.ID(), page.Index), Count: page.Count, NextPage: page.Next,
		Records: make([]*kvv1.KeyValue, len(page.Records)),
	}
	records := make([]kvv1.KeyValue, len(page.Records))
	for i := range page.Records {
		record := &records[i]
		record.Key, record.Value, record.ModRevision = page.Records[i].Key, page.Records[i].Value, page.Records[i].ModRevision
		answer.Records[i] = record
	}
	return answer, nil
}

// maxCallTime bounds a unary call, whatever its caller's patience.
const maxCallTime = 2 * time.Minute
