package transport

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// GRPC is the Transport between real nodes. Make it with NewGRPC, register it
// on the node's server, then Start it; until then peers are told to come back.
type GRPC struct {
	opts     GRPCOptions
	ctx      context.Context // ends at Close
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	notifier *notifier

	// peers is replaced, never changed, so that Send takes no lock to read it.
	peers atomic.Pointer[map[string]*peer]

	mu       sync.Mutex
	handler  Handler
	closed   bool
	inbound  map[*inbound]struct{}      // all accepted streams, in handshake too
	accepted map[inboundKey]*inbound    // those whose hello was accepted
	received map[inboundKey]*laneCounts // kept over reconnects
	refusals map[string]string          // last refusal told to a node
	unknown  map[string]uint64          // messages dropped for nodes without an address
}

var _ Transport = (*GRPC)(nil)

// NewGRPC makes a transport. It starts nothing; Close it anyway. The error names
// the option that is out of range.
func NewGRPC(opts GRPCOptions) (*GRPC, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	t := &GRPC{
		opts:     opts,
		notifier: newNotifier(),
		inbound:  make(map[*inbound]struct{}),
		accepted: make(map[inboundKey]*inbound),
		received: make(map[inboundKey]*laneCounts),
		refusals: make(map[string]string),
		unknown:  make(map[string]uint64),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.peers.Store(&map[string]*peer{})
	return t, nil
}

// Register registers RaftService on the server that is the node's one port.
// Call it before the server serves. The server must have been made with at
// least the limits of ServerOptions.
func (t *GRPC) Register(r grpc.ServiceRegistrar) {
	raftv1.RegisterRaftServiceServer(r, &service{t: t})
}

// ServerOptions are what the server needs to carry RaftService: the message
// limit, the flow-control windows in which peers send, and keepalive that
// agrees with what peers do. Other options may be added, or set them higher.
func (t *GRPC) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxWireBytes),
		grpc.InitialWindowSize(t.opts.WindowBytes),
		grpc.InitialConnWindowSize(t.opts.WindowBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time:    t.opts.KeepaliveTime,
			Timeout: t.opts.KeepaliveTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             t.opts.KeepaliveTime / 2,
			PermitWithoutStream: true,
		}),
	}
}

// Start implements Transport.
func (t *GRPC) Start(h Handler) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return ErrClosed
	case t.handler != nil:
		return ErrStarted
	}
	t.handler = h
	t.wg.Go(func() { t.notifier.run(t.ctx, h) })
	return nil
}

// enter lets a goroutine in that Close has to wait for; it calls t.wg.Done.
func (t *GRPC) enter() (Handler, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, ErrClosed
	case t.handler == nil:
		return nil, ErrNotStarted
	}
	t.wg.Add(1)
	return t.handler, nil
}

// SetPeer implements Transport. Before Start and after Close it does nothing.
func (t *GRPC) SetPeer(node, address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.handler == nil {
		return
	}
	delete(t.unknown, node)
	old := *t.peers.Load()
	if p, ok := old[node]; ok {
		p.setAddress(address)
		return
	}
	p := newPeer(t, t.handler, node, address)
	peers := maps.Clone(old)
	peers[node] = p
	t.peers.Store(&peers)
	for _, l := range p.lanes {
		t.wg.Go(l.run)
	}
}

// RemovePeer implements Transport. Accepted streams from the node are closed
// too; whether it may come back is for Handler.CheckHello to say.
func (t *GRPC) RemovePeer(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.peers.Load()
	if p, ok := old[node]; ok {
		peers := maps.Clone(old)
		delete(peers, node)
		t.peers.Store(&peers)
		p.cancel()
	}
	for key, in := range t.accepted {
		if key.node == node {
			in.halt(fmt.Errorf("node %q was removed from the peers of this node", node))
		}
	}
	maps.DeleteFunc(t.received, func(key inboundKey, _ *laneCounts) bool { return key.node == node })
	delete(t.refusals, node)
	delete(t.unknown, node)
}

// Send implements Transport. A message that must not travel (see CheckMessage)
// is dropped, counted and logged.
func (t *GRPC) Send(node string, m GroupMessage) {
	p, ok := (*t.peers.Load())[node]
	if !ok {
		t.sendUnknown(node)
		return
	}
	l := p.lane(LaneOf(m.Message))
	if err := CheckMessage(m); err != nil {
		l.unsendable(err)
		return
	}
	if l.queue.push(m) {
		t.notifier.tell(node)
	}
}

// sendUnknown drops a message for a node without an address, and tells so once
// until the node gets one.
func (t *GRPC) sendUnknown(node string) {
	// Names come from the cluster's membership; the bound is against a caller's
	// mistake.
	const bound = 4096
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.handler == nil {
		return
	}
	n, told := t.unknown[node]
	if !told && len(t.unknown) >= bound {
		clear(t.unknown)
	}
	t.unknown[node] = n + 1
	if !told {
		t.notifier.tell(node)
	}
}

// Hello implements Transport. The error is ErrNotStarted, ErrClosed, or wraps
// the gRPC status of the call.
func (t *GRPC) Hello(ctx context.Context, address string) (*raftv1.NodeHello, error) {
	h, err := t.enter()
	if err != nil {
		return nil, err
	}
	defer t.wg.Done()
	ctx, cancel := context.WithTimeout(ctx, t.opts.HandshakeTimeout)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()

	conn, err := t.dial(address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	resp, err := raftv1.NewRaftServiceClient(conn).Hello(ctx, &raftv1.HelloRequest{Hello: h.Hello()})
	switch {
	case t.ctx.Err() != nil:
		return nil, ErrClosed
	case err != nil:
		return nil, fmt.Errorf("transport: ask the node at %s who it is: %w", address, err)
	case resp.GetHello() == nil:
		return nil, fmt.Errorf("%w: the node at %s said no hello", ErrMalformed, address)
	}
	return resp.GetHello(), nil
}

// dial makes a client connection, which connects at its first call.
func (t *GRPC) dial(address string) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(t.opts.TransportCredentials),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		// What was lost is raft's to repeat, later and in its newest form.
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithInitialWindowSize(t.opts.WindowBytes),
		grpc.WithInitialConnWindowSize(t.opts.WindowBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time:                t.opts.KeepaliveTime,
			Timeout:             t.opts.KeepaliveTimeout,
			PermitWithoutStream: true,
		}),
		// A connection makes one attempt and is thrown away; the lane does the
		// backing off, and its own time-out comes first.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 2 * t.opts.HandshakeTimeout}),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(MaxHelloBytes+1024),
			grpc.MaxCallSendMsgSize(MaxWireBytes),
		),
	}
	if t.opts.Dialer != nil {
		opts = append(opts, grpc.WithContextDialer(t.opts.Dialer))
	}
	conn, err := grpc.NewClient("passthrough:///"+address, append(opts, t.opts.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("transport: address %q: %w", address, err)
	}
	return conn, nil
}

// ResetConnections implements Transport.
func (t *GRPC) ResetConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range *t.peers.Load() {
		p.kick()
	}
	for in := range t.inbound {
		in.halt(errReset)
	}
}

// Close implements Transport. The server RaftService is registered on stays
// open, it is the caller's; peers are told that this node closes.
func (t *GRPC) Close() error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		t.peers.Store(&map[string]*peer{})
		t.cancel()
		for in := range t.inbound {
			in.halt(ErrClosed)
		}
	}
	t.mu.Unlock()
	t.wg.Wait()
	return nil
}
