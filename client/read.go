package client

import (
	"context"
	"fmt"
	"iter"

	"google.golang.org/grpc"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// Record is one record as it was read.
type Record struct {
	Key   []byte
	Value []byte
	// ModRevision is the revision of the write that set the value.
	ModRevision uint64
}

// ReadOptions says how a read reads. The zero value is a linearizable read from
// any node.
type ReadOptions struct {
	// Stale reads the state of the node that is reached, whatever its age. By
	// default a read sees every write acknowledged before it began.
	Stale bool
	// MinIndex waits until the node has applied at least this index. A write's
	// index is its Result.Revision >> 16. 0: no wait.
	MinIndex uint64
	// Endpoint reads from this node and no other, without retries. Default: any
	// node.
	Endpoint string
}

func (o ReadOptions) consistency() kvv1.Consistency {
	if o.Stale {
		return kvv1.Consistency_CONSISTENCY_STALE
	}
	return kvv1.Consistency_CONSISTENCY_LINEARIZABLE
}

func (o ReadOptions) call(op string) callOptions {
	if o.Endpoint != "" {
		return callOptions{op: op, target: toEndpoint, endpoint: o.Endpoint, read: true}
	}
	return callOptions{op: op, target: toAny, group: DataGroup, repeatable: true, read: true}
}

// Get reads one record. The error matches ErrNotFound if there is none.
func (c *Client) Get(ctx context.Context, key []byte, o ReadOptions) (Record, error) {
	var response *kvv1.GetResponse
	err := c.call(ctx, o.call("get"), func(ctx context.Context, conn *grpc.ClientConn, _ string) (err error) {
		response, err = kvv1.NewKvServiceClient(conn).Get(ctx, &kvv1.GetRequest{
			Key: key, Consistency: o.consistency(), MinIndex: o.MinIndex,
		})
		return err
	})
	if err != nil {
		return Record{}, err
	}
	if response.GetRecord() == nil {
		return Record{}, fmt.Errorf("get: key %q: %w", shortKey(key), ErrNotFound)
	}
	return recordOf(response.GetRecord()), nil
}

// RangeOptions says which records a range reads.
type RangeOptions struct {
	ReadOptions
	// Records with Start <= key < End; an empty End means no upper bound.
	Start, End []byte
	// Limit bounds the records of a page (RangePage) or of all pages (Range).
	// 0: the server's page size, and no bound.
	Limit int
	// Reverse reads from the highest key down.
	Reverse bool
	// KeysOnly leaves the values out.
	KeysOnly bool
}

func (o RangeOptions) request(page []byte, limit int) *kvv1.RangeRequest {
	return &kvv1.RangeRequest{
		Start: o.Start, End: o.End, Limit: uint32(min(max(limit, 0), 1<<31-1)), Reverse: o.Reverse, KeysOnly: o.KeysOnly,
		Page: page, Consistency: o.consistency(), MinIndex: o.MinIndex,
	}
}

// Page is one page of a range.
type Page struct {
	Records []Record
	// Next continues behind this page; empty at the end.
	Next []byte
	// Index is the applied index of the state that was read.
	Index uint64
}

// RangePage reads one page, from the token Page.Next of an earlier one or, with
// nil, from the start. Each page is one consistent read; two pages are not one.
func (c *Client) RangePage(ctx context.Context, o RangeOptions, page []byte) (Page, error) {
	response, err := c.readRange(ctx, o, o.request(page, o.Limit))
	if err != nil {
		return Page{}, err
	}
	p := Page{Next: response.GetNextPage(), Index: response.GetHeader().GetIndex(), Records: make([]Record, 0, len(response.GetRecords()))}
	for _, record := range response.GetRecords() {
		p.Records = append(p.Records, recordOf(record))
	}
	return p, nil
}

// Range reads all pages, one after the other as the loop asks for them. An
// error ends the sequence; it comes with a zero Record. ctx without a deadline
// gives RequestTimeout to each page.
func (c *Client) Range(ctx context.Context, o RangeOptions) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		left := o.Limit
		var token []byte
		for {
			o := o
			o.Limit = left
			page, err := c.RangePage(ctx, o, token)
			if err != nil {
				yield(Record{}, err)
				return
			}
			for _, record := range page.Records {
				if !yield(record, nil) {
					return
				}
			}
			if len(page.Next) == 0 {
				return
			}
			if left > 0 {
				if left -= len(page.Records); left <= 0 {
					return
				}
			}
			token = page.Next
		}
	}
}

// Count counts the records of a range, in one consistent read. Limit does not
// apply.
func (c *Client) Count(ctx context.Context, o RangeOptions) (uint64, error) {
	request := o.request(nil, 0)
	request.CountOnly = true
	response, err := c.readRange(ctx, o, request)
	return response.GetCount(), err
}

func (c *Client) readRange(ctx context.Context, o RangeOptions, request *kvv1.RangeRequest) (*kvv1.RangeResponse, error) {
	var response *kvv1.RangeResponse
	err := c.call(ctx, o.call("range"), func(ctx context.Context, conn *grpc.ClientConn, _ string) (err error) {
		response, err = kvv1.NewKvServiceClient(conn).Range(ctx, request)
		return err
	})
	return response, err
}

// PrefixEnd returns the end of the range of all keys that begin with prefix:
// the least key above them; empty, no bound, if there is none.
func PrefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			end := append([]byte(nil), prefix[:i+1]...)
			end[i]++
			return end
		}
	}
	return nil
}

func recordOf(kv *kvv1.KeyValue) Record {
	return Record{Key: kv.GetKey(), Value: kv.GetValue(), ModRevision: kv.GetModRevision()}
}

// shortKey cuts a key to what a message can bear.
func shortKey(key []byte) []byte {
	const most = 128
	if len(key) > most {
		return key[:most]
	}
	return key
}
