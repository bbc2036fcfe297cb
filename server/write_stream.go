package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/streamraft/streamraft/kv"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

const (
	// streamBudget bounds the writes of one stream that are not answered yet,
	// with the results they may have, in bytes. Past it the stream is not read.
	streamBudget = 16 << 20
	// responseBytes and responseResults bound one WriteResponse; a single larger
	// result travels alone.
	responseBytes   = 1 << 20
	responseResults = 4096
)

// writeStream is one Write call. Two goroutines serve it: gRPC's own sends the
// answers and ends the call, since a handler has no other means to end a stream
// than to return; the receiver reads, checks and submits. The group's goroutines
// hand results over through finished.
type writeStream struct {
	s       *Server
	r       replica
	limits  kv.Limits
	stream  grpc.BidiStreamingServer[kvv1.WriteRequest, kvv1.WriteResponse]
	ctx     context.Context // ends with the call
	budget  *budget
	wake    chan struct{} // has an element when finished or ended changed
	mu      sync.Mutex
	waiting int // submitted and not finished
	// finished waits for the sender; bounded by budget.
	finished []finishedWrite
	ended    bool  // the receiver reads no more
	endErr   error // a status, nil after the client's end
}

// finishedWrite is a write whose outcome is known.
type finishedWrite struct {
	sequence uint64
	cost     int64 // of the stream's budget
	result   raftnode.Result
	err      error
	// refused: the group never took the command.
	refused bool
}

// Write implements KvService.
func (k *kvService) Write(stream grpc.BidiStreamingServer[kvv1.WriteRequest, kvv1.WriteResponse]) error {
	r, err := k.s.replicaOf(0)
	if err != nil {
		return statusOf(err, false)
	}
	// Both budgets must not wait for a client that is gone, or once the sender
	// has returned.
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	w := &writeStream{
		s: k.s, r: r, limits: r.store.Limits(), stream: stream, ctx: ctx,
		budget: newBudget(streamBudget), wake: make(chan struct{}, 1),
	}
	k.s.metrics.writeStreams.Inc()
	defer k.s.metrics.writeStreams.Dec()
	// Close waits for the receiver after the last handler returned; the handler
	// cannot, for only its return makes the receiver's Recv return.
	k.s.receivers.Go(w.receive)
	return w.send()
}

// receive reads writes until the stream ends, and submits them in order.
func (w *writeStream) receive() {
	last := uint64(0)
	for {
		request, err := w.stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				w.end(err)
			} else {
				w.end(nil)
			}
			return
		}
		for _, write := range request.GetWrites() {
			if write.GetSequence() <= last {
				w.end(withFailure(codes.InvalidArgument, &kvv1.Failure{Reason: kvv1.Reason_REASON_INVALID,
					Message: fmt.Sprintf("sequence %d after %d: sequences on a stream start at 1 and rise", write.GetSequence(), last)}))
				return
			}
			last = write.GetSequence()
			if err := w.submit(write); err != nil {
				w.end(err)
				return
			}
		}
	}
}

// submit takes room for a write and gives it to the group. It returns an error
// only when the call is over; what is wrong with the write is its result.
func (w *writeStream) submit(write *kvv1.Write) error {
	size := proto.Size(write.GetOperation())
	f := finishedWrite{sequence: write.GetSequence(), cost: min(int64(size)+writeOverhead+w.resultBytes(write.GetOperation()), streamBudget)}
	if err := w.budget.acquire(w.ctx, f.cost); err != nil {
		return statusOf(err, false)
	}
	w.mu.Lock()
	w.waiting++
	w.mu.Unlock()
	refuse := func(err error) {
		f.err, f.refused = err, true
		w.finish(f)
	}
	if err := w.limits.CheckOperation(write.GetOperation()); err != nil {
		refuse(err)
		return nil
	}
	if err := w.limits.CheckSession(write.GetSession()); err != nil {
		refuse(err)
		return nil
	}
	command, err := kv.EncodeOperation(make([]byte, 0, size+48), write.GetOperation(), write.GetSession())
	if err != nil {
		refuse(err)
		return nil
	}
	cost := min(int64(len(command))+writeOverhead, int64(w.s.config.MaxInflightBytes))
	if err := w.s.inflight.acquire(w.ctx, cost); err != nil {
		return statusOf(err, false)
	}
	err = w.r.group.Submit(command, func(result raftnode.Result, err error) {
		w.s.inflight.release(cost)
		f.result, f.err = result, err
		w.finish(f)
	})
	if err != nil {
		w.s.inflight.release(cost)
		refuse(err)
	}
	return nil
}

// resultBytes is room for what the gets of a transaction may answer: small
// commands can have large results, and those wait here for the client to read.
func (w *writeStream) resultBytes(op *kvv1.Operation) int64 {
	txn := op.GetTxn()
	if txn == nil {
		return 0
	}
	gets := 0
	for _, branch := range [][]*kvv1.TxnOperation{txn.GetSuccess(), txn.GetFailure()} {
		count := 0
		for _, step := range branch {
			if step.GetGet() != nil {
				count++
			}
		}
		gets = max(gets, count)
	}
	return min(int64(gets)*int64(w.limits.KeyBytes+w.limits.ValueBytes), kv.MaxResultBytes)
}

// finish hands an outcome to the sender. It is called on the group's goroutines
// and does not block.
func (w *writeStream) finish(f finishedWrite) {
	w.mu.Lock()
	w.waiting--
	w.finished = append(w.finished, f)
	w.mu.Unlock()
	w.signal()
}

// end tells the sender that nothing more is submitted.
func (w *writeStream) end(err error) {
	w.mu.Lock()
	w.ended, w.endErr = true, err
	w.mu.Unlock()
	w.signal()
}

func (w *writeStream) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// send answers until everything is answered and the client ended the stream, or
// the call or the server ends. What is finished then is answered first.
func (w *writeStream) send() error {
	var batch []finishedWrite
	stopping := false
	for {
		w.mu.Lock()
		batch, w.finished = w.finished, batch[:0]
		over := w.waiting == 0 && (w.ended || stopping)
		err := w.endErr
		w.mu.Unlock()
		if len(batch) > 0 {
			if err := w.answer(batch); err != nil {
				return err
			}
			clear(batch)
			continue
		}
		switch {
		case over && err != nil:
			return err
		case over && stopping:
			return statusOf(fmt.Errorf("%w: this node is shutting down; go on with another node", ErrStopped), false)
		case over:
			return nil
		}
		select {
		case <-w.wake:
		case <-w.ctx.Done():
			return statusOf(context.Cause(w.ctx), false)
		case <-stopped(w.s.stopping, stopping):
			// The groups are closed: nothing waits any more, and nothing new is
			// taken.
			stopping = true
		}
	}
}

// stopped returns c until it was seen closed.
func stopped(c <-chan struct{}, seen bool) <-chan struct{} {
	if seen {
		return nil
	}
	return c
}

// plainResult is the answer to most writes, made in one piece.
type plainResult struct {
	result    kvv1.WriteResult
	operation kvv1.OperationResult
}

// answer sends outcomes in as few messages as their sizes permit, and gives
// their room back.
func (w *writeStream) answer(batch []finishedWrite) error {
	for len(batch) > 0 {
		n, bytes := 0, 0
		for n < len(batch) && n < responseResults && (n == 0 || bytes+len(batch[n].result.Data) <= responseBytes) {
			bytes += len(batch[n].result.Data) + 32
			n++
		}
		plain := make([]plainResult, n)
		response := &kvv1.WriteResponse{Results: make([]*kvv1.WriteResult, n)}
		var cost int64
		failed := 0
		for i := range batch[:n] {
			response.Results[i] = batch[i].encode(&plain[i])
			cost += batch[i].cost
			if response.Results[i].GetFailure() != nil {
				failed++
			}
		}
		if err := w.stream.Send(response); err != nil {
			return err
		}
		w.s.metrics.streamWrites.WithLabelValues("ok").Add(float64(n - failed))
		w.s.metrics.streamWrites.WithLabelValues("failed").Add(float64(failed))
		w.budget.release(cost)
		batch = batch[n:]
	}
	return nil
}

// encode makes the answer, in room if it is a plain one.
func (f *finishedWrite) encode(room *plainResult) *kvv1.WriteResult {
	room.result.Sequence = f.sequence
	if f.err != nil {
		_, room.result.Failure = failureOf(f.err, !f.refused)
		return &room.result
	}
	if len(f.result.Data) == 0 {
		room.operation.Revision = f.result.Revision
		room.result.Result = &room.operation
		return &room.result
	}
	op, failure, err := kv.DecodeResult(f.result)
	if err != nil {
		_, failure = failureOf(err, true)
	}
	room.result.Result, room.result.Failure = op, failure
	return &room.result
}
