package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// WriterOptions says how a Writer pipelines.
type WriterOptions struct {
	// MaxInflight and MaxInflightBytes bound the writes that are accepted and
	// not finished. At the bound Put and its like block. Defaults 4096 and
	// 16 MiB. A write larger than MaxInflightBytes goes alone.
	MaxInflight      int
	MaxInflightBytes int
	// MessageBytes is about how large a message may grow by packing waiting
	// writes into it. Default 1 MiB; bounded by half of Options.MaxMessageBytes.
	MessageBytes int
	// Timeout is how long a write may take, with all retries. Default
	// Options.RequestTimeout.
	Timeout time.Duration
	// OrderKeys has writes to the same key applied in the order they were
	// given: one waits until the one before it is answered. A write on several
	// keys (DeleteRange, Txn, Batch) waits for all before it.
	OrderKeys bool
	// Session makes every write exactly-once. nil: none.
	Session *ClientSession
	// OnComplete is called once per write when its outcome is known, before
	// Done is closed, from a goroutine of the writer: it must not block and must
	// not call the writer.
	OnComplete func(*Pending)
}

// EnsureDefaults fills in every field that is zero.
func (o *WriterOptions) EnsureDefaults() {
	setDefault(&o.MaxInflight, 4096)
	setDefault(&o.MaxInflightBytes, 16<<20)
	setDefault(&o.MessageBytes, 1<<20)
}

// Validate tells what is wrong with the options.
func (o *WriterOptions) Validate() error {
	if o.MaxInflight < 0 || o.MaxInflightBytes < 0 || o.MessageBytes < 0 || o.Timeout < 0 {
		return errors.New("writer options: bounds and timeout must not be negative")
	}
	return nil
}

const (
	// maxWritesPerMessage bounds the writes in one message, so that small ones
	// do not make the server hold thousands of commands at once.
	maxWritesPerMessage = 1024
	// writeOverhead is what a write takes in memory and on the wire beside its
	// operation, about.
	writeOverhead = 64
	// drainTimeout bounds how long a stream to a node that no longer leads is
	// kept for the answers that are still to come.
	drainTimeout = 2 * time.Second
)

// Writer writes with many writes in flight, over one stream to the leader. When
// the leader moves it follows. Methods return as soon as a write is accepted;
// its Pending tells the outcome. Keys and values must not be changed before
// then.
type Writer struct {
	client  *Client
	options WriterOptions

	// ctx ends when the writer is aborted; every stream hangs on it.
	ctx    context.Context
	cancel context.CancelFunc
	// sending and watching are the writer's goroutines. The watcher runs until
	// ctx ends, which is after the sender has ended.
	sending, watching sync.WaitGroup
	// work wakes the sender: the queue, the stream or the writer changed.
	work chan struct{}
	// armed wakes the watcher: there are unfinished writes.
	armed chan struct{}
	trail trail

	mu      sync.Mutex
	closing bool
	aborted bool
	// queue holds the writes to be sent, oldest first once sorted.
	queue    []*Pending
	unsorted bool
	accepted uint64
	// unfinished and bytes are what the bounds bound.
	unfinished int
	bytes      int
	// room is closed and replaced when there is room again; nil if nobody waits.
	room chan struct{}
	// stream is the open one.
	stream *writeStream
	// holdUntil: the leader asked for a pause.
	holdUntil time.Time
	hold      backoff
	// full is how long the leader has refused for want of space.
	full fullLeader
	// connect is why there is no stream now.
	connect verdict
	// keys counts the sent writes per key, spanning those on several keys; both
	// only with OrderKeys.
	keys     map[string]int
	spanning int
	// firstErr is the first error since the last Flush.
	firstErr error
}

// NewWriter makes a writer with a stream of its own. It connects at the first
// write. Close it.
func (c *Client) NewWriter(o WriterOptions) (*Writer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.startWriter(o)
}

// startWriter is NewWriter with c.mu held.
func (c *Client) startWriter(o WriterOptions) (*Writer, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.EnsureDefaults()
	setDefault(&o.Timeout, c.options.RequestTimeout)
	o.MessageBytes = min(o.MessageBytes, c.options.MaxMessageBytes/2)
	if c.closed {
		return nil, fmt.Errorf("client %w", ErrClosed)
	}
	w := &Writer{
		client: c, options: o,
		work: make(chan struct{}, 1), armed: make(chan struct{}, 1),
		hold: *c.backoff(), keys: map[string]int{},
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	c.writers[w] = struct{}{}
	w.sending.Go(w.send)
	w.watching.Go(w.watch)
	return w, nil
}

// Put sets a record. It blocks while the writer is full, until ctx ends; an
// error means that the write was not accepted and is certainly not applied. So
// do the others.
func (w *Writer) Put(ctx context.Context, key, value []byte) (*Pending, error) {
	return w.give(ctx, putOperation(key, value))
}

// Delete removes a record.
func (w *Writer) Delete(ctx context.Context, key []byte) (*Pending, error) {
	return w.give(ctx, deleteOperation(key))
}

// DeleteRange removes all records in [start, end).
func (w *Writer) DeleteRange(ctx context.Context, start, end []byte) (*Pending, error) {
	return w.give(ctx, deleteRangeOperation(start, end))
}

// Txn runs a transaction.
func (w *Writer) Txn(ctx context.Context, txn *kvv1.Txn) (*Pending, error) {
	return w.give(ctx, txnOperation(txn))
}

// Batch runs writes atomically.
func (w *Writer) Batch(ctx context.Context, operations []*kvv1.BatchOperation) (*Pending, error) {
	return w.give(ctx, batchOperation(operations))
}

func (w *Writer) give(ctx context.Context, op *kvv1.Operation) (*Pending, error) {
	return w.add(ctx, w.options.Session, op, time.Time{})
}

// add accepts a write; a zero deadline means Timeout from its acceptance.
func (w *Writer) add(ctx context.Context, session *ClientSession, op *kvv1.Operation, deadline time.Time) (*Pending, error) {
	p := &Pending{writer: w, operation: op, session: session, size: proto.Size(op) + writeOverhead, finished: make(chan struct{})}
	if most := w.client.options.MaxMessageBytes - writeOverhead; p.size > most {
		// Sent, it would end the stream and make every other write uncertain.
		return nil, &Error{
			Op: operationName(op), kinds: []error{ErrInvalid},
			Message: fmt.Sprintf("%d bytes do not fit into a message of at most %d; split it", p.size, most),
		}
	}
	w.mu.Lock()
	for {
		if w.closing || w.aborted {
			w.mu.Unlock()
			return nil, fmt.Errorf("%s: writer %w", operationName(op), ErrClosed)
		}
		if w.unfinished == 0 || (w.unfinished < w.options.MaxInflight && w.bytes+p.size <= w.options.MaxInflightBytes) {
			break
		}
		if w.room == nil {
			w.room = make(chan struct{})
		}
		room := w.room
		w.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return nil, &Error{
				Op: operationName(op), kinds: []error{ErrOverloaded}, cause: ctx.Err(),
				Message: giveUpMessage(ctx.Err()) + ": too many writes wait before it",
			}
		}
		w.mu.Lock()
	}
	p.deadline = deadline
	if deadline.IsZero() {
		p.deadline = time.Now().Add(w.options.Timeout)
	}
	if session != nil {
		p.sessionSequence = session.begin()
	}
	w.accepted++
	p.order = w.accepted
	w.queue = append(w.queue, p)
	w.unfinished++
	w.bytes += p.size
	w.mu.Unlock()
	wake(w.work)
	wake(w.armed)
	return p, nil
}

// Flush waits until every write accepted before is finished, and returns the
// first error of any write since the last Flush.
func (w *Writer) Flush(ctx context.Context) error {
	w.mu.Lock()
	waiting := slices.Clone(w.queue)
	if w.stream != nil {
		for _, p := range w.stream.unanswered {
			waiting = append(waiting, p)
		}
	}
	w.mu.Unlock()
	for _, p := range waiting {
		select {
		case <-p.finished:
		case <-ctx.Done():
			return fmt.Errorf("flush: %w", ctx.Err())
		}
	}
	return w.takeFirstError()
}

func (w *Writer) takeFirstError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.firstErr
	w.firstErr = nil
	return err
}

// Close waits until every write is finished, each at its deadline at the
// latest, ends the writer's goroutines and returns the first error of any write
// since the last Flush. Writes given afterwards are refused.
func (w *Writer) Close() error {
	w.mu.Lock()
	w.closing = true
	w.releaseRoom()
	w.mu.Unlock()
	wake(w.work)
	w.sending.Wait()
	w.detach()
	return w.takeFirstError()
}

// abort ends the writer now; see Client.Close.
func (w *Writer) abort() {
	w.mu.Lock()
	w.aborted = true
	w.releaseRoom()
	w.mu.Unlock()
	w.cancel()
	w.sending.Wait()
	w.detach()
}

func (w *Writer) detach() {
	w.cancel()
	w.watching.Wait()
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	delete(w.client.writers, w)
}

// wake signals without blocking; one waiting signal stands for many.
func wake(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
