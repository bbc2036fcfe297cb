package testcluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/streamraft/streamraft/internal/faultnet"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// images is what one run of a node sends and receives images with. They travel
// over streams of the network, which cuts and crashes break.
type images struct {
	run      *run
	host     *faultnet.Host
	server   *grpc.Server
	source   *snapshot.Source
	receiver *snapshot.Receiver
	serving  sync.WaitGroup
}

// newImages listens at the address of the node. Its limits are small, so that
// images of some 100 KB take many chunks, and a run of seconds many attempts.
func (m *member) newImages(r *run) (*images, error) {
	host, err := m.cluster.network.Host(m.name, m.address)
	if err != nil {
		return nil, err
	}
	i := &images{run: r, host: host}
	source := snapshot.SourceOptions{
		Provider: i, ChunkBytes: 4 << 10, KeepaliveEvery: 200 * time.Millisecond,
		SlowAfter: 500 * time.Millisecond, RetryAfter: 200 * time.Millisecond,
	}
	if tune := m.cluster.tuning.source; tune != nil {
		tune(m, &source)
	}
	i.source, err = snapshot.NewSource(source)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	receiver := snapshot.ReceiverOptions{
		WindowBytes: 64 << 10, BudgetBytes: 128 << 10, ChunkBytes: 32 << 10, ProgressBytes: 16 << 10,
		StallTimeout: time.Second, BackoffMin: 20 * time.Millisecond, BackoffMax: 500 * time.Millisecond,
		SourceLostAfter: 2 * time.Second, GiveUpAfter: 5 * time.Second,
		Dialer: i.dial,
	}
	if tune := m.cluster.tuning.receiver; tune != nil {
		tune(m, &receiver)
	}
	i.receiver, err = snapshot.NewReceiver(receiver)
	if err != nil {
		return nil, errors.Join(err, i.source.Close(), host.Close())
	}
	i.server = grpc.NewServer(append(snapshot.ServerOptions(), grpc.WaitForHandlers(true))...)
	i.source.Register(i.server)
	i.serving.Go(func() {
		// It ends with the host, in a crash or in close.
		_ = i.server.Serve(tappedListener{host, r})
	})
	return i, nil
}

func (i *images) options() *raftnode.SnapshotOptions {
	return &raftnode.SnapshotOptions{Receiver: i.receiver}
}

// close ends what is left; the node must be open still, or not at all.
func (i *images) close() error {
	err := i.host.Close()
	i.server.Stop()
	i.serving.Wait()
	return errors.Join(err, i.source.Close())
}

// Provide serves an image once the node is open. It implements
// snapshot.Provider.
func (i *images) Provide(ctx context.Context, req *snapshotv1.Open, progress func(done, total uint64)) (snapshot.OpenedImage, snapshot.Choice, error) {
	i.run.mu.Lock()
	node := i.run.node
	i.run.mu.Unlock()
	if node == nil {
		return nil, "", fmt.Errorf("%w: %s is starting", snapshot.ErrBusy, i.run)
	}
	image, choice, err := node.Provide(ctx, req, progress)
	i.run.unlessCrashed(func() {
		c := i.run.member.cluster
		c.checker.count(func(t *Totals) { t.ImageAttempts++ })
		c.trace.add("%s serves an image of group %d to %s, attempt %d: %s %v", i.run, req.GetGroup(), req.GetNode(), req.GetAttempt(), choice, err)
	})
	return image, choice, err
}

// dial connects to the source of an image.
func (i *images) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := i.host.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	if wrap := i.run.member.cluster.tuning.stream; wrap != nil {
		conn = wrap(i.run.member, conn)
	}
	return &receivingConn{conn, i.run}, nil
}

// receivingConn tells a trap of every piece that arrives.
type receivingConn struct {
	net.Conn
	run *run
}

// Read reads; a trap may crash the node that reads.
func (c *receivingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.run.meets(trapImageReceived)
	return n, err
}

// tappedListener tells a trap of every piece that is sent.
type tappedListener struct {
	*faultnet.Host
	run *run
}

// Accept waits for the next receiver.
func (l tappedListener) Accept() (net.Conn, error) {
	conn, err := l.Host.Accept()
	if err != nil {
		return nil, err
	}
	return &sendingConn{conn, l.run}, nil
}

type sendingConn struct {
	net.Conn
	run *run
}

// Write writes; a trap may crash the node right before.
func (c *sendingConn) Write(p []byte) (int, error) {
	c.run.meets(trapImageSent)
	return c.Conn.Write(p)
}

// stagedImage is a sink that remembers what it takes.
type stagedImage struct {
	snapshot.Sink
	manifest *snapshotv1.Manifest
	received func()
}

// Prepare prepares the image.
func (s *stagedImage) Prepare(ctx context.Context) error {
	s.received()
	return s.Sink.Prepare(ctx)
}

// Stage stages; the image must be of a state that some replica had.
func (m *machine) Stage(manifest *snapshotv1.Manifest, dir string) (snapshot.Sink, error) {
	sink, err := m.Store.Stage(manifest, dir)
	if err != nil {
		return nil, err
	}
	return &stagedImage{Sink: sink, manifest: manifest, received: func() {
		if f := m.run.member.cluster.tuning.received; f != nil {
			f(m.run.member, manifest, dir)
		}
	}}, nil
}

// Install installs and goes on behind the image. Its state must be one that was
// applied there by others, and newer than what is here: the results of the
// indexes from there on, and the digests, tell whether it was the same.
func (m *machine) Install(staged snapshot.Sink) error {
	s, ok := staged.(*stagedImage)
	if !ok {
		return fmt.Errorf("testcluster: a %T was not staged here", staged)
	}
	r, c := m.run, m.run.member.cluster
	index, term := s.manifest.GetIndex(), s.manifest.GetTerm()
	m.mu.Lock()
	next := m.next
	m.mu.Unlock()
	// Nobody tells of what a crashed node applies, nor may it be asked.
	if known, ok := c.checker.committedTerm(m.group, index); !c.reopened && !r.isCrashed() && (!ok || known != term) {
		c.checker.violation("%s installs a state of group %d at index %d, term %d; applied there was term %d", r, m.group, index, term, known)
	}
	if index < next && !c.goesBack {
		c.checker.violation("%s installs a state of group %d at index %d, but has applied %d", r, m.group, index, next-1)
	}
	if f := c.tuning.installs; f != nil {
		f(r.member)
	}
	r.meets(trapInstall)
	if err := c.refusedInstall(r.member, false); err != nil {
		return err
	}
	if err := m.Store.Install(s.Sink); err != nil {
		return err
	}
	if err := c.refusedInstall(r.member, true); err != nil {
		return err
	}
	m.mu.Lock()
	m.next = index + 1
	m.mu.Unlock()
	r.unlessCrashed(func() {
		from := s.manifest.GetFromIndex()
		c.trace.add("%s has installed an image of group %d from %d to %d, applied was %d", r, m.group, from, index, next-1)
		c.checker.count(func(t *Totals) {
			if from > 0 {
				t.DeltaInstalls++
			} else {
				t.FullInstalls++
			}
		})
	})
	r.meets(trapInstalled)
	return nil
}

// refusedInstall is the error that an installation is to end with.
func (c *cluster) refusedInstall(m *member, after bool) error {
	if c.refuseInstall == nil {
		return nil
	}
	return c.refuseInstall(m, after)
}
