package client

import (
	"context"
	"fmt"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// Bounds of the stream that the plain writes of a Client share. They are wide:
// every write has a caller that waits for it.
const (
	sharedMaxInflight      = 1 << 16
	sharedMaxInflightBytes = 64 << 20
)

// Put sets a record and returns when that is durable on a majority. Many
// goroutines' writes travel together; see the package's contract for order,
// retries and outcomes. The deadline is ctx's, else RequestTimeout. Key and
// value must not be changed before Put has returned; where it returned an
// uncertain outcome, not before the client is closed.
func (c *Client) Put(ctx context.Context, key, value []byte) (Result, error) {
	return c.write(ctx, nil, putOperation(key, value))
}

// Delete removes a record; Result.Existed tells whether there was one.
func (c *Client) Delete(ctx context.Context, key []byte) (Result, error) {
	return c.write(ctx, nil, deleteOperation(key))
}

// DeleteRange removes all records with start <= key < end; an empty end means
// no upper bound.
func (c *Client) DeleteRange(ctx context.Context, start, end []byte) (Result, error) {
	return c.write(ctx, nil, deleteRangeOperation(start, end))
}

// Txn runs txn.Success if every compare holds, else txn.Failure, atomically.
// Result.Succeeded tells which; a compare that does not hold is no error.
func (c *Client) Txn(ctx context.Context, txn *kvv1.Txn) (Result, error) {
	return c.write(ctx, nil, txnOperation(txn))
}

// Batch runs writes atomically, in order.
func (c *Client) Batch(ctx context.Context, operations []*kvv1.BatchOperation) (Result, error) {
	return c.write(ctx, nil, batchOperation(operations))
}

// write does one write over the shared stream and waits for it.
func (c *Client) write(ctx context.Context, session *ClientSession, op *kvv1.Operation) (Result, error) {
	w, err := c.sharedWriter()
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", operationName(op), err)
	}
	p, err := w.add(ctx, session, op, c.deadline(ctx))
	if err != nil {
		return Result{}, err
	}
	select {
	case <-p.finished:
	case <-ctx.Done():
		w.abandon(p, ctx.Err())
		<-p.finished
	}
	return p.result, p.err
}

// sharedWriter returns the writer of the plain writes, made at first use.
func (c *Client) sharedWriter() (*Writer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shared == nil {
		w, err := c.startWriter(WriterOptions{MaxInflight: sharedMaxInflight, MaxInflightBytes: sharedMaxInflightBytes})
		if err != nil {
			return nil, err
		}
		c.shared = w
	}
	return c.shared, nil
}
