package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamraft/streamraft/snapshot"
)

// pacedNode is the pacing of a node whose clients, disk and stores a test plays.
type pacedNode struct {
	t         *testing.T
	f         *foreground
	pacer     *snapshot.RatePacer
	receiving bool
	writing   time.Duration
	stalled   bool
	sublevels int
}

func newPacedNode(t *testing.T) *pacedNode {
	n := &pacedNode{t: t}
	n.f = &foreground{
		commit: newLatencyTrack(), logSync: newLatencyTrack(),
		transferring: func() bool { return n.pacer.Active() > 0 || n.receiving },
		logWriting:   func() time.Duration { return n.writing },
		stores:       func() (bool, int) { return n.stalled, n.sublevels },
	}
	var err error
	if n.pacer, err = snapshot.NewRatePacer(snapshot.PacingOptions{Foreground: n.f}); err != nil {
		t.Fatal(err)
	}
	return n
}

// run lets clients write every 5 ms, with what a commit and its sync take; 0: none
// of that kind. A transfer sends as fast as it may.
func (n *pacedNode) run(d, commit, sync time.Duration, pace snapshot.Pace) {
	n.t.Helper()
	for begin := time.Now(); time.Since(begin) < d; {
		timer := time.NewTimer(5 * time.Millisecond)
		<-timer.C
		if commit > 0 {
			n.f.committed(commit)
		}
		if sync > 0 {
			n.f.synced(sync)
		}
		if pace != nil {
			if err := pace.Wait(n.t.Context(), 1); err != nil {
				n.t.Fatal(err)
			}
		}
	}
}

// TestForegroundPaces: a transfer is slowed down by what it does to clients, and
// by nothing else.
func TestForegroundPaces(t *testing.T) {
	const ms, mib = time.Millisecond, 1 << 20
	for _, test := range []struct {
		name       string
		before     func(n *pacedNode)
		during     func(n *pacedNode, pace snapshot.Pace)
		down       bool
		afterwards bool // it recovers once commits take 5 ms and syncs 2 ms again
	}{
		{"well", nil, func(n *pacedNode, p snapshot.Pace) { n.run(4*time.Second, 6*ms, 2*ms, p) }, false, true},
		{"commits", nil, func(n *pacedNode, p snapshot.Pace) { n.run(4*time.Second, 12*ms, 2*ms, p) }, true, true},
		{"syncs of a follower", func(n *pacedNode) { n.run(time.Minute, 0, 2*ms, nil) },
			func(n *pacedNode, p snapshot.Pace) { n.run(4*time.Second, 0, 6*ms, p) }, true, true},
		// Its commits have no base, and its syncs are as ever.
		{"a follower becomes leader", func(n *pacedNode) { n.run(time.Minute, 0, 2*ms, nil) },
			func(n *pacedNode, p snapshot.Pace) { n.run(4*time.Second, 30*ms, 2*ms, p) }, false, false},
		{"no load", func(*pacedNode) {}, func(n *pacedNode, p snapshot.Pace) { n.run(4*time.Second, 50*ms, 50*ms, p) }, false, false},
		{"no load, slow disk", func(*pacedNode) {}, func(n *pacedNode, p snapshot.Pace) { n.run(4*time.Second, 0, 150*ms, p) }, true, true},
		{"a disk that is slow as ever", func(n *pacedNode) { n.run(time.Minute, 160*ms, 150*ms, nil) },
			func(n *pacedNode, p snapshot.Pace) { n.run(4*time.Second, 160*ms, 150*ms, p) }, false, false},
		{"the log hangs", nil, func(n *pacedNode, p snapshot.Pace) {
			n.writing = time.Second
			n.run(4*time.Second, 0, 0, p)
			n.writing = 0
		}, true, true},
		{"stalled", nil, func(n *pacedNode, p snapshot.Pace) {
			n.stalled = true
			n.run(4*time.Second, 5*ms, 2*ms, p)
			n.stalled = false
		}, true, true},
		{"sublevels", nil, func(n *pacedNode, p snapshot.Pace) {
			n.sublevels = 9
			n.run(4*time.Second, 5*ms, 2*ms, p)
			n.sublevels = 3
		}, true, true},
		// What a node suffers while it receives is no base for what it sends.
		{"after receiving", func(n *pacedNode) {
			n.run(time.Minute, 5*ms, 2*ms, nil)
			n.receiving = true
			n.run(10*time.Minute, 100*ms, 80*ms, nil)
			n.receiving = false
		}, func(n *pacedNode, p snapshot.Pace) { n.run(4*time.Second, 12*ms, 2*ms, p) }, true, true},
		{"between two transfers", func(n *pacedNode) {
			n.run(time.Minute, 5*ms, 2*ms, nil)
			pace := n.pacer.Begin(0)
			n.run(20*time.Minute, 50*ms, 40*ms, pace)
			pace.End()
		}, func(n *pacedNode, p snapshot.Pace) { n.run(4*time.Second, 12*ms, 2*ms, p) }, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newPacedNode(t)
				if test.before == nil {
					n.run(time.Minute, 5*ms, 2*ms, nil)
				} else {
					test.before(n)
				}
				pace := n.pacer.Begin(0)
				defer pace.End()
				start := n.pacer.Rate()
				test.during(n, pace)
				if rate := n.pacer.Rate(); test.down && rate > start/4 || !test.down && rate < start+4*8*mib {
					t.Errorf("from %.0f to %.0f MiB/s", start/mib, rate/mib)
				}
				if !test.afterwards {
					return
				}
				low := n.pacer.Rate()
				n.run(4*time.Second, 5*ms, 2*ms, pace)
				if rate := n.pacer.Rate(); rate < low+2*8*mib {
					t.Errorf("only from %.0f to %.0f MiB/s when all was well again", low/mib, rate/mib)
				}
			})
		})
	}
}

// TestForegroundForgivesAMoment: one slow moment halves the rate once or twice,
// where the intervals cut it, and not in each interval that still sees it.
func TestForegroundForgivesAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		n := newPacedNode(t)
		n.run(time.Minute, 5*ms, 2*ms, nil)
		pace := n.pacer.Begin(0)
		defer pace.End()
		n.run(2*time.Second, 5*ms, 2*ms, pace)
		before := n.pacer.Rate()
		n.run(100*ms, 50*ms, 2*ms, pace)
		low := before
		for range 10 {
			n.run(100*ms, 5*ms, 2*ms, pace)
			low = min(low, n.pacer.Rate())
		}
		if low > before/2 || low < before/4 {
			t.Errorf("the rate fell from %.0f to %.0f MiB/s", before/(1<<20), low/(1<<20))
		}
		n.run(time.Second, 5*ms, 2*ms, pace)
		if rate := n.pacer.Rate(); rate < low+3*8<<20 {
			t.Errorf("it rose only from %.0f to %.0f MiB/s", low/(1<<20), rate/(1<<20))
		}
	})
}
