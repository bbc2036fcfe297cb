package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"

	"github.com/streamraft/streamraft/client"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// Data says what values hold.
type Data string

// The kinds of values.
const (
	// DataRandom: bytes that do not compress.
	DataRandom Data = "random"
	// DataJSON: text of repeating keys and varying numbers, that compresses to
	// about a third.
	DataJSON Data = "json"
)

const (
	keyBytes   = 16
	valueBytes = 256
	// recordBytes is what a record counts for in the size of a data set.
	recordBytes = keyBytes + valueBytes
	// batchRecords are written in one command while a data set is loaded.
	batchRecords = 128
)

// dataset is a set of records whose keys are the numbers below its count.
type dataset struct {
	records int
	values  *values
}

func newDataset(bytes uint64, data Data) *dataset {
	return &dataset{records: int(max(bytes/recordBytes, 1)), values: &values{data: data}}
}

func (d *dataset) bytes() uint64 { return uint64(d.records) * recordBytes }

func recordKey(i int) []byte { return fmt.Appendf(nil, "%0*d", keyBytes, i) }

// values makes values; the same number and generation give the same value.
type values struct {
	data       Data
	generation int
}

func (v *values) at(i int) []byte {
	if v.data == DataJSON {
		text := fmt.Appendf(nil, `{"meter":"meter-%06d","generation":%d,"reading":%d.%02d,"unit":"kWh","state":"ok","site":{"city":"Springfield","street":"Evergreen Terrace","number":%d},"history":[`, i%100_000, v.generation, i%977, i%100, i%743)
		for n := 1; len(text) < valueBytes-8; n++ {
			text = fmt.Appendf(text, "%d,", (i*n)%10_000)
		}
		return append(append(text, make([]byte, 0, 8)...), "0]}"...)
	}
	source := rand.New(rand.NewPCG(uint64(i), uint64(v.generation)))
	value := make([]byte, 0, valueBytes)
	for len(value) < valueBytes {
		value = binary.LittleEndian.AppendUint64(value, source.Uint64())
	}
	return value
}

// write writes the records of the given numbers, many at a time.
func (d *dataset) write(ctx context.Context, c *client.Client, numbers iter.Seq[int]) error {
	var mu sync.Mutex
	var failed error
	w, err := c.NewWriter(client.WriterOptions{MaxInflight: 64, OnComplete: func(p *client.Pending) {
		if _, err := p.Outcome(); err != nil {
			mu.Lock()
			defer mu.Unlock()
			if failed == nil {
				failed = err
			}
		}
	}})
	if err != nil {
		return err
	}
	defer w.Close()
	var batch []*kvv1.BatchOperation
	send := func() error {
		if len(batch) == 0 {
			return nil
		}
		_, err := w.Batch(ctx, batch)
		batch = nil
		return err
	}
	for i := range numbers {
		batch = append(batch, &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_Put{Put: &kvv1.Put{Key: recordKey(i), Value: d.values.at(i)}}})
		if len(batch) == batchRecords {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if err := send(); err != nil {
		return err
	}
	if err := w.Flush(ctx); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	return failed
}

// all are all numbers, in order.
func (d *dataset) all(yield func(int) bool) {
	for i := range d.records {
		if !yield(i) {
			return
		}
	}
}

// share are numbers of a share of the records, each at most once, chosen
// uniformly at random, in random order.
func (d *dataset) share(percent float64, seed uint64) iter.Seq[int] {
	source := rand.New(rand.NewPCG(seed, 1))
	order := source.Perm(d.records)[:int(float64(d.records)*percent/100)]
	return func(yield func(int) bool) {
		for _, i := range order {
			if !yield(i) {
				return
			}
		}
	}
}
