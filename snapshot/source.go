package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// File is an open file of an image.
type File interface {
	io.ReaderAt
	io.Closer
}

// OpenedImage is an image that an attempt holds.
type OpenedImage interface {
	// Manifest of the image; not to be changed.
	Manifest() *snapshotv1.Manifest
	// OpenFile opens one of its files.
	OpenFile(name string) (File, error)
	// Condemn tells that the image is damaged and must not be given to anybody
	// again.
	Condemn(reason error)
	// Release ends the hold; called once.
	Release()
}

// Provider is the node behind a Source.
type Provider interface {
	// Provide returns an image that serves the request, and holds it; see
	// Images.Provide, which does most of it. It may block, to capture or build,
	// until ctx ends, and tells done and total bytes of that to progress, if it
	// knows. It refuses other clusters, history epochs and groups it has not with
	// ErrRefused. Other errors reach the receiver by their code.
	Provide(ctx context.Context, req *snapshotv1.Open, progress func(done, total uint64)) (OpenedImage, Choice, error)
}

// SourceOptions configures a Source.
type SourceOptions struct {
	// Provider of images. Required.
	Provider Provider

	// Slots bound the sends of the node; default NewSlots with its defaults.
	Slots *Slots

	// Pacer slows sending down. Default: full speed.
	Pacer Pacer

	// ChunkBytes of data in a chunk, at most MaxChunkBytes and what the receiver
	// takes. Default 1 MiB: throughput does not rise further.
	ChunkBytes int

	// WireCompression packs chunks with zstd where that pays. Default false: the
	// tables of an image are compressed already.
	WireCompression bool

	// KeepaliveEvery is the longest silence towards a receiver while there is
	// nothing to send. Default 2 s.
	KeepaliveEvery time.Duration

	// SlowAfter is how long a source may wait for credit before it takes smaller
	// chunks. Default 2 s.
	SlowAfter time.Duration

	// RetryAfter is what a receiver is told when it must come again. Default 1 s.
	RetryAfter time.Duration

	// Counters take what happens; default: counters of its own.
	Counters *Counters

	// Logger takes attempts and why they ended. Default: nothing is logged.
	Logger *slog.Logger
}

// EnsureDefaults puts the defaults in place of zero values.
func (o *SourceOptions) EnsureDefaults() {
	if o.Pacer == nil {
		o.Pacer = noPacer{}
	}
	setDefault(&o.ChunkBytes, 1<<20)
	setDefault(&o.KeepaliveEvery, 2*time.Second)
	setDefault(&o.SlowAfter, 2*time.Second)
	setDefault(&o.RetryAfter, time.Second)
	if o.Counters == nil {
		o.Counters = new(Counters)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate tells the first field that is out of range. Call it after
// EnsureDefaults.
func (o *SourceOptions) Validate() error {
	switch {
	case o.Provider == nil:
		return errors.New("snapshot: option Provider of a source is required")
	case o.ChunkBytes < 1 || o.ChunkBytes > MaxChunkBytes:
		return fmt.Errorf("snapshot: option ChunkBytes of a source is %d; it must be 1 to %d", o.ChunkBytes, MaxChunkBytes)
	case o.KeepaliveEvery <= 0 || o.SlowAfter <= 0 || o.RetryAfter <= 0:
		return errors.New("snapshot: durations of a source must be above 0")
	}
	return nil
}

// openTimeout is how long a stream may be open without an Open: it costs a few
// goroutines.
const openTimeout = 10 * time.Second

// Source serves SnapshotService: it sends images to those who ask.
type Source struct {
	snapshotv1.UnimplementedSnapshotServiceServer
	opts SourceOptions

	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	attempts map[attemptKey]*sending
	ended    map[uint64][]SendInfo // by group, the oldest first
}

// attemptKey names whom an image is sent to: a replica gets one at a time.
type attemptKey struct {
	node  string
	group uint64
}

// ServerOptions are what a server needs that SnapshotService is registered on:
// it takes and sends messages of MaxWireBytes and allows a ping every 5 s, since
// a receiver looks after a silent connection.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxWireBytes),
		grpc.MaxSendMsgSize(MaxWireBytes),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
}

// NewSource returns a source; register it on a server with ServerOptions, or
// with such that allow as much.
func NewSource(opts SourceOptions) (*Source, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if opts.Slots == nil {
		slots, err := NewSlots(SlotsOptions{})
		if err != nil {
			return nil, err
		}
		opts.Slots = slots
	}
	s := &Source{opts: opts, attempts: make(map[attemptKey]*sending), ended: make(map[uint64][]SendInfo)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s, nil
}

// Register registers SnapshotService.
func (s *Source) Register(server grpc.ServiceRegistrar) {
	snapshotv1.RegisterSnapshotServiceServer(server, s)
}

// Close ends all attempts, with CODE_SHUTDOWN, and waits for them.
func (s *Source) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(ErrClosed)
	s.wg.Wait()
	return nil
}

// Fetch implements SnapshotService: one attempt of a transfer.
//
// Three goroutines serve it: the receiver reads what the peer sends; the
// producer reads the image; the sender is the only one that writes to the
// stream. gRPC's own goroutine waits for them, because returning from it is the
// only way to end a stream whose sender is blocked.
func (s *Source) Fetch(stream grpc.BidiStreamingServer[snapshotv1.FetchRequest, snapshotv1.FetchResponse]) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return status.Error(codes.Unavailable, ErrClosed.Error())
	}
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()

	a := newSending(s, stream)
	defer a.cancel(nil)
	// It ends when this function has returned, which is what ends the stream.
	s.wg.Go(a.receive)
	timer := time.NewTimer(openTimeout)
	defer timer.Stop()
	select {
	case a.open = <-a.opened:
	case <-a.ctx.Done():
		return endStatus(context.Cause(a.ctx))
	case <-timer.C:
		return status.Error(codes.DeadlineExceeded, "the receiver did not say in time what it wants")
	}
	if err := checkOpen(a.open); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	older, err := s.enter(a)
	if err != nil {
		return a.refuse(err)
	}
	if older != nil {
		older.cancel(fmt.Errorf("%w: attempt %d of transfer %s", ErrStale, a.open.Attempt, FormatID(a.open.Transfer)))
		select {
		case <-older.done:
		case <-a.ctx.Done():
			// Who replaces this one must still wait for the older.
			s.wg.Go(func() {
				<-older.done
				close(a.done)
				s.leave(a)
			})
			return endStatus(context.Cause(a.ctx))
		}
	}
	return a.serve()
}

// enter makes an attempt the one of its replica and returns the one it
// replaces. A lower attempt of the same transfer is late: ErrStale.
func (s *Source) enter(a *sending) (older *sending, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := a.key()
	older = s.attempts[key]
	if older != nil && string(older.open.Transfer) == string(a.open.Transfer) && older.open.Attempt >= a.open.Attempt {
		return nil, fmt.Errorf("%w: attempt %d of transfer %s runs, and this is %d", ErrStale, older.open.Attempt, FormatID(a.open.Transfer), a.open.Attempt)
	}
	s.attempts[key] = a
	return older, nil
}

func (s *Source) leave(a *sending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attempts[a.key()] == a {
		delete(s.attempts, a.key())
	}
}

// checkOpen looks at a request's own limits; the rest is the provider's.
func checkOpen(o *snapshotv1.Open) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: open: "+format, append([]any{ErrProtocol}, args...)...)
	}
	switch {
	case o == nil:
		return bad("the first message is none")
	case len(o.Transfer) != idBytes:
		return bad("a transfer id of %d bytes", len(o.Transfer))
	case o.Attempt == 0:
		return bad("attempts count from 1")
	case o.Group == 0:
		return bad("it names no group")
	case o.Node == "" || len(o.Node) > maxNodeName || len(o.NodeIncarnation) > maxNodeName || len(o.ClusterId) > maxNodeName || len(o.Condemned) > maxNodeName:
		return bad("a node name of %d, an incarnation of %d, a cluster id of %d bytes", len(o.Node), len(o.NodeIncarnation), len(o.ClusterId))
	case o.ChunkMax == 0:
		return bad("it takes no chunks")
	case len(o.Kinds) == 0 || len(o.Kinds) > 16:
		return bad("it takes %d kinds of images", len(o.Kinds))
	}
	if r := o.Resume; r != nil {
		if len(r.Image) != 0 && len(r.Image) != idBytes || len(r.Done) > MaxFiles {
			return bad("it resumes an image with an id of %d bytes and %d files", len(r.Image), len(r.Done))
		}
	}
	return nil
}

// endStatus is the status a stream ends with.
func endStatus(err error) error {
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, ErrProtocol):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, ErrClosed):
		return status.Error(codes.Unavailable, err.Error())
	}
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	return status.Error(codes.Aborted, err.Error())
}
