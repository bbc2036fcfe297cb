package localcluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports are taken from this range: above the well-known ones, and below those
// that any system hands to outgoing connections (Linux: from 32768), one of
// which could otherwise sit on a node's port while the node is down.
const (
	lowestPort  = 10240
	highestPort = 32767
)

// portAttempts bounds the search for a free port.
const portAttempts = 1000

// port is a port of one node, held by a listener until the node needs it. It is
// claimed for as long as the cluster lives: while its node is down nothing listens
// there, as on a machine that is off, and yet no other cluster may take it. The
// claim is the UDP port of the same number, which nodes do not use.
type port struct {
	address string
	held    net.Listener
	claim   net.PacketConn
}

// holdPort finds a free port of loopback and holds it.
func holdPort() (*port, error) {
	var errs error
	for range portAttempts {
		p, err := claimPort(fmt.Sprintf("127.0.0.1:%d", lowestPort+rand.IntN(highestPort-lowestPort+1)))
		if err == nil {
			return p, nil
		}
		errs = err
	}
	return nil, fmt.Errorf("no free port on 127.0.0.1 in %d..%d: %w", lowestPort, highestPort, errs)
}

// claimPort claims and holds a port, if nobody has it.
func claimPort(address string) (*port, error) {
	claim, err := net.ListenPacket("udp", address)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, errors.Join(err, claim.Close())
	}
	return &port{address: address, held: listener, claim: claim}, nil
}

// free gives up the claim, and the port.
func (p *port) free() error {
	err := p.release()
	if claim := p.claim; claim != nil {
		p.claim = nil
		err = errors.Join(err, claim.Close())
	}
	return err
}

// release lets the node have the port; more than once does nothing.
func (p *port) release() error {
	if p.held == nil {
		return nil
	}
	held := p.held
	p.held = nil
	if err := held.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("release %s: %w", p.address, err)
	}
	return nil
}
