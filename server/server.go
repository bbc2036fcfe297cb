package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"github.com/streamraft/streamraft/kv"
	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/raftnode/transport"
	"github.com/streamraft/streamraft/snapshot"
)

// Server is one running node. Methods may be called from any goroutine.
type Server struct {
	config  Config
	options Options
	log     *slog.Logger
	metrics *metrics

	listener, httpListener net.Listener
	transport              *startedTransport
	receiver               *snapshot.Receiver
	source                 *snapshot.Source
	pacer                  *snapshot.RatePacer
	foreground             *foreground
	imageCounters          *snapshot.Counters
	imageUsers             imageUsers
	saving                 atomic.Bool // an archive is being made
	shared                 *kv.Shared
	grpc                   *grpc.Server
	health                 *health.Server
	http                   *http.Server

	// node is nil until raftnode opened it, and stays after its end.
	node atomic.Pointer[raftnode.Node]

	// problems are why plans of membership changes have not gone on.
	problems planProblems
	// plansDue has an element when the plans are to be looked at.
	plansDue chan struct{}

	inflight *budget // writes of all clients, in bytes
	ranges   *budget // Ranges that are being read

	// changed has an element when a leader or membership changed.
	changed, directoryDue chan struct{}

	// calls is the context of what this node asks of others by itself; it ends
	// when the server begins to stop.
	calls      context.Context
	endCalls   context.CancelFunc
	stopping   chan struct{} // closed once the groups are closed by a stop
	quit       chan struct{} // closed to end the server's own goroutines
	draining   atomic.Bool   // not ready for good
	goroutines sync.WaitGroup
	receivers  sync.WaitGroup
	closeOnce  sync.Once
	closeErr   error

	failOnce sync.Once
	failed   chan struct{}
	failure  atomic.Pointer[error]
}

// startedTransport is the node's transport; it remembers the node it was
// started for, which tells who it is before raftnode.Open returns.
type startedTransport struct {
	*transport.GRPC
	handler atomic.Pointer[transport.Handler]
}

// Start implements transport.Transport.
func (t *startedTransport) Start(h transport.Handler) error {
	t.handler.Store(&h)
	return t.GRPC.Start(h)
}

// hello returns who the node is; nil before its directory was read.
func (t *startedTransport) hello() *raftv1.NodeHello {
	if h := t.handler.Load(); h != nil {
		return (*h).Hello()
	}
	return nil
}

// Open starts a node: it listens, opens the directory or founds the node there,
// and starts its groups. In an empty directory it blocks until all founders
// answered or ctx ends; Status, health and the HTTP pages answer meanwhile. ctx
// has no meaning after Open returned. When it returns, the node runs but need
// not be ready.
//
// Errors: a *ConfigError, a *ListenError, those of raftnode.Open. After an error
// nothing runs, and nothing was written unless raftnode.Open came to it.
func Open(ctx context.Context, config Config, options Options) (*Server, error) {
	options.EnsureDefaults()
	config.EnsureDefaults()
	s := &Server{
		config: config, options: options, log: options.Logger,
		listener: options.Listener, httpListener: options.HTTPListener,
		inflight: newBudget(int64(config.MaxInflightBytes)), ranges: newBudget(maxRanges),
		changed: make(chan struct{}, 1), directoryDue: make(chan struct{}, 1), plansDue: make(chan struct{}, 1),
		stopping: make(chan struct{}), quit: make(chan struct{}), failed: make(chan struct{}),
	}
	s.calls, s.endCalls = context.WithCancel(context.Background())
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// open does the work of Open; Close undoes what it did.
func (s *Server) open(ctx context.Context) (err error) {
	if err := errors.Join(s.config.Validate(), s.options.Validate()); err != nil {
		return err
	}
	if s.listener, err = listen(ctx, s.listener, "listen", s.config.Listen); err != nil {
		return err
	}
	if s.httpListener, err = listen(ctx, s.httpListener, "http_listen", s.config.HTTPListen); err != nil {
		return err
	}
	s.warnInsecure()
	if s.shared, err = s.newShared(); err != nil {
		return err
	}
	grpcTransport, err := transport.NewGRPC(transport.GRPCOptions{Logger: s.log})
	if err != nil {
		return err
	}
	s.transport = &startedTransport{GRPC: grpcTransport}
	if err := s.newImages(); err != nil {
		return err
	}
	// After what it shows, since others may look at the registry from now on.
	if s.metrics, err = newMetrics(s, s.options.Registry); err != nil {
		return err
	}
	s.serve()
	node, err := raftnode.Open(ctx, s.nodeOptions())
	if err != nil {
		return err
	}
	s.node.Store(node)
	s.goroutines.Go(func() { s.watchNode(node) })
	s.goroutines.Go(s.watchReadiness)
	s.goroutines.Go(s.keepDirectory)
	s.goroutines.Go(s.keepPlans)
	s.goroutines.Go(s.keepTransferLog)
	if err := s.join(ctx, node); err != nil {
		return err
	}
	s.log.Info("node is running", "name", s.config.Name, "address", s.Address(), "http", s.HTTPAddress(), "cluster", node.Status().ClusterID)
	return nil
}

// listen listens on an address, unless there is a listener already.
func listen(ctx context.Context, given net.Listener, key, address string) (net.Listener, error) {
	if given != nil {
		return given, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, &ListenError{Key: key, Address: address, Err: err}
	}
	return l, nil
}

// warnInsecure says loudly, at each start, that the node is open to its network.
func (s *Server) warnInsecure() {
	for _, l := range []net.Listener{s.listener, s.httpListener} {
		if host, _, err := net.SplitHostPort(l.Addr().String()); err == nil && !isLoopback(host) {
			s.log.Warn("INSECURE: this node listens beyond loopback without encryption or authentication; anyone who reaches it reads and writes all data",
				"address", l.Addr().String())
		}
	}
}

// newShared makes what the stores of the node share.
func (s *Server) newShared() (*kv.Shared, error) {
	cache := int64(s.config.CacheBytes)
	if cache == 0 {
		cache = autoCacheBytes()
	}
	return kv.NewShared(kv.SharedOptions{CacheBytes: cache, MemTableBytes: int64(s.config.MemtableBytes)})
}

// Address returns the address the node listens on for peers and clients.
func (s *Server) Address() string { return s.listener.Addr().String() }

// HTTPAddress returns the address of metrics, health and profiles.
func (s *Server) HTTPAddress() string { return s.httpListener.Addr().String() }

// Config returns the config with its defaults filled in.
func (s *Server) Config() Config { return s.config }

// Node returns the raft node.
func (s *Server) Node() *raftnode.Node { return s.node.Load() }

// Failed is closed when the node failed for good; Err says why. Status, metrics
// and health go on. Close the server, repair the cause and open a new one.
func (s *Server) Failed() <-chan struct{} { return s.failed }

// Err returns why the server failed, or nil.
func (s *Server) Err() error {
	if err := s.failure.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *Server) fail(err error) {
	s.failOnce.Do(func() {
		s.failure.Store(&err)
		close(s.failed)
		s.noteChange()
	})
}

// watchNode turns a failed node into a failed server.
func (s *Server) watchNode(node *raftnode.Node) {
	select {
	case <-node.Failed():
		s.fail(node.Err())
	case <-s.quit:
	}
}

// noteChange wakes who watches leaders and memberships; it never blocks.
func (s *Server) noteChange() {
	for _, c := range []chan struct{}{s.changed, s.directoryDue, s.plansDue} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Shutdown stops the node gracefully: it is no longer ready, hands its
// leaderships over, answers what it took, and ends all calls. What has not
// happened when ctx ends is cut short. Acknowledged writes are durable either
// way. The result is that of Close.
func (s *Server) Shutdown(ctx context.Context) error {
	s.closeOnce.Do(func() { s.closeErr = s.stop(ctx) })
	return s.closeErr
}

// Close stops the node at once, without handing leaderships over. It waits for
// every goroutine of the server, and may be called more than once.
func (s *Server) Close() error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	return s.Shutdown(ended)
}

// stop undoes what open did, as far as it came.
func (s *Server) stop(ctx context.Context) error {
	var errs []error
	s.draining.Store(true)
	s.endCalls()
	if s.health != nil {
		s.health.Shutdown() // clients that watch it go elsewhere
	}
	s.imageUsers.end() // they hold images of groups that close now
	if s.source != nil {
		errs = append(errs, s.source.Close()) // receivers go on elsewhere, or later
	}
	node := s.node.Load()
	switch {
	case node == nil:
	case ctx.Err() != nil:
		errs = append(errs, node.Close())
	default:
		s.log.Info("stopping", "name", s.config.Name)
		errs = append(errs, node.Shutdown(ctx))
	}
	if s.transport != nil {
		errs = append(errs, s.transport.Close())
	}
	close(s.stopping)
	close(s.quit)
	if s.grpc != nil {
		s.stopGRPC(ctx)
	} else if s.listener != nil {
		errs = append(errs, s.listener.Close())
	}
	s.receivers.Wait()
	if s.http != nil {
		// Scrapes are short; profiles are not worth waiting for.
		errs = append(errs, s.http.Close())
	} else if s.httpListener != nil {
		errs = append(errs, s.httpListener.Close())
	}
	s.goroutines.Wait()
	if s.shared != nil {
		if err := s.shared.Close(); err != nil && s.Err() == nil && !s.storeFailed() {
			errs = append(errs, err)
		}
	}
	if s.metrics != nil {
		s.metrics.unregister()
	}
	return errors.Join(errs...)
}

// stopGRPC lets running calls end until ctx ends, then cuts them.
func (s *Server) stopGRPC(ctx context.Context) {
	done := make(chan struct{})
	s.goroutines.Go(func() {
		defer close(done)
		s.grpc.GracefulStop()
	})
	// Everything is answered by now; what is left is the network.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
	}
}

// storeFailed tells whether a state machine failed; it keeps the shared caches.
func (s *Server) storeFailed() bool {
	for _, r := range s.replicas() {
		if r.store.Err() != nil {
			return true
		}
	}
	return false
}

// replicas returns all replicas that hold records; none before the node is
// open.
func (s *Server) replicas() []replica {
	node := s.node.Load()
	if node == nil {
		return nil
	}
	var list []replica
	for _, g := range node.Groups() {
		if store, ok := g.StateMachine().(*kv.Store); ok {
			list = append(list, replica{group: g, store: store})
		}
	}
	return list
}

// nodeOptions makes raftnode's options from the config.
func (s *Server) nodeOptions() raftnode.Options {
	c := &s.config
	founders, join := c.Cluster, c.joinOptions()
	if join != nil {
		founders = nil
	}
	return raftnode.Options{
		Node: c.Name, Dir: c.DataDir, FS: s.options.FS, Founders: founders, Join: join, Address: c.Advertise,
		NewStateMachine: s.newStateMachine, Transport: s.transport,
		TickInterval: c.TickInterval, HeartbeatTicks: c.HeartbeatTicks, ElectionTicks: c.ElectionTicks,
		MaxCommandBytes: int(max(c.LimitTxn, c.LimitKey+c.LimitValue)) + commandOverhead,
		// Above what this server lets in, so that its own bound decides and
		// writes wait instead of being refused.
		MaxPendingBytes: int64(c.MaxInflightBytes) + 16<<20,
		LogBudgetBytes:  int64(c.LogBudget), LogSegmentBytes: int64(c.LogSegmentBytes),
		DiskReserveBytes: int64(c.DiskReserve),
		Snapshots:        s.snapshotOptions(),
		Logger:           s.log,
		Listener: raftnode.Tee(s.options.Events, raftnode.EventListener{
			LeaderChanged: func(l raftnode.LeaderInfo) {
				s.metrics.leaderChanges.WithLabelValues(fmt.Sprint(l.Group)).Inc()
				s.noteChange()
			},
			MembershipApplied: func(raftnode.MembershipInfo) { s.noteChange() },
			Removed:           func(string) { s.noteChange() },
			GroupFailed:       func(uint64, error) { s.noteChange() },
			NoSpace:           func(bool, uint64) { s.noteChange() },
			Committed: func(group uint64, took time.Duration) {
				s.foreground.committed(took)
				s.metrics.commit.WithLabelValues(id(group)).Observe(took.Seconds())
			},
			LogSynced: func(d time.Duration, bytes int) {
				s.foreground.synced(d)
				s.metrics.logSync.Observe(d.Seconds())
				s.metrics.logSyncBytes.Observe(float64(bytes))
			},
		}),
	}
}

// commandOverhead is what a command has beside a limited part: tags, lengths
// and a client session.
const commandOverhead = 4 << 10

// newStateMachine makes the state machine of a group.
func (s *Server) newStateMachine(group uint64) raftnode.StateMachine {
	c := &s.config
	store, err := kv.New(kv.Options{
		FS: s.options.FS, Shared: s.shared, Group: group, Logger: s.log,
		Limits:      kv.Limits{KeyBytes: int(c.LimitKey), ValueBytes: int(c.LimitValue), TxnBytes: int(c.LimitTxn)},
		Compression: c.Compression, JournalBytes: int64(c.JournalBytes),
		MemTableBytes: int(min(c.MemtableBytes, 64<<20)),
	})
	if err != nil {
		return brokenMachine{err: err}
	}
	return store
}

// brokenMachine stands for a state machine that could not be made; its Open
// tells why.
type brokenMachine struct {
	raftnode.StateMachine
	err error
}

// Open returns the error.
func (m brokenMachine) Open(string) (raftnode.Applied, error) { return raftnode.Applied{}, m.err }
