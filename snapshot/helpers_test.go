package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// content of an image: file name to bytes.
type content map[string][]byte

// randomContent returns files of the given sizes that do not compress.
func randomContent(seed uint64, sizes ...int) content {
	rng := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	c := content{}
	for i, size := range sizes {
		data := make([]byte, size)
		if _, err := rng.Read(data); err != nil {
			panic(err)
		}
		c[fmt.Sprintf("%06d.sst", i)] = data
	}
	return c
}

func (c content) bytes() (n uint64) {
	for _, data := range c {
		n += uint64(len(data))
	}
	return n
}

// fakeCapture writes a content as an image.
type fakeCapture struct {
	fsys     vfs.FS
	content  content
	manifest *snapshotv1.Manifest // what is set in the result
	verified bool
	gate     chan struct{} // Write waits until it is closed, if not nil
	closed   atomic.Int64
}

func (c *fakeCapture) Write(ctx context.Context, dir string) (*snapshotv1.Manifest, error) {
	if c.gate != nil {
		select {
		case <-c.gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	m := &snapshotv1.Manifest{Kind: snapshotv1.Kind_KIND_FILES, Index: 100, Term: 3}
	if c.manifest != nil {
		m = &snapshotv1.Manifest{
			Kind: c.manifest.Kind, Index: c.manifest.Index, Term: c.manifest.Term,
			FromIndex: c.manifest.FromIndex, FromTerm: c.manifest.FromTerm, Schema: c.manifest.Schema,
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.content)) {
		data := c.content[name]
		if err := writeTestFile(c.fsys, c.fsys.PathJoin(dir, name), data); err != nil {
			return nil, err
		}
		m.Files = append(m.Files, &snapshotv1.File{Name: name, Size: uint64(len(data)), Digest: xxhash.Sum64(data), Verified: c.verified})
		m.Bytes += uint64(len(data))
	}
	return m, nil
}

func (c *fakeCapture) Close() error {
	c.closed.Add(1)
	return nil
}

func writeTestFile(fsys vfs.FS, path string, data []byte) error {
	f, err := fsys.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(bytes.Clone(data)) // which may change it
	return errors.Join(err, f.Sync(), f.Close())
}

func readTestFile(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	return data, errors.Join(err, f.Close())
}

// fakeStager takes images and compares them with what they should be.
type fakeStager struct {
	fsys vfs.FS
	want content // nil: any

	checks, prepares, discards atomic.Int64
	stageErr, checkErr         func() error
	prepareErr                 func() error
}

type fakeSink struct {
	s        *fakeStager
	dir      string
	manifest *snapshotv1.Manifest
}

func (s *fakeStager) Stage(m *snapshotv1.Manifest, dir string) (Sink, error) {
	if s.stageErr != nil {
		if err := s.stageErr(); err != nil {
			return nil, err
		}
	}
	return &fakeSink{s, dir, m}, nil
}

func (s *fakeStager) Install(Sink) error { return nil }

func (k *fakeSink) CheckFile(_ context.Context, name string, _ bool) error {
	k.s.checks.Add(1)
	if k.s.checkErr != nil {
		if err := k.s.checkErr(); err != nil {
			return err
		}
	}
	return k.compare(name)
}

func (k *fakeSink) compare(name string) error {
	data, err := readTestFile(k.s.fsys, k.s.fsys.PathJoin(k.dir, name))
	if err != nil {
		return err
	}
	if want, ok := k.s.want[name]; k.s.want != nil && (!ok || !bytes.Equal(data, want)) {
		return fmt.Errorf("%w: file %q has %d bytes, not those of the source", ErrCorrupt, name, len(data))
	}
	return nil
}

func (k *fakeSink) Prepare(context.Context) error {
	k.s.prepares.Add(1)
	if k.s.prepareErr != nil {
		if err := k.s.prepareErr(); err != nil {
			return err
		}
	}
	names, err := k.s.fsys.List(k.dir)
	if err != nil {
		return err
	}
	if len(names) != len(k.manifest.Files) {
		return fmt.Errorf("%w: %d files, not %d: %q", ErrCorrupt, len(names), len(k.manifest.Files), names)
	}
	for _, f := range k.manifest.Files {
		if err := k.compare(f.Name); err != nil {
			return err
		}
	}
	return nil
}

func (k *fakeSink) Discard() error {
	k.s.discards.Add(1)
	return nil
}

// fakeNode is a Provider over Images.
type fakeNode struct {
	images  *Images
	capture CaptureFunc
}

func (n *fakeNode) Provide(ctx context.Context, req *snapshotv1.Open, _ func(done, total uint64)) (OpenedImage, Choice, error) {
	image, choice, err := n.images.Provide(ctx, req, n.capture)
	if err != nil {
		return nil, choice, err
	}
	return image, choice, nil
}

// testSource is a node that serves, on connections in memory.
type testSource struct {
	t        testing.TB
	fsys     vfs.FS
	content  content
	verified bool
	opts     SourceOptions
	counters *Counters
	captures atomic.Int64

	source   *Source
	images   *Images
	server   *grpc.Server
	serving  sync.WaitGroup
	listener atomic.Pointer[bufconn.Listener]
	conns    sync.Map // net.Conn of receivers
	wrap     func(net.Conn) net.Conn
	extra    []grpc.ServerOption
}

func newTestSource(t testing.TB, c content) *testSource {
	return &testSource{t: t, fsys: vfs.NewMem(), content: c, counters: new(Counters)}
}

func (s *testSource) start() *testSource {
	s.t.Helper()
	images, err := OpenImages(ImagesOptions{FS: s.fsys, Dir: "images", ClusterID: []byte("cluster"), HistoryEpoch: 1, Group: 7, Counters: s.counters})
	if err != nil {
		s.t.Fatal(err)
	}
	s.images = images
	opts := s.opts
	opts.Logger = testLogger()
	opts.Counters = s.counters
	if opts.Provider == nil {
		opts.Provider = &fakeNode{images, func(context.Context, Have, uint64) (Capture, error) {
			s.captures.Add(1)
			return &fakeCapture{fsys: s.fsys, content: s.content, verified: s.verified}, nil
		}}
	}
	s.source, err = NewSource(opts)
	if err != nil {
		s.t.Fatal(err)
	}
	s.server = grpc.NewServer(append(append(ServerOptions(), grpc.WaitForHandlers(true)), s.extra...)...)
	s.source.Register(s.server)
	l := bufconn.Listen(1 << 20)
	s.serving.Go(func() { s.server.Serve(l) })
	s.listener.Store(l)
	return s
}

func (s *testSource) stop() {
	s.listener.Store(nil)
	s.cut()
	s.server.Stop()
	s.serving.Wait()
	if err := s.source.Close(); err != nil {
		s.t.Error(err)
	}
	if err := s.images.Close(); err != nil {
		s.t.Error(err)
	}
}

// awaitIdle waits until the source knows that its attempts have ended.
func (s *testSource) awaitIdle() {
	s.t.Helper()
	poll(s.t, func() bool { return len(s.source.Sends()) == 0 })
}

// poll waits until a condition holds.
func poll(t testing.TB, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("it does not come")
		}
	}
}

// cut breaks the connections that are open.
func (s *testSource) cut() {
	s.conns.Range(func(c, _ any) bool {
		c.(net.Conn).Close()
		s.conns.Delete(c)
		return true
	})
}

func (s *testSource) dial(ctx context.Context, _ string) (net.Conn, error) {
	l := s.listener.Load()
	if l == nil {
		return nil, errors.New("nobody there")
	}
	conn, err := l.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	if s.wrap != nil {
		conn = s.wrap(conn)
	}
	s.conns.Store(conn, true)
	return conn, nil
}

// testReceiver receives on a file system of its own.
type testReceiver struct {
	t        testing.TB
	fsys     vfs.FS
	opts     ReceiverOptions
	transfer TransferOptions
	stager   *fakeStager
	counters *Counters
}

func newTestReceiver(t testing.TB, sources ...*testSource) *testReceiver {
	return newTestReceiverOn(t, vfs.NewMem(), sources...)
}

func newTestReceiverOn(t testing.TB, fsys vfs.FS, sources ...*testSource) *testReceiver {
	r := &testReceiver{t: t, fsys: fsys, counters: new(Counters), stager: &fakeStager{fsys: fsys}}
	if len(sources) > 0 {
		r.stager.want = sources[0].content
	}
	r.opts = ReceiverOptions{Counters: r.counters, BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond, Logger: testLogger()}
	r.transfer = TransferOptions{
		ID: []byte("0123456789abcdef"), ClusterID: []byte("cluster"), HistoryEpoch: 1, Group: 7, Node: "n2",
		Kinds: []snapshotv1.Kind{snapshotv1.Kind_KIND_FILES, snapshotv1.Kind_KIND_RECORDS}, Stager: r.stager,
	}
	byName := map[string]*testSource{}
	for i, s := range sources {
		name := fmt.Sprintf("s%d", i+1)
		byName[name] = s
		r.transfer.Sources = append(r.transfer.Sources, SourceRef{Node: name, Address: name})
	}
	r.opts.Dialer = func(ctx context.Context, address string) (net.Conn, error) { return byName[address].dial(ctx, address) }
	return r
}

// begin makes receiver and transfer as a process does that has just started.
func (r *testReceiver) begin() (*Receiver, *Transfer, error) {
	inboxes, err := OpenInboxes(r.fsys, "inbox", r.counters)
	if err != nil {
		return nil, nil, err
	}
	receiver, err := NewReceiver(r.opts)
	if err != nil {
		return nil, nil, err
	}
	opts := r.transfer
	opts.Inboxes = inboxes
	transfer, err := NewTransfer(opts)
	return receiver, transfer, err
}

// receive runs the transfer to its end.
func (r *testReceiver) receive(ctx context.Context) (*Staged, *Transfer, error) {
	receiver, transfer, err := r.begin()
	if err != nil {
		return nil, nil, err
	}
	staged, err := receiver.Receive(ctx, transfer)
	return staged, transfer, err
}

// install ends a transfer as a replica does, and tells whether anything is left.
func (r *testReceiver) install(staged *Staged) error {
	if !staged.Inbox.Ready() {
		return errors.New("not ready")
	}
	if err := errors.Join(r.stager.Install(staged.Sink), staged.Inbox.Remove()); err != nil {
		return err
	}
	names, err := r.fsys.List("inbox")
	if err != nil || len(names) > 0 {
		return fmt.Errorf("left in the inbox: %q, %w", names, err)
	}
	return nil
}

func (r *testReceiver) mustReceive() *Transfer {
	r.t.Helper()
	return r.mustReceiveWithin(time.Minute)
}

func (r *testReceiver) mustReceiveWithin(limit time.Duration) *Transfer {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	staged, transfer, err := r.receive(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.install(staged); err != nil {
		r.t.Fatal(err)
	}
	return transfer
}

// testLogger shows what happens when TEST_LOG is set.
func testLogger() *slog.Logger {
	if os.Getenv("TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
