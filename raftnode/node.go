package raftnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/durable"
	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode/raftlog"
	"github.com/streamraft/streamraft/raftnode/transport"
)

// Node is one member process: its identity, its log, and a replica of each of
// its groups. Several may live in one process, in different directories.
// Methods may be called from any goroutine.
type Node struct {
	opts            Options
	log             *slog.Logger
	dir             directory
	lock            io.Closer
	transport       transport.Transport
	connected       bool // the transport was started
	protocolVersion uint32

	identityMu sync.Mutex
	identity   *identity

	logStore *raftlog.Log
	appender *appender
	// groups is set once, before anything runs that reads it.
	groups  map[uint64]*Group
	ordered []*Group
	ready   atomic.Bool // groups may be given messages

	spaceMu      sync.Mutex  // of changes of the two flags
	belowReserve atomic.Bool // less than the reserve is free
	logWaits     atomic.Bool // the log waits for space
	diskUsage    atomic.Pointer[vfs.DiskUsage]

	stop      chan struct{} // closed when the node stops or failed
	stopOnce  sync.Once
	failedCh  chan struct{}
	failure   atomic.Pointer[error]
	goroutine sync.WaitGroup
	flushes   sync.WaitGroup
	closed    atomic.Bool
	closeOnce sync.Once
	closeErr  error

	// opened is when Open was called; see age.
	opened time.Time
	// removed tells that no replica of this node is a member any more.
	removed atomic.Bool

	peersMu sync.Mutex
	peers   map[string]string // node -> address, as given to the transport
}

// Open opens the node in o.Dir, or founds it there, and starts its groups.
//
// For an empty directory it blocks until all founders answered, or ctx ends;
// ctx has no meaning after Open returned. When Open returns, the groups run but
// may not have a leader yet.
//
// Errors: ErrLocked, ErrRefused, ErrVersion, ErrDataLoss, a *raftlog.CorruptError,
// those of the file system and of the state machines. After an error nothing
// runs and the directory is not locked any more.
func Open(ctx context.Context, o Options) (*Node, error) {
	o.Groups, o.Founders = slices.Clone(o.Groups), slices.Clone(o.Founders)
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Listener.ensureDefaults()
	n := &Node{
		opts: o, log: o.Logger.With("node", o.Node), dir: directory{o.FS, o.Dir},
		transport: o.Transport, protocolVersion: transport.ProtocolVersion,
		stop: make(chan struct{}), failedCh: make(chan struct{}), peers: make(map[string]string), opened: time.Now(),
	}
	n.appender = newAppender(n)
	if err := n.open(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// open does the work of Open; Close undoes what it did.
func (n *Node) open(ctx context.Context) error {
	if err := durable.MkdirAll(n.opts.FS, n.opts.Dir); err != nil {
		return fmt.Errorf("raftnode: make the directory: %w", err)
	}
	lock, err := lockDirectory(n.dir)
	if err != nil {
		return err
	}
	n.lock = lock
	groups := n.opts.Groups
	if n.opts.Join != nil {
		groups = nil // those of the cluster, which it is yet to hear of
	}
	if n.identity, err = loadIdentity(n.dir, n.opts.Node, groups); err != nil {
		return err
	}
	if err := n.transport.Start(n); err != nil {
		return fmt.Errorf("raftnode: start the transport: %w", err)
	}
	n.connected = true
	if !n.identity.founded() {
		if record := n.identity.founding; record != nil && n.standsIn(record) {
			err = n.takeFounding(record) // a crash came between the two files
		} else if n.opts.Join != nil {
			err = n.join(ctx)
		} else {
			err = n.found(ctx)
		}
		if err != nil {
			return err
		}
	}
	if err := n.renewJoin(); err != nil {
		return err
	}
	if err := n.openLog(); err != nil {
		return err
	}
	if err := n.openGroups(); err != nil {
		return err
	}
	n.start()
	return nil
}

// lockDirectory takes a directory for this process alone.
func lockDirectory(dir directory) (io.Closer, error) {
	lock, err := dir.fs.Lock(dir.lockFile())
	switch {
	case errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.ENOLCK):
		return nil, fmt.Errorf("raftnode: lock %s: %w; see to it that this process may write there", dir.lockFile(), err)
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %w; stop that node, or use another directory", ErrLocked, dir.path, err)
	}
	return lock, nil
}

// openLog opens the log store and gives every group its first batch, once.
func (n *Node) openLog() error {
	var err error
	if err = durable.MkdirAll(n.opts.FS, n.dir.log()); err != nil {
		return fmt.Errorf("raftnode: make the log directory: %w", err)
	}
	n.logStore, err = raftlog.Open(raftlog.Options{
		FS: n.opts.FS, Dir: n.dir.log(), SegmentBytes: n.opts.LogSegmentBytes, MaxBatchBytes: n.opts.maxBatchBytes(),
		CacheBytes: n.opts.LogCacheBytes, Logger: n.log, OnSync: n.opts.Listener.LogSynced,
	})
	if err != nil {
		return fmt.Errorf("raftnode: open the log: %w", err)
	}
	var first []raftlog.Update
	for _, r := range n.identity.replicas {
		logs := n.logStore.Group(r.GetGroup())
		if logs.LastIndex() > 0 || logs.HardState().GetTerm() > 0 {
			continue
		}
		if n.identity.node.GetStarted() {
			return fmt.Errorf("%w: the log in %s has nothing of group %d, which this node belongs to; its votes are lost, so it must not take part again. Bring the log back, or replace the node", ErrDataLoss, n.dir.log(), r.GetGroup())
		}
		if n.identity.node.GetJoin() != nil {
			first = append(first, raftlog.Update{Group: r.GetGroup(), HardState: joiningHardState()})
			continue
		}
		entries, err := foundingEntries(n.identity.founding, r.GetGroup())
		if err != nil {
			return err
		}
		first = append(first, raftlog.Update{
			Group: r.GetGroup(), Entries: entries,
			HardState: foundingHardState(len(entries)),
		})
	}
	for _, group := range n.logStore.Groups() {
		if _, ok := replicaIDOf(n.identity.replicas, group); !ok {
			return fmt.Errorf("%w: the log in %s holds group %d, but the node has no replica of it; bring %s back, or replace the node", ErrDataLoss, n.dir.log(), group, n.dir.group(group))
		}
	}
	if len(first) > 0 {
		if err := n.logStore.Append(first, true); err != nil {
			return fmt.Errorf("raftnode: write the first log batch: %w", err)
		}
	}
	n.identityMu.Lock()
	defer n.identityMu.Unlock()
	return n.identity.started(n.dir)
}

// openGroups opens the state machines and makes the replicas.
func (n *Node) openGroups() error {
	n.groups = make(map[uint64]*Group)
	for _, r := range n.identity.replicas {
		g, err := n.openGroup(r.GetGroup(), r.GetRaftId())
		if err != nil {
			return err
		}
		n.groups[g.id] = g
		n.ordered = append(n.ordered, g)
	}
	slices.SortFunc(n.ordered, func(a, b *Group) int { return int(int64(a.id) - int64(b.id)) })
	return nil
}

// start runs the node's goroutines.
func (n *Node) start() {
	n.addKnownPeers()
	n.goroutine.Go(n.appender.run)
	for _, g := range n.ordered {
		g.goroutine.Go(g.run)
		g.goroutine.Go(g.applier.run)
	}
	n.ready.Store(true)
	n.goroutine.Go(n.runTicks)
	n.goroutine.Go(n.runMaintenance)
}

func (n *Node) addPeer(node, address string, override bool) {
	if node == n.opts.Node {
		return
	}
	n.peersMu.Lock()
	defer n.peersMu.Unlock()
	if _, ok := n.peers[node]; ok && !override {
		return
	}
	n.peers[node] = address
	n.transport.SetPeer(node, address)
}

// setMembers publishes an applied membership.
func (g *Group) setMembers(m *raftv1.Membership) {
	old := g.members.Swap(m)
	g.node.followMembership(old, m)
	g.node.noticeOwnRemoval()
}

// runTicks gives every group its ticks.
func (n *Node) runTicks() {
	ticks, stop := n.opts.Clock.NewTicker(n.opts.TickInterval)
	defer stop()
	for {
		select {
		case <-n.stop:
			return
		case <-ticks:
			for _, g := range n.ordered {
				g.mailbox.putTick()
			}
		}
	}
}

// Receive takes messages from a peer; part of transport.Handler.
func (n *Node) Receive(from string, messages []transport.GroupMessage) {
	if !n.ready.Load() || n.failed() {
		return
	}
	for _, m := range messages {
		// A message to another raft id is for a replica that was here before.
		g := n.groups[m.Group]
		if g == nil || m.Message.GetTo() != g.raftID {
			continue
		}
		if g.isRemoved(m.Message.GetFrom()) {
			n.dropPeer(from) // it comes again, and is told why it is refused
			continue
		}
		g.routes.learn(g, m.Message.GetFrom(), from)
		g.mailbox.putReceived(m.Message)
	}
}

// Unreachable tells raft that messages to a node were dropped; part of
// transport.Handler.
func (n *Node) Unreachable(node string) {
	if !n.ready.Load() {
		return
	}
	for _, g := range n.ordered {
		for _, r := range g.members.Load().GetReplicas() {
			if r.GetNode() == node {
				g.mailbox.putUnreachable(r.GetRaftId())
			}
		}
	}
}

// Group returns the node's replica of a group, or ErrUnknownGroup.
func (n *Node) Group(id uint64) (*Group, error) {
	if g, ok := n.groups[id]; ok {
		return g, nil
	}
	return nil, fmt.Errorf("%w: node %s has no replica of group %d", ErrUnknownGroup, n.opts.Node, id)
}

// Groups returns all replicas of the node, by group id.
func (n *Node) Groups() []*Group { return slices.Clone(n.ordered) }

// Failed is closed when the node failed for good: its log cannot be written.
// It neither ticks, sends, acknowledges nor steps any more; Err tells why.
// Status and Metrics go on from the last figures. Close it and open a new one.
func (n *Node) Failed() <-chan struct{} { return n.failedCh }

// Err returns why the node failed, or nil.
func (n *Node) Err() error {
	if err := n.failure.Load(); err != nil {
		return *err
	}
	return nil
}

func (n *Node) failed() bool { return n.failure.Load() != nil }

// fail stops everything at once: a failed leader that went on with heartbeats
// would keep its office and the group would make no progress.
func (n *Node) fail(err error) {
	if !n.failure.CompareAndSwap(nil, &err) {
		return
	}
	n.halt() // before anything that could block, like a log on the dead disk
	close(n.failedCh)
	n.log.Error("node failed for good; repair the cause and start it again", "error", err)
	n.opts.Listener.NodeFailed(err)
}

// halt ends the node's goroutines; it does not wait.
func (n *Node) halt() {
	n.stopOnce.Do(func() {
		close(n.stop)
		for _, g := range n.ordered {
			g.stop()
		}
	})
}

// Close stops the node at once and frees everything; what was acknowledged is
// durable anyway. Proposals that wait end with ErrUncertain or ErrClosed. To
// hand leaderships over first, call Shutdown. It waits for the node's
// goroutines and may be called more than once.
func (n *Node) Close() error {
	n.closeOnce.Do(func() {
		n.closed.Store(true)
		n.halt()
		var errs []error
		if n.connected {
			errs = append(errs, n.transport.Close())
		}
		n.goroutine.Wait()
		for _, g := range n.ordered {
			g.goroutine.Wait()
			if g.images != nil {
				errs = append(errs, g.images.Close())
			}
			errs = append(errs, g.closeMachine())
		}
		// Only now: on a full disk a flush ends no sooner than its machine.
		n.flushes.Wait()
		if n.logStore != nil {
			if err := n.logStore.Close(); err != nil && !n.failed() {
				errs = append(errs, fmt.Errorf("raftnode: close the log: %w", err))
			}
		}
		if n.lock != nil {
			errs = append(errs, n.lock.Close())
		}
		n.closeErr = errors.Join(errs...)
	})
	return n.closeErr
}
