package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

func testSlots(t *testing.T, n int) *Slots {
	t.Helper()
	s, err := NewSlots(SlotsOptions{Slots: n})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustAcquire(t *testing.T, s *Slots, c Claim) *Slot {
	t.Helper()
	slot, err := s.Acquire(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

// TestSlotsOrder: class, then bytes left, then age.
func TestSlotsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSlots(t, 1)
		first := mustAcquire(t, s, Claim{})
		first.Progress(1 << 40)
		var order []string
		done := make(chan struct{})
		claims := []struct {
			name  string
			claim Claim
		}{
			{"unknown", Claim{Class: snapshotv1.Class_CLASS_NORMAL}},
			{"large", Claim{Class: snapshotv1.Class_CLASS_NORMAL, BytesLeft: 1000}},
			{"large, younger", Claim{Class: snapshotv1.Class_CLASS_NORMAL, BytesLeft: 1000}},
			{"small", Claim{BytesLeft: 10}},
			{"voter", Claim{Class: snapshotv1.Class_CLASS_MISSING_VOTER, BytesLeft: 5000}},
		}
		for _, c := range claims {
			go func() {
				slot := mustAcquire(t, s, c.claim)
				order = append(order, c.name)
				slot.Release()
				done <- struct{}{}
			}()
			synctest.Wait()
		}
		if holding, waiting, position := s.Queue(Claim{BytesLeft: 500}); holding != 1 || waiting != 5 || position != 3 {
			t.Error(holding, waiting, position)
		}
		// One gives up; one looks at its place.
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		var positions []int
		if _, err := s.Acquire(ctx, Claim{BytesLeft: 500}, func(at int) { positions = append(positions, at) }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if len(positions) < 3 || positions[0] != 3 {
			t.Error(positions)
		}
		first.Release()
		first.Release()
		for range claims {
			<-done
		}
		if want := []string{"voter", "small", "large", "large, younger", "unknown"}; !slices.Equal(order, want) {
			t.Error(order)
		}
		if holding, waiting, position := s.Queue(Claim{}); holding+waiting+position != 0 {
			t.Error(holding, waiting, position)
		}
	})
}

// TestSlotsEvict: case 11 of the specification, a receiver at 8 bytes a second.
func TestSlotsEvict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSlots(t, 2)
		slow, fast := mustAcquire(t, s, Claim{}), mustAcquire(t, s, Claim{})
		stop := make(chan struct{})
		go func() {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					slow.Progress(8)
					fast.Progress(1 << 20)
				case <-stop:
					return
				}
			}
		}()
		wait := func(d time.Duration) bool {
			timer := time.NewTimer(d)
			defer timer.Stop()
			select {
			case <-slow.Evicted():
				return true
			case <-timer.C:
				return false
			}
		}
		if wait(time.Hour) {
			t.Fatal("evicted though nobody waits")
		}
		got := make(chan *Slot)
		go func() { got <- mustAcquire(t, s, Claim{}) }()
		if !wait(2 * time.Minute) {
			t.Fatal("not evicted")
		}
		slow.Release()
		(<-got).Release()
		select {
		case <-fast.Evicted():
			t.Error("the fast one is evicted")
		default:
		}
		close(stop)
	})
}

// fakeForeground is what a test says; base and p99 are of commits, or of syncs.
type fakeForeground struct {
	base, p99 time.Duration
	sync      bool
	over      bool // p99 is of the last second, and not of its end
	stalled   bool
	sublevels int
}

func (f *fakeForeground) latencies(d time.Duration) Latencies {
	if f.sync {
		return Latencies{Commit: 3 * time.Millisecond, LogSync: d}
	}
	return Latencies{Commit: d, LogSync: time.Millisecond}
}

func (f *fakeForeground) Base() Latencies { return f.latencies(f.base) }
func (f *fakeForeground) Recent(d time.Duration) Latencies {
	if f.over && d < time.Second {
		return f.latencies(f.base)
	}
	return f.latencies(f.p99)
}
func (f *fakeForeground) WriteStalled() bool { return f.stalled }
func (f *fakeForeground) L0Sublevels() int   { return f.sublevels }

// sendFor sends chunks of 64 KiB for a time and returns the bytes a second.
func sendFor(t *testing.T, p Pace, d time.Duration) float64 {
	t.Helper()
	begin, sent := time.Now(), 0
	for time.Since(begin) < d {
		if err := p.Wait(t.Context(), 64<<10); err != nil {
			t.Fatal(err)
		}
		sent += 64 << 10
	}
	return float64(sent) / time.Since(begin).Seconds()
}

func TestPacing(t *testing.T) {
	const mib = float64(1 << 20)
	for _, test := range []struct {
		name  string
		f     fakeForeground
		rate  int64
		class snapshotv1.Class
		d     time.Duration
		want  float64 // average MiB/s
	}{
		{"well", fakeForeground{base: 4 * time.Millisecond, p99: 5 * time.Millisecond}, 0, 0, 2 * time.Second, 92},
		{"bounded", fakeForeground{}, 10 << 20, 0, 4 * time.Second, 10},
		{"latency", fakeForeground{base: 4 * time.Millisecond, p99: 10 * time.Millisecond}, 0, 0, time.Minute, 1.5},
		{"latency of syncs", fakeForeground{sync: true, base: 4 * time.Millisecond, p99: 10 * time.Millisecond}, 0, 0, time.Minute, 1.5},
		{"latency that is over", fakeForeground{over: true, base: 4 * time.Millisecond, p99: 10 * time.Millisecond}, 0, 0, 4 * time.Second, 64},
		{"little above a small base", fakeForeground{base: time.Millisecond, p99: 2500 * time.Microsecond}, 0, 0, 2 * time.Second, 92},
		{"no base", fakeForeground{p99: time.Second}, 0, 0, 2 * time.Second, 92},
		{"stalled", fakeForeground{stalled: true}, 0, 0, time.Minute, 1.5},
		{"sublevels", fakeForeground{sublevels: 9}, 0, 0, time.Minute, 1.5},
		{"few sublevels", fakeForeground{sublevels: 8}, 0, 0, 2 * time.Second, 92},
		{"missing voter", fakeForeground{stalled: true}, 0, snapshotv1.Class_CLASS_MISSING_VOTER, time.Minute, 32},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, err := NewRatePacer(PacingOptions{Foreground: &test.f, Rate: test.rate})
				if err != nil {
					t.Fatal(err)
				}
				pace := p.Begin(test.class)
				defer pace.End()
				if got := sendFor(t, pace, test.d) / mib; got < 0.75*test.want || got > 1.25*test.want {
					t.Errorf("%.1f MiB/s, not %.1f", got, test.want)
				}
			})
		})
	}
	t.Run("recovers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeForeground{base: time.Millisecond, p99: time.Second}
			p, err := NewRatePacer(PacingOptions{Foreground: f})
			if err != nil {
				t.Fatal(err)
			}
			pace := p.Begin(0)
			sendFor(t, pace, 10*time.Second)
			if r := p.Rate() / mib; r != 1 {
				t.Errorf("%v MiB/s", r)
			}
			// The base is frozen: what the foreground suffers is not what it is used to.
			f.base = time.Minute
			sendFor(t, pace, time.Second)
			if r := p.Rate() / mib; r != 1 {
				t.Errorf("%v MiB/s", r)
			}
			f.p99 = time.Millisecond
			sendFor(t, pace, 10*time.Second)
			if r := p.Rate() / mib; r < 300 || r > 330 {
				t.Errorf("%v MiB/s", r)
			}
			// Two share the rate.
			f.p99 = time.Second
			second := p.Begin(0)
			sendFor(t, pace, 20*time.Second)
			second.End()
			pace.End()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			pace = p.Begin(0)
			if err := pace.Wait(ctx, 1<<20); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			pace.End()
		})
	})
	t.Run("off", func(t *testing.T) {
		p, err := NewRatePacer(PacingOptions{Mode: PacingOff})
		if err != nil {
			t.Fatal(err)
		}
		pace := p.Begin(0)
		defer pace.End()
		for range 1000 {
			if err := pace.Wait(t.Context(), 1<<30); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestCheckSpace(t *testing.T) {
	fsys := vfs.NewMem()
	var o SpaceOptions
	o.EnsureDefaults()
	if err := o.CheckSpace(fsys, "", 1<<40); err != nil {
		t.Errorf("a file system that cannot tell: %v", err)
	}
	for _, test := range []struct {
		avail, total, bytes uint64
		want                error
	}{
		{1100 + 100, 1000, 1000, nil},
		{1100 + 99, 1000, 1000, ErrNoSpace},
		{1 << 30, 1 << 40, 1, ErrNoSpace}, // reserve 1 GiB, not 10 %
		{1<<30 + 2, 1 << 40, 1, nil},
	} {
		fsys.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: test.avail, TotalBytes: test.total})
		if err := o.CheckSpace(fsys, "", test.bytes); !errors.Is(err, test.want) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// TestOptions: what is out of range is refused by name.
func TestOptions(t *testing.T) {
	for i, err := range []error{
		func() error { _, err := NewSlots(SlotsOptions{Slots: -1}); return err }(),
		func() error { _, err := NewRatePacer(PacingOptions{}); return err }(),
		func() error { _, err := NewRatePacer(PacingOptions{Mode: PacingOff, Rate: -1}); return err }(),
		func() error { _, err := NewSource(SourceOptions{}); return err }(),
		func() error { _, err := NewReceiver(ReceiverOptions{ChunkBytes: MaxChunkBytes + 1}); return err }(),
		func() error { _, err := NewReceiver(ReceiverOptions{Space: SpaceOptions{Factor: 0.5}}); return err }(),
		func() error { _, err := NewTransfer(TransferOptions{ID: []byte("x")}); return err }(),
		func() error { _, err := OpenImages(ImagesOptions{}); return err }(),
	} {
		if err == nil || len(err.Error()) < 20 {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// TestMetricsString is what a person sees.
func TestMetricsString(t *testing.T) {
	c := new(Counters)
	c.moved(RoleSource, 10, 20)
	c.moved(RoleReceiver, 5, 6)
	c.ended(RoleSource, "files", nil)
	c.ended(RoleReceiver, "", ErrNoSpace)
	c.decided(ChoiceDelta, "behind")
	c.restarted("source_lost")
	c.stage(StageSend, time.Second)
	c.stalled("credit", time.Millisecond)
	c.ObserveInstallBlock(5 * time.Millisecond)
	c.ObserveRecovery(time.Minute)
	c.CountRepeatedFull()
	want := `bytes: sent 10 (raw 20), received 5 (raw 6), reused 0, saved by resuming 0, staged 0
checksum errors 0, orphans removed 0, full images repeated 1
transfers: receiver - no space 1
transfers: source files ok 1
decisions: delta behind 1
restarted: source_lost 1
stage: send 1 in 1s
stalled: credit 1ms
recoveries: 1 in 1m0s, installations blocked 1 times for 5ms
`
	if got := c.Metrics().String(); got != want {
		t.Errorf("%s", got)
	}
	if got := fmt.Sprint(new(Counters).Metrics()); len(got) < 50 {
		t.Error(got)
	}
}
