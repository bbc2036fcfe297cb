package proctest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// relay passes TCP connections on to a node, counts what the node sends, and can
// cut a connection as a cable is cut.
type relay struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	links  []*link
}

// link is one connection through a relay.
type link struct {
	near, far net.Conn
	sent      uint64 // by the node; under relay.mu, as isCut
	isCut     bool
}

func (l *link) cut() {
	l.near.Close()
	l.far.Close()
}

// startRelay starts a relay to an address and returns it with its own address.
func startRelay(t *testing.T, target string) (r *relay, address string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	r = &relay{listener: listener, target: target}
	r.running.Go(r.accept)
	t.Cleanup(r.close)
	return r, listener.Addr().String(), nil
}

func (r *relay) accept() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", r.target)
		if err != nil {
			near.Close() // the node is down
			continue
		}
		l := &link{near: near, far: far}
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			l.cut()
			return
		}
		r.links = append(r.links, l)
		r.running.Go(func() { defer l.cut(); _, _ = io.Copy(far, near) })
		r.running.Go(func() { defer l.cut(); _, _ = io.Copy(near, io.TeeReader(far, counter{r, l})) })
		r.mu.Unlock()
	}
}

type counter struct {
	r *relay
	l *link
}

func (c counter) Write(p []byte) (int, error) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.l.sent += uint64(len(p))
	return len(p), nil
}

// bulkyLink is the number of bytes from which on a connection is one of an image:
// raft's own carry little in the tests that use a relay.
const bulkyLink = 1 << 20

// bulky returns the bytes that went over connections that carry an image.
func (r *relay) bulky() (sent uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.links {
		if l.sent >= bulkyLink {
			sent += l.sent
		}
	}
	return sent
}

// forget counts anew.
func (r *relay) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.links {
		l.sent = 0
	}
}

// cutBulky cuts the connections that carry an image.
func (r *relay) cutBulky() (cut int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.links {
		if l.sent >= bulkyLink && !l.isCut {
			l.cut()
			l.isCut = true
			cut++
		}
	}
	return cut
}

func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	for _, l := range r.links {
		l.cut()
	}
	r.mu.Unlock()
	r.listener.Close()
	r.running.Wait()
}
