package faultnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// streamBuffer is how much a stream holds that was written and not read.
const streamBuffer = 64 << 10

// Host is what one run of a node has of byte streams, beside its Transport: a
// net.Listener for those that come to it, and Dial for those that it opens. A
// cut ends the streams over it, whatever its direction: nothing would be
// acknowledged. All methods may be called from any goroutine.
type Host struct {
	*bufconn.Listener
	net           *Network
	node, address string

	// Guarded by net.mu.
	closed  bool
	streams map[*stream]struct{} // that it opened, or that lead to it
}

// Host lets a node take byte streams at an address until the Host is closed.
// ErrAddressInUse: another Host does.
func (n *Network) Host(node, address string) (*Host, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts[address] != nil {
		return nil, fmt.Errorf("%w: %s", ErrAddressInUse, address)
	}
	h := &Host{
		Listener: bufconn.Listen(streamBuffer), net: n, node: node, address: address,
		streams: make(map[*stream]struct{}),
	}
	n.hosts[address] = h
	return h, nil
}

// Close ends the host as the end of its process does: all its streams break.
func (h *Host) Close() error {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	delete(h.net.hosts, h.address)
	for s := range h.streams {
		s.cut()
	}
	return h.Listener.Close()
}

// Dial opens a stream to the node at an address; ErrNoAnswer if there is none or
// the link is cut. It blocks until the stream is accepted or ctx ends.
func (h *Host) Dial(ctx context.Context, address string) (net.Conn, error) {
	h.net.mu.Lock()
	to := h.net.hosts[address]
	answers := to != nil && h.reaches(to)
	h.net.mu.Unlock()
	if !answers {
		return nil, fmt.Errorf("%w at %s", ErrNoAnswer, address)
	}
	conn, err := to.DialContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w at %s: %w", ErrNoAnswer, address, err)
	}
	s := &stream{Conn: conn, from: h, to: to, ended: make(chan struct{})}
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if !h.reaches(to) { // no longer
		return nil, errors.Join(fmt.Errorf("%w at %s", ErrNoAnswer, address), conn.Close())
	}
	h.streams[s], to.streams[s] = struct{}{}, struct{}{}
	return s, nil
}

// reaches tells whether both hosts run and the link carries both directions.
func (h *Host) reaches(to *Host) bool {
	return !h.closed && !to.closed && !h.net.isCut(h.node, to.node) && !h.net.isCut(to.node, h.node)
}

// stream is the end of a stream that dialled.
type stream struct {
	net.Conn
	from, to *Host
	ended    chan struct{} // closed with it; guarded by net.mu
}

// Read takes the delay of the link, so that what is sent takes time.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	timer := time.NewTimer(s.delay())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ended:
	}
	return n, err
}

// delay draws nothing from the generator: how many reads there are is chance.
func (s *stream) delay() time.Duration {
	n := s.from.net
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.opts.MaxDelay + n.slow[link{s.to.node, s.from.node}]
}

// Close ends the stream at both ends.
func (s *stream) Close() error {
	s.from.net.mu.Lock()
	defer s.from.net.mu.Unlock()
	s.cut()
	return nil
}

// cut ends the stream; the caller holds net.mu.
func (s *stream) cut() {
	if _, open := s.from.streams[s]; !open {
		return
	}
	delete(s.from.streams, s)
	delete(s.to.streams, s)
	close(s.ended)
	_ = s.Conn.Close() // of a pipe in memory, which cannot fail
}

// dropStreams ends the streams over cut links.
func (n *Network) dropStreams() {
	for _, h := range n.hosts {
		for s := range h.streams {
			if !s.from.reaches(s.to) {
				s.cut()
			}
		}
	}
}
