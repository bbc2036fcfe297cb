package faultnet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/streamraft/streamraft/raftnode/transport"
)

func TestCrashAndRestart(t *testing.T) {
	bubble(t, Options{MinDelay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond}, []string{"a", "b"}, func(c *cluster) {
		a, old := c.nodes["a"], c.nodes["b"]
		a.tr.Send("b", beat(1))
		old.tr.Send("a", beat(2))
		c.crash("b")
		if _, err := old.tr.Hello(c.t.Context(), "a:1"); !errors.Is(err, transport.ErrClosed) {
			c.t.Error(err)
		}
		old.tr.Send("a", beat(9))
		if err := c.Transport("a", "x:1").Start(a); !errors.Is(err, ErrAddressInUse) {
			c.t.Error(err)
		}
		restarted := c.start("b")
		restarted.tr.SetPeer("a", "a:1")
		c.settle()
		if got := old.take(); len(got) > 0 {
			c.t.Errorf("delivered to the crashed node: %+v", got)
		}
		if got := restarted.take(); len(got) > 0 {
			c.t.Errorf("delivered to the next run: %+v", got)
		}
		if got := a.indexes(); !slices.Equal(got, []uint64{2}) {
			c.t.Errorf("what the crashed node had sent: %v", got)
		}
		if a.told("b") != 1 {
			c.t.Errorf("told %d times", a.told("b"))
		}
		if k := c.Counters(); k.Lost != 1 {
			c.t.Error(k)
		}
		a.tr.Send("b", beat(3))
		restarted.tr.Send("a", beat(4))
		c.settle()
		if got := restarted.indexes(); !slices.Equal(got, []uint64{3}) {
			c.t.Errorf("after the restart: %v", got)
		}
		if got := a.indexes(); !slices.Equal(got, []uint64{4}) {
			c.t.Errorf("after the restart: %v", got)
		}
	})
}

func TestRefusedHello(t *testing.T) {
	bubble(t, Options{}, []string{"a", "b"}, func(c *cluster) {
		a, b := c.nodes["a"], c.nodes["b"]
		set := func(n *node, err error) { n.mu.Lock(); n.refuse = err; n.mu.Unlock() }
		set(a, errors.New("no"))
		a.tr.Send("b", beat(1)) // sent on the old connection, may arrive
		a.tr.ResetConnections()
		b.tr.Send("a", beat(2))
		c.settle()
		b.take()
		a.tr.Send("b", beat(3))
		b.tr.Send("a", beat(4))
		c.settle()
		if got := append(a.indexes(), b.indexes()...); len(got) > 0 {
			c.t.Errorf("delivered without an accepted hello: %v", got)
		}
		if k := c.Counters(); k.Refused == 0 || k.Connected != 2 || k.Unconnected != 3 {
			c.t.Error(k)
		}
		set(a, nil)
		c.settle()
		a.tr.Send("b", beat(5))
		b.tr.Send("a", beat(6))
		c.settle()
		if got := append(a.indexes(), b.indexes()...); !slices.Equal(got, []uint64{6, 5}) {
			c.t.Errorf("after the refusal ended: %v", got)
		}

		// Another cluster, and another node than the one that was dialled.
		stranger := c.start("x")
		stranger.cluster = "red"
		stranger.tr.SetPeer("a", "a:1")
		a.tr.SetPeer("y", "b:1")
		before := c.Counters()
		c.settle()
		stranger.tr.Send("a", beat(7))
		a.tr.Send("y", beat(8))
		c.settle()
		if got := append(a.indexes(), b.indexes()...); len(got) > 0 {
			c.t.Errorf("delivered: %v", got)
		}
		if k := c.Counters(); k.Connected != before.Connected || k.Refused-before.Refused < 20 {
			c.t.Error(k)
		}
	})
}

func TestResetLosesWhatIsOnTheWayIn(t *testing.T) {
	bubble(t, Options{MinDelay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond}, []string{"a", "b"}, func(c *cluster) {
		a, b := c.nodes["a"], c.nodes["b"]
		a.tr.Send("b", beat(1))
		b.tr.Send("a", beat(2))
		b.tr.ResetConnections()
		c.settle()
		a.tr.Send("b", beat(3))
		c.settle()
		if got := b.indexes(); !slices.Equal(got, []uint64{3}) {
			c.t.Errorf("b got %v", got)
		}
		if got := a.indexes(); !slices.Equal(got, []uint64{2}) {
			c.t.Errorf("a got %v", got)
		}
	})
}

func TestResetInReceive(t *testing.T) {
	bubble(t, Options{MinDelay: 10 * time.Millisecond, MaxDelay: 10 * time.Millisecond}, []string{"a", "b"}, func(c *cluster) {
		a, b := c.nodes["a"], c.nodes["b"]
		b.onReceive = func(string) { b.tr.ResetConnections() }
		a.tr.Send("b", beat(1))
		a.tr.Send("b", app(2, "arrives at the same time, on the other lane"))
		c.settle()
		if got := b.indexes(); !slices.Equal(got, []uint64{1}) {
			c.t.Errorf("b got %v", got)
		}
		if k := c.Counters(); k.Lost != 1 {
			c.t.Error(k)
		}
	})
}

// A hello that was said before a reset does not make a connection after it, on
// whichever side the reset is.
func TestResetDuringHandshake(t *testing.T) {
	for _, resetting := range []string{"a", "b"} {
		bubble(t, Options{}, []string{"a", "b"}, func(c *cluster) {
			a, b := c.nodes["a"], c.nodes["b"]
			b.tr.RemovePeer("a")
			resets := 0
			a.tr.RemovePeer("b")
			b.onCheck = func() {
				if resets++; resets <= 3 {
					c.nodes[resetting].tr.ResetConnections()
				}
			}
			before := c.Counters().Connected
			a.tr.SetPeer("b", "b:1")
			c.settle()
			if k := c.Counters(); k.Connected != before+1 || resets != 4 {
				c.t.Errorf("%s: %d resets, %v", resetting, resets, k)
			}
			a.tr.Send("b", beat(1))
			c.settle()
			if got := b.indexes(); !slices.Equal(got, []uint64{1}) {
				c.t.Errorf("%v", got)
			}
		})
	}
}

func TestUnknownAndRemovedPeers(t *testing.T) {
	bubble(t, Options{}, []string{"a", "b"}, func(c *cluster) {
		a, b := c.nodes["a"], c.nodes["b"]
		for range 3 {
			a.tr.Send("z", beat(1))
		}
		c.settle()
		if a.told("z") != 1 {
			c.t.Errorf("told %d times", a.told("z"))
		}
		b.tr.Send("a", beat(1))
		a.tr.RemovePeer("b")
		a.tr.Send("b", beat(1))
		c.settle()
		if got := append(a.indexes(), b.indexes()...); len(got) > 0 {
			c.t.Errorf("delivered: %v", got)
		}
		// b may come back: that is for CheckHello to say.
		b.tr.Send("a", beat(2))
		c.settle()
		if got := a.indexes(); !slices.Equal(got, []uint64{2}) {
			c.t.Errorf("a got %v", got)
		}
		a.tr.SetPeer("b", "nowhere:1")
		c.settle()
		a.tr.Send("b", beat(3))
		a.tr.SetPeer("b", "b:1")
		c.settle()
		a.tr.Send("b", beat(4))
		a.tr.Send("b", transport.GroupMessage{Group: 1, Message: &raftpb.Message{Type: raftpb.MsgHup.Enum()}})
		c.settle()
		if got := b.indexes(); !slices.Equal(got, []uint64{4}) {
			c.t.Errorf("b got %v", got)
		}
		if k := c.Counters(); k.Invalid != 1 || k.Lost != 1 {
			c.t.Error(k)
		}
	})
}

func TestHello(t *testing.T) {
	bubble(t, Options{}, []string{"a", "b"}, func(c *cluster) {
		a := c.nodes["a"]
		hello, err := a.tr.Hello(c.t.Context(), "b:1")
		if err != nil || hello.GetNode() != "b" {
			c.t.Fatal(hello, err)
		}
		if _, err := a.tr.Hello(c.t.Context(), "nowhere:1"); !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "nowhere:1") {
			c.t.Error(err)
		}
		c.CutOneWay("b", "a")
		ctx, cancel := context.WithTimeout(c.t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		if _, err := a.tr.Hello(ctx, "b:1"); !errors.Is(err, context.DeadlineExceeded) {
			c.t.Error(err)
		}
		if time.Since(start) != 100*time.Millisecond {
			c.t.Errorf("took %v", time.Since(start))
		}
		if _, err := a.tr.Hello(c.t.Context(), "b:1"); !errors.Is(err, ErrNoAnswer) {
			c.t.Error(err)
		}
		idle := c.Transport("q", "q:1")
		if _, err := idle.Hello(c.t.Context(), "b:1"); !errors.Is(err, transport.ErrNotStarted) {
			c.t.Error(err)
		}
		if err := idle.Close(); err != nil {
			c.t.Error(err)
		}
		if err := idle.Start(a); !errors.Is(err, transport.ErrClosed) {
			c.t.Error(err)
		}
		if err := a.tr.Start(a); !errors.Is(err, transport.ErrStarted) {
			c.t.Error(err)
		}
	})
}

func TestOptions(t *testing.T) {
	for text, opts := range map[string]Options{
		"MinDelay":                    {MinDelay: -1},
		"MaxDelay":                    {MinDelay: 2, MaxDelay: 1},
		"Redial":                      {Redial: -1},
		"QueueMessages":               {QueueMessages: -1},
		"probability Drop is 1.5":     {Probabilities: Probabilities{Drop: 1.5}},
		"probability Duplicate is -1": {Probabilities: Probabilities{Duplicate: -1}},
	} {
		if _, err := NewNetwork(opts); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	n, err := NewNetwork(Options{MinDelay: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.SetProbabilities(Probabilities{Reorder: 2}); err == nil {
		t.Error("accepted")
	}
	const want = "sent 0, delivered 0, dropped 0, cut 0, unconnected 0, overflowed 0, lost 0, invalid 0, duplicated 0, reordered 0, connected 0, refused 0, mutated 0, undecoded 0"
	if got := n.Counters().String(); got != want {
		t.Error(got)
	}
}
