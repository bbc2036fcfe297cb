package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamraft/streamraft/client"
)

// Options says how Run imports.
type Options struct {
	// SkipBad counts input that is no record and goes on, instead of ending the
	// import there.
	SkipBad bool
	// OnBad is told of each that is skipped. May be nil.
	OnBad func(error)
	// OnInput is told of input bytes whose record was accepted. May be nil.
	OnInput func(bytes int)
	// AtMostOnce writes without a client session: then the import ends where a
	// change of leader leaves the outcome of a write uncertain.
	AtMostOnce bool
	// MaxInflightBytes bounds the writes in flight. Default 16 MiB.
	MaxInflightBytes int
}

// Summary is what an import did.
type Summary struct {
	// Records and Bytes (keys and values) that are written: acknowledged as
	// durable.
	Records uint64
	Bytes   uint64
	// Skipped is the input that was no record.
	Skipped uint64
	// Elapsed is the time from the first read to the last acknowledgement.
	Elapsed time.Duration
}

const (
	// maxInflight bounds the records in flight, and so the results that the
	// cluster keeps for the import's client session.
	maxInflight = 1024
	// sessionTimeToLive is longer than a write's deadline, and short enough that
	// the session of a killed import goes soon.
	sessionTimeToLive = 10 * time.Minute
	// closeTimeout bounds the polite end of the session.
	closeTimeout = 2 * time.Second
)

// Run writes all records of a source to a cluster, many at a time; those with
// the same key in the order of the source. It returns when all that it wrote is
// acknowledged or has failed. The summary is true with every error: what it
// counts is written.
//
// Errors: a BadRecordError of the source, unless SkipBad; the first error of a
// write, as of package client; the end of ctx.
func Run(ctx context.Context, c *client.Client, source Source, o Options) (Summary, error) {
	started := time.Now()
	var records, bytes atomic.Uint64
	var session *client.ClientSession
	if !o.AtMostOnce {
		var err error
		if session, err = c.OpenClientSession(ctx, sessionTimeToLive); err != nil {
			return Summary{}, fmt.Errorf("import: %w", err)
		}
		defer func() {
			// At worst it expires; the import's outcome does not hang on it.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			_ = session.Close(ctx)
		}()
	}
	failed := make(chan struct{})
	var once sync.Once
	var failure error // set before failed is closed
	writer, err := c.NewWriter(client.WriterOptions{
		MaxInflight: maxInflight, MaxInflightBytes: o.MaxInflightBytes, OrderKeys: true, Session: session,
		OnComplete: func(p *client.Pending) {
			if _, err := p.Outcome(); err != nil {
				once.Do(func() {
					failure = fmt.Errorf("key %.128q: %w", p.Operation().GetPut().GetKey(), err)
					close(failed)
				})
				return
			}
			put := p.Operation().GetPut()
			records.Add(1)
			bytes.Add(uint64(len(put.GetKey()) + len(put.GetValue())))
		},
	})
	if err != nil {
		return Summary{}, fmt.Errorf("import: %w", err)
	}
	skipped, err := feed(ctx, writer, source, failed, o)
	// Every write is completed when Close returns.
	if writer.Close() != nil {
		err = failure
	}
	summary := Summary{Records: records.Load(), Bytes: bytes.Load(), Skipped: skipped, Elapsed: time.Since(started)}
	if err != nil {
		return summary, fmt.Errorf("import: %w", err)
	}
	return summary, nil
}

// feed gives the source's records to the writer.
func feed(ctx context.Context, writer *client.Writer, source Source, failed <-chan struct{}, o Options) (skipped uint64, err error) {
	for {
		select {
		case <-failed:
			return skipped, nil
		case <-ctx.Done():
			return skipped, ctx.Err()
		default:
		}
		record, err := source.Next()
		var bad *BadRecordError
		switch {
		case errors.Is(err, io.EOF):
			return skipped, nil
		case errors.As(err, &bad) && o.SkipBad:
			skipped++
			if o.OnBad != nil {
				o.OnBad(err)
			}
			continue
		case err != nil:
			return skipped, err
		}
		if _, err := writer.Put(ctx, record.Key, record.Value); err != nil {
			return skipped, err
		}
		if o.OnInput != nil {
			o.OnInput(record.Input)
		}
	}
}
