package bench

import (
	"context"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are the latencies of operations over a time.
type Latencies struct {
	// Count of those that succeeded, and Failed of the others, which have no
	// latency.
	Count  int64         `json:"count"`
	Failed int64         `json:"failed"`
	P50    time.Duration `json:"p50_ns"`
	P99    time.Duration `json:"p99_ns"`
	Max    time.Duration `json:"max_ns"`
}

// histogramMost bounds a latency; longer ones count as this.
const histogramMost = int64(time.Minute)

// openLoop starts work at a fixed rate, whether what was started before has ended
// or not, and measures from the moment it was meant to start: a system that stalls
// has every operation that should have run meanwhile counted against it.
type openLoop struct {
	rate int
	// work does the operation of a number.
	work func(ctx context.Context, i int) error

	mu        sync.Mutex
	histogram *hdrhistogram.Histogram
	failed    int64
	running   sync.WaitGroup
	stop      context.CancelFunc
}

// maxOpen bounds the operations that run at once; at the bound the next waits and
// its waiting counts.
const maxOpen = 4096

func startOpenLoop(ctx context.Context, rate int, work func(ctx context.Context, i int) error) *openLoop {
	ctx, stop := context.WithCancel(ctx)
	l := &openLoop{rate: rate, work: work, stop: stop}
	l.take()
	l.running.Go(func() { l.run(ctx) })
	return l
}

func (l *openLoop) run(ctx context.Context) {
	open := make(chan struct{}, maxOpen)
	begin := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 0; ; i++ {
		due := begin.Add(time.Duration(i) * time.Second / time.Duration(l.rate))
		timer.Reset(time.Until(due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		select {
		case open <- struct{}{}:
		case <-ctx.Done():
			return
		}
		l.running.Go(func() {
			defer func() { <-open }()
			err := l.work(ctx, i)
			if err != nil && ctx.Err() != nil {
				return // it was stopped, which says nothing
			}
			l.record(time.Since(due), err)
		})
	}
}

func (l *openLoop) record(d time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed++
		return
	}
	// It fails only beyond its bounds, which are kept here.
	_ = l.histogram.RecordValue(min(max(int64(d), 1), histogramMost))
}

// take returns what was measured since the last call.
func (l *openLoop) take() Latencies {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out Latencies
	if h := l.histogram; h != nil {
		out = Latencies{
			Count: h.TotalCount(), Failed: l.failed, Max: time.Duration(h.Max()),
			P50: time.Duration(h.ValueAtQuantile(50)), P99: time.Duration(h.ValueAtQuantile(99)),
		}
	}
	l.histogram, l.failed = hdrhistogram.New(1, histogramMost, 3), 0
	return out
}

// end stops the loop and waits for what runs.
func (l *openLoop) end() {
	l.stop()
	l.running.Wait()
}
