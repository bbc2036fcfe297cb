package client

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
)

// connections holds one connection per address. They connect at first use, stay
// and reconnect by themselves.
type connections struct {
	options Options

	mu     sync.Mutex
	byAddr map[string]*grpc.ClientConn
	// addresses are the configured endpoints, then those learnt from nodes.
	addresses []string
	turn      int
	closed    bool
}

func newConnections(o Options) *connections {
	c := &connections{options: o, byAddr: map[string]*grpc.ClientConn{}}
	for _, endpoint := range o.Endpoints {
		c.learn(endpoint)
	}
	return c
}

// maxAddresses bounds what is learnt from nodes: far more than a cluster has.
const maxAddresses = 256

// learn adds an address to those that calls go round.
func (c *connections) learn(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if address != "" && !slices.Contains(c.addresses, address) && len(c.addresses) < maxAddresses {
		c.addresses = append(c.addresses, address)
	}
}

// known returns all addresses, starting with another one at each call.
func (c *connections) known() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	turn := c.turn % len(c.addresses)
	c.turn++
	return slices.Concat(c.addresses[turn:], c.addresses[:turn])
}

// get returns the connection to an address.
func (c *connections) get(address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if conn := c.byAddr[address]; conn != nil {
		return conn, nil
	}
	o := c.options
	dialOptions := []grpc.DialOption{
		grpc.WithTransportCredentials(o.TransportCredentials),
		grpc.WithConnectParams(grpc.ConnectParams{
			// The client's own back-off rules between attempts; the
			// connection's is short so that a node that is back is found at
			// once.
			Backoff:           grpcbackoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: o.DialTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: o.Keepalive, Timeout: o.Keepalive}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxMessageBytes), grpc.MaxCallSendMsgSize(o.MaxMessageBytes)),
		// A retry by gRPC would not know what an uncertain outcome is.
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
	}
	if o.Dialer != nil {
		dialOptions = append(dialOptions, grpc.WithContextDialer(o.Dialer))
	}
	// passthrough: the address is resolved anew at each connect, by the dialer.
	conn, err := grpc.NewClient("passthrough:///"+address, append(dialOptions, o.DialOptions...)...)
	if err != nil {
		return nil, err
	}
	c.byAddr[address] = conn
	return conn, nil
}

// close closes all connections; none is made any more.
func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.byAddr {
		conn.Close()
	}
	clear(c.byAddr)
}
