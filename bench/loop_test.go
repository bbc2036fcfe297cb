package bench

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A server that stands still for a second holds up every operation that was due
// meanwhile, and each must be counted with its own waiting time. A loop that
// waits for its last operation before it starts the next would see one slow one.
func TestOpenLoopCountsWhatAStallHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 100
		server := make(chan struct{}, 1)
		loop := startOpenLoop(t.Context(), rate, func(_ context.Context, i int) error {
			server <- struct{}{} // one at a time
			defer func() { <-server }()
			if i == 200 {
				wait(time.Second)
			} else {
				wait(time.Millisecond)
			}
			return nil
		})
		wait(4*time.Second - time.Millisecond)
		loop.end()
		got := loop.take()
		// 201..300 or so are due during the stall and wait between 1 s and nothing.
		if got.Count < 390 || got.Failed != 0 {
			t.Fatalf("%+v", got)
		}
		if got.Max < 990*time.Millisecond || got.Max > 1100*time.Millisecond {
			t.Errorf("the longest took %v", got.Max)
		}
		// A quarter of all were held up: the 99th percentile is deep in the stall,
		// and the median is not in it.
		if got.P99 < 900*time.Millisecond {
			t.Errorf("p99 %v: the operations behind the stall were left out", got.P99)
		}
		if got.P50 > 10*time.Millisecond {
			t.Errorf("p50 %v", got.P50)
		}
	})
}

func TestOpenLoopKeepsItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loop := startOpenLoop(t.Context(), 250, func(_ context.Context, i int) error {
			if i%10 == 0 {
				return errors.New("no")
			}
			wait(20 * time.Millisecond)
			return nil
		})
		wait(2*time.Second - time.Millisecond)
		first := loop.take()
		wait(time.Second)
		loop.end()
		if all := first.Count + first.Failed; all < 490 || all > 500 || first.Failed != 50 {
			t.Errorf("in 2 s at 250 a second: %+v", first)
		}
		if first.P50 < 19*time.Millisecond || first.P99 > 22*time.Millisecond {
			t.Errorf("all took 20 ms: %+v", first)
		}
		if second := loop.take(); second.Count < 200 || second.Count > 260 {
			t.Errorf("in the third second: %+v", second)
		}
		if empty := loop.take(); empty != (Latencies{}) {
			t.Errorf("nothing more: %+v", empty)
		}
	})
}

// wait lets virtual time pass.
func wait(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}
