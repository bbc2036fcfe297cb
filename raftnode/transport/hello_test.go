package transport

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

func TestRefusedHello(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*raftv1.NodeHello)
		text   string
	}{
		{"cluster", func(h *raftv1.NodeHello) { h.ClusterId = []byte("red") }, "of cluster red"},
		{"version", func(h *raftv1.NodeHello) { h.ProtocolVersion = 9 }, "speaks raft protocol version 9"},
		{"no name", func(h *raftv1.NodeHello) { h.Node = "" }, "has no node name"},
		{"long name", func(h *raftv1.NodeHello) { h.Node = strings.Repeat("n", 256) }, "has 256 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := newTestNode(t, "n1"), newTestNode(t, "n2")
			a.set(func() { c.change(a.hello) })
			a.transport.SetPeer("n2", b.address)
			eventually(t, "many attempts", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.hellos > 10 })
			a.transport.Send("n2", heartbeat(1, 1))
			eventually(t, "unreachable", func() bool { return a.toldUnreachable("n2") == 1 })
			// Both ends say why, and once.
			if n := b.log.count(c.text); n != 1 {
				t.Errorf("logged %d times by the refusing node:\n%s", n, b.log.buf.String())
			}
			if n := a.log.count(c.text); n != 1 {
				t.Errorf("logged %d times by the refused node:\n%s", n, a.log.buf.String())
			}
			if m := a.lane("n2", urgent); m.Connected || m.SentMessages != 0 || m.Dropped != 1 {
				t.Errorf("%+v", m)
			}

			// Another reason is logged anew; then it is accepted.
			b.set(func() { b.check = func(*raftv1.NodeHello) error { return errors.New("still founding") } })
			a.set(func() {
				a.hello = &raftv1.NodeHello{ProtocolVersion: ProtocolVersion, Node: "n1", ClusterId: []byte("blue")}
			})
			eventually(t, "second reason", func() bool { return a.log.count("still founding") == 1 && b.log.count("still founding") == 1 })
			b.set(func() { b.check = nil })
			a.waitConnected("n2")
			a.transport.Send("n2", heartbeat(1, 2))
			eventually(t, "received", func() bool { return len(b.get(raftpb.MsgHeartbeat)) == 1 })
		})
	}
}

// A node that is not ready yet is no reason to alarm anybody.
func TestNotReadyHello(t *testing.T) {
	a, b := newTestNode(t, "n1"), newTestNode(t, "n2")
	b.set(func() {
		b.check = func(*raftv1.NodeHello) error { return fmt.Errorf("%w: founding", ErrNotReady) }
	})
	a.transport.SetPeer("n2", b.address)
	eventually(t, "the dialler hears of it", func() bool { return a.log.count("peer not ready") == 1 })
	if a.log.count("refused")+b.log.count("refused") != 0 {
		t.Errorf("logged as a refusal:\n%s%s", a.log.buf.String(), b.log.buf.String())
	}
	b.set(func() { b.check = nil })
	a.waitConnected("n2")
}

// The dialler refuses too: the other node accepted, but nothing is sent.
func TestDiallerRefuses(t *testing.T) {
	a, b := newTestNode(t, "n1"), newTestNode(t, "n2")
	a.set(func() { a.check = func(*raftv1.NodeHello) error { return errors.New("not my friend") } })
	a.transport.SetPeer("n2", b.address)
	eventually(t, "refused", func() bool { return a.log.count("not my friend") == 1 })
	a.transport.Send("n2", heartbeat(1, 1))
	if m := a.lane("n2", urgent); m.Connected || m.Dropped != 1 {
		t.Errorf("%+v", m)
	}
}

func TestWrongNodeAtAddress(t *testing.T) {
	a, b := newTestNode(t, "n1"), newTestNode(t, "n2")
	a.transport.SetPeer("n3", b.address)
	eventually(t, "refused", func() bool {
		return a.log.count(`node \"n2\" answers at the address of node \"n3\"`) == 1
	})
	if a.lane("n3", urgent).Connected {
		t.Error("connected")
	}
	// A corrected address is used at once.
	c := newTestNode(t, "n3")
	a.transport.SetPeer("n3", c.address)
	a.waitConnected("n3")
}
