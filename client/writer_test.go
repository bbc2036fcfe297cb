package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamraft/streamraft/client/clienttest"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

func TestManyCallersShareMessages(t *testing.T) {
	cluster, c := newCluster(t, nil)
	const callers, each = 64, 50
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			for i := range each {
				if _, err := c.Put(t.Context(), fmt.Appendf(nil, "%d/%d", caller, i), []byte("v")); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	if got := cluster.Len(); got != callers*each {
		t.Fatalf("%d records, want %d", got, callers*each)
	}
}

func TestWriterFlushAndBounds(t *testing.T) {
	_, c := newCluster(t, nil)
	var completed, most atomic.Int64
	w, err := c.NewWriter(WriterOptions{MaxInflight: 16, OnComplete: func(p *Pending) {
		completed.Add(1)
		if _, err := p.Outcome(); err != nil {
			t.Error(err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if _, err := w.Put(t.Context(), fmt.Appendf(nil, "%d", i), []byte("v")); err != nil {
			t.Fatal(err)
		}
		n, _ := w.Pending()
		most.Store(max(most.Load(), int64(n)))
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if completed.Load() != 1000 || most.Load() > 16 {
		t.Fatalf("%d completed, at most %d in flight", completed.Load(), most.Load())
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Put(t.Context(), []byte("k"), nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("got %v", err)
	}
}

func TestWriterFullAndDeadlines(t *testing.T) {
	cluster, c := newCluster(t, nil)
	cluster.Script(func(int, *kvv1.Write) clienttest.Action { return clienttest.Action{Silent: true} })
	w, err := c.NewWriter(WriterOptions{MaxInflight: 1, Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	first, err := w.Put(t.Context(), []byte("a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := w.Put(ctx, []byte("b"), nil); !errors.Is(err, ErrOverloaded) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUncertain) {
		t.Fatalf("got %v", err)
	}
	if _, err := first.Wait(t.Context()); !errors.Is(err, ErrUncertain) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if err := w.Close(); !errors.Is(err, ErrUncertain) {
		t.Fatalf("Close must tell the first error, got %v", err)
	}
}

func TestTooLargeIsRefusedBeforeItIsSent(t *testing.T) {
	cluster, c := newCluster(t, func(o *Options) { o.MaxMessageBytes = 1 << 16 })
	if _, err := c.Put(t.Context(), []byte("k"), make([]byte, 1<<16)); !errors.Is(err, ErrInvalid) || errors.Is(err, ErrUncertain) {
		t.Fatalf("got %v", err)
	}
	if len(cluster.Arrivals()) != 0 {
		t.Fatal("it was sent")
	}
}

func TestOrderKeys(t *testing.T) {
	cluster, c := newCluster(t, nil)
	random := rand.New(rand.NewPCG(1, 2))
	cluster.Script(func(int, *kvv1.Write) clienttest.Action {
		if random.IntN(3) == 0 {
			return clienttest.Action{SkipApply: true, Failure: failure(kvv1.Reason_REASON_DROPPED)}
		}
		return clienttest.Action{}
	})
	w, err := c.NewWriter(WriterOptions{OrderKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if _, err := w.Put(t.Context(), fmt.Appendf(nil, "k%d", i%7), fmt.Appendf(nil, "%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Batch(t.Context(), []*kvv1.BatchOperation{BatchPut([]byte("k0"), []byte("batch"))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Put(t.Context(), []byte("k1"), []byte("last")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	last := map[string]int{}
	for _, a := range cluster.Arrivals() {
		put := a.Write.GetOperation().GetPut()
		var n int
		if _, err := fmt.Sscan(string(put.GetValue()), &n); err != nil || !a.Applied {
			continue
		}
		if n < last[string(put.GetKey())] {
			t.Fatalf("%s: %d applied after %d", put.GetKey(), n, last[string(put.GetKey())])
		}
		last[string(put.GetKey())] = n
	}
	for key, want := range map[string]string{"k0": "batch", "k1": "last"} {
		if got, _ := cluster.Value(key); got != want {
			t.Fatalf("%s is %q, want %q", key, got, want)
		}
	}
}

func TestClientSessionIsExactlyOnce(t *testing.T) {
	cluster, c := newCluster(t, nil)
	session, err := c.OpenClientSession(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	cluster.Script(func(int, *kvv1.Write) clienttest.Action {
		switch random.IntN(6) {
		case 0:
			return clienttest.Action{Failure: failure(kvv1.Reason_REASON_UNCERTAIN)} // applied
		case 1:
			return clienttest.Action{Cut: true} // applied
		case 2:
			return clienttest.Action{SkipApply: true, Cut: true}
		}
		return clienttest.Action{}
	})
	var revisions sync.Map
	var callers sync.WaitGroup
	for i := range 20 {
		callers.Go(func() {
			for j := range 5 {
				result, err := session.Put(t.Context(), fmt.Appendf(nil, "%d/%d", i, j), nil)
				if err != nil {
					t.Error(err)
					return
				}
				if _, twice := revisions.LoadOrStore(result.Revision, true); twice {
					t.Errorf("revision %d twice", result.Revision)
				}
			}
		})
	}
	callers.Wait()
	session.mu.Lock()
	low, left := session.low, len(session.finished)
	session.mu.Unlock()
	if low != 101 || left != 0 {
		t.Fatalf("low-water mark %d with %d above it, want 101 and 0", low, left)
	}
	for _, a := range cluster.Arrivals() {
		if ref := a.Write.GetSession(); ref.GetSequence() < ref.GetLowWaterMark() {
			t.Fatalf("sequence %d was sent below its own mark %d", ref.GetSequence(), ref.GetLowWaterMark())
		}
	}
	if err := session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	cluster.Script(nil)
	if _, err := session.Put(t.Context(), []byte("k"), nil); !errors.Is(err, ErrSessionExpired) || errors.Is(err, ErrUncertain) {
		t.Fatalf("got %v", err)
	}
}

func TestNodeThatStopsLeavesNothingUncertain(t *testing.T) {
	cluster, c := newCluster(t, nil)
	n := 0
	cluster.Script(func(int, *kvv1.Write) clienttest.Action {
		n++
		return clienttest.Action{Leave: n%7 == 6}
	})
	w, err := c.NewWriter(WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if _, err := w.Put(t.Context(), fmt.Appendf(nil, "%d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if cluster.Len() != 200 {
		t.Fatalf("%d records, want 200", cluster.Len())
	}
}

func TestExpiredAfterUncertainStaysUncertain(t *testing.T) {
	cluster, c := newCluster(t, nil)
	session, err := c.OpenClientSession(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	first := true
	cluster.Script(func(int, *kvv1.Write) clienttest.Action {
		if first {
			first = false
			return clienttest.Action{Cut: true}
		}
		return clienttest.Action{SkipApply: true, Failure: failure(kvv1.Reason_REASON_SESSION_EXPIRED)}
	})
	if _, err := session.Put(t.Context(), []byte("k"), nil); !errors.Is(err, ErrSessionExpired) || !errors.Is(err, ErrUncertain) {
		t.Fatalf("got %v", err)
	}
}

// TestNothingIsSentTwiceAfterUncertain is the promise that the package exists
// for: whatever nodes do, a write without a client session is not sent again
// once an attempt may have been applied, and what it returned is true.
func TestNothingIsSentTwiceAfterUncertain(t *testing.T) {
	cluster, c := newCluster(t, func(o *Options) {
		o.RequestTimeout, o.StallCheck = 200*time.Millisecond, 5*time.Millisecond
	})
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		mark := len(cluster.Arrivals())
		seed := rapid.Uint64().Draw(rt, "seed")
		random, moves := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
		faults := rapid.IntRange(0, 9).Draw(rt, "faults in ten")
		cluster.Script(func(node int, w *kvv1.Write) clienttest.Action {
			if random.IntN(10) >= faults {
				return clienttest.Action{}
			}
			action := clienttest.Action{SkipApply: random.IntN(2) == 0}
			switch random.IntN(20) {
			case 0, 1, 2:
				action.Cut = true
			case 3, 4, 5, 6:
				action.Failure = failure(kvv1.Reason_REASON_UNCERTAIN)
			case 7, 8, 9, 10:
				action.Failure = failure(kvv1.Reason_REASON_FAILED)
			case 11, 12, 13:
				action.SkipApply, action.Failure = true, failure(kvv1.Reason_REASON_OVERLOADED)
			case 14, 15:
				action.SkipApply, action.Failure = true, failure(kvv1.Reason_REASON_NO_SPACE)
			case 16:
				action.Silent = true
			default:
				action.SkipApply, action.Failure = true, failure(kvv1.Reason_REASON_NOT_LEADER)
			}
			return action
		})
		w, err := c.NewWriter(WriterOptions{})
		if err != nil {
			rt.Fatal(err)
		}
		pending := map[string]*Pending{}
		for i := range 30 {
			value := fmt.Sprintf("%d/%d", run, i)
			p, err := w.Put(t.Context(), []byte(value), []byte(value))
			if err != nil {
				rt.Fatal(err)
			}
			pending[value] = p
			if moves.IntN(8) == 0 {
				cluster.SetLeader(moves.IntN(3))
			}
		}
		_ = w.Close()
		cluster.Script(nil)
		applied := map[string]int{}
		closed := map[string]bool{}
		for _, a := range cluster.Arrivals()[mark:] {
			value := string(a.Write.GetOperation().GetPut().GetValue())
			if closed[value] {
				rt.Fatalf("%s was sent again after an uncertain outcome", value)
			}
			switch a.Answer.GetFailure().GetReason() {
			case kvv1.Reason_REASON_OVERLOADED, kvv1.Reason_REASON_NOT_LEADER, kvv1.Reason_REASON_NO_SPACE:
			default:
				closed[value] = true
			}
			if a.Applied {
				applied[value]++
			}
		}
		for value, p := range pending {
			_, err := p.Outcome()
			n := applied[value]
			switch {
			case n > 1:
				rt.Fatalf("%s was applied %d times", value, n)
			case err == nil && n != 1:
				rt.Fatalf("%s was acknowledged and not applied", value)
			case err != nil && !errors.Is(err, ErrUncertain) && n != 0:
				rt.Fatalf("%s was applied and its error denies it: %v", value, err)
			}
		}
	})
}

func BenchmarkPut(b *testing.B) {
	cluster, err := clienttest.New(1)
	if err != nil {
		b.Fatal(err)
	}
	defer cluster.Close()
	c, err := Open(b.Context(), Options{Endpoints: cluster.Addresses()})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	value := make([]byte, 256)
	b.SetParallelism(128)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		key := fmt.Appendf(nil, "%016d", rand.Int64())
		for pb.Next() {
			if _, err := c.Put(b.Context(), key, value); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
