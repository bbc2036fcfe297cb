package faultnet

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
)

// TestStreams: bytes arrive after the delay of the link; a cut, in either
// direction, and the end of a host break a stream at both ends.
func TestStreams(t *testing.T) {
	for name, breaks := range map[string]func(n *Network, a, b *Host){
		"cut":           func(n *Network, _, _ *Host) { n.Cut("a", "b") },
		"cut to a":      func(n *Network, _, _ *Host) { n.CutOneWay("b", "a") },
		"cut to b":      func(n *Network, _, _ *Host) { n.CutOneWay("a", "b") },
		"isolated":      func(n *Network, _, _ *Host) { n.Isolate("b") },
		"dialler ended": func(_ *Network, a, _ *Host) { _ = a.Close() },
		"dialled ended": func(_ *Network, _, b *Host) { _ = b.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, err := NewNetwork(Options{})
				if err != nil {
					t.Fatal(err)
				}
				a, errA := n.Host("a", "a:1")
				b, errB := n.Host("b", "b:1")
				if err := errors.Join(errA, errB); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = errors.Join(a.Close(), b.Close()) }()
				if _, err := n.Host("c", "b:1"); !errors.Is(err, ErrAddressInUse) {
					t.Errorf("a second host at an address: %v", err)
				}
				accepted := make(chan net.Conn, 1)
				go func() {
					conn, err := b.Accept()
					if err != nil {
						t.Error(err)
					}
					accepted <- conn
				}()
				near, err := a.Dial(t.Context(), "b:1")
				if err != nil {
					t.Fatal(err)
				}
				far := <-accepted
				if _, err := far.Write([]byte("hello")); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 5)
				if _, err := io.ReadFull(near, got); err != nil || string(got) != "hello" {
					t.Fatalf("%q, %v", got, err)
				}
				breaks(n, a, b)
				if _, err := near.Read(got); err == nil {
					t.Error("the dialling end reads on")
				}
				if _, err := far.Read(got); err == nil {
					t.Error("the dialled end reads on")
				}
				if _, err := a.Dial(t.Context(), "b:1"); !errors.Is(err, ErrNoAnswer) {
					t.Errorf("dialled again: %v", err)
				}
			})
		})
	}
}
