package snapshot

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

func TestDurations(t *testing.T) {
	d := newDurations(shortBounds())
	for _, took := range []time.Duration{-1, 0, time.Millisecond, time.Millisecond + 1, 50 * time.Millisecond, time.Hour} {
		d.observe(took)
	}
	copied := d.clone()
	d.observe(0)
	if copied.Count != 6 || copied.Total != time.Hour+52*time.Millisecond+1 {
		t.Errorf("%d times of %v", copied.Count, copied.Total)
	}
	want := map[int]uint64{0: 3, 1: 1, 5: 1, len(copied.Bounds): 1}
	for i, n := range copied.Counts {
		if n != want[i] {
			t.Errorf("%d times in bucket %d, not %d", n, i, want[i])
		}
	}
	for _, bounds := range [][]time.Duration{longBounds(), shortBounds()} {
		for i := range bounds[1:] {
			if bounds[i] >= bounds[i+1] {
				t.Errorf("%v is not below %v", bounds[i], bounds[i+1])
			}
		}
	}
}

// TestSlotsPause: who is held back by the node itself keeps its slot, and who is
// slow beside that does not.
func TestSlotsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSlots(t, 2)
		paced, slow := mustAcquire(t, s, Claim{}), mustAcquire(t, s, Claim{})
		got := make(chan *Slot)
		go func() { got <- mustAcquire(t, s, Claim{}) }()
		begin := time.Now()
		for time.Since(begin) < 10*time.Minute {
			pause := time.NewTimer(time.Second)
			<-pause.C
			paced.Progress(8) // 8 bytes a second, all of it for the pacing
			paced.Pause(time.Second)
			slow.Progress(8)
			slow.Pause(100 * time.Millisecond)
		}
		select {
		case <-paced.Evicted():
			t.Error("the one that the node held back is evicted")
		default:
		}
		select {
		case <-slow.Evicted():
		default:
			t.Error("the slow one is not evicted")
		}
		paced.Release()
		slow.Release()
		(<-got).Release()
	})
}

// TestRateGauge: the rate is told while something is sent.
func TestRateGauge(t *testing.T) {
	p, err := NewRatePacer(PacingOptions{Mode: PacingOff, Rate: 5 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if p.Rate() != 0 || p.Active() != 0 {
		t.Error(p.Rate(), p.Active())
	}
	pace := p.Begin(0)
	if p.Rate() != 5<<20 || p.Active() != 1 {
		t.Error(p.Rate(), p.Active())
	}
	pace.End()
	if p.Rate() != 0 || p.Active() != 0 {
		t.Error(p.Rate(), p.Active())
	}
}

// TestStagedBytes: what a transfer has staged counts while it is received, also
// what an earlier attempt staged.
func TestStagedBytes(t *testing.T) {
	boxes, err := OpenInboxes(vfs.NewMem(), "inbox", nil)
	if err != nil {
		t.Fatal(err)
	}
	var transfers []*Transfer
	c := new(Counters)
	for range 2 {
		tr, err := NewTransfer(TransferOptions{
			ID: NewID(), Group: 7, Node: "n1", Inboxes: boxes, Stager: &fakeStager{}, Kinds: []snapshotv1.Kind{snapshotv1.Kind_KIND_FILES},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.beginStaging(tr)
		tr.change(func(p *Progress) { p.BytesDone = 100 })
		tr.wrote(5, 10)
		transfers = append(transfers, tr)
	}
	if got := c.Metrics().StagedBytes; got != 220 {
		t.Errorf("%d bytes staged", got)
	}
	c.endStaging(transfers[0])
	if got := c.Metrics().StagedBytes; got != 110 {
		t.Errorf("%d bytes staged", got)
	}
}
