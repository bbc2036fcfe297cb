package snapshot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// ReceiverOptions configures a Receiver.
type ReceiverOptions struct {
	// Slots bound the receives of the node; default NewSlots with its defaults.
	Slots *Slots

	// Space that must stay free on the disk.
	Space SpaceOptions

	// WindowBytes a source may send ahead of what is written, per transfer, and
	// BudgetBytes for all transfers of the node. Both bound memory. Defaults
	// 16 MiB, 10 Gbit/s over 13 ms, and 64 MiB.
	WindowBytes, BudgetBytes int64

	// ChunkBytes is the largest chunk taken, at most MaxChunkBytes and
	// WindowBytes. Default 1 MiB. After a stall it is halved for the next attempt,
	// down to MinChunkBytes.
	ChunkBytes int

	// ProgressBytes of a file arrive between two records of it: what a crash
	// costs at most, beside what is in flight: the source may send so much and a
	// window beyond what is durable. Default 4 MiB.
	ProgressBytes uint64

	// Checkers is how many files are checked at once. Default 2.
	Checkers int

	// StallTimeout is how long no byte may arrive, while credit is open and pacing
	// is not the reason, before the attempt ends. Default 30 s.
	StallTimeout time.Duration

	// BackoffMin and BackoffMax bound the pause between attempts; it doubles from
	// one to the other, and starts over when bytes arrived. Defaults 100 ms, 5 s.
	BackoffMin, BackoffMax time.Duration

	// SourceLostAfter is how long the source of staged files may fail before
	// another is tried, which mostly costs what is staged. Default 30 s: longer
	// than a restart takes.
	SourceLostAfter time.Duration

	// GiveUpAfter is how long a transfer may go without a new byte. Default 10
	// minutes: after that the log is no longer kept for it.
	GiveUpAfter time.Duration

	// TransportCredentials, Dialer and DialOptions are as for raft's transport.
	// Defaults: plain text, TCP without proxy, none.
	TransportCredentials credentials.TransportCredentials
	Dialer               func(ctx context.Context, address string) (net.Conn, error)
	DialOptions          []grpc.DialOption

	// Counters take what happens; default: counters of its own.
	Counters *Counters

	// Logger takes attempts and why they ended. Default: nothing is logged.
	Logger *slog.Logger
}

// EnsureDefaults puts the defaults in place of zero values.
func (o *ReceiverOptions) EnsureDefaults() {
	o.Space.EnsureDefaults()
	setDefault(&o.WindowBytes, 16<<20)
	setDefault(&o.BudgetBytes, 64<<20)
	setDefault(&o.ChunkBytes, 1<<20)
	setDefault(&o.ProgressBytes, 4<<20)
	setDefault(&o.Checkers, 2)
	setDefault(&o.StallTimeout, 30*time.Second)
	setDefault(&o.BackoffMin, 100*time.Millisecond)
	setDefault(&o.BackoffMax, max(5*time.Second, o.BackoffMin))
	setDefault(&o.SourceLostAfter, 30*time.Second)
	setDefault(&o.GiveUpAfter, 10*time.Minute)
	if o.TransportCredentials == nil {
		o.TransportCredentials = insecure.NewCredentials()
	}
	if o.Counters == nil {
		o.Counters = new(Counters)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate tells the first field that is out of range. Call it after
// EnsureDefaults.
func (o *ReceiverOptions) Validate() error {
	if err := o.Space.Validate(); err != nil {
		return err
	}
	switch {
	case o.ChunkBytes < 1 || o.ChunkBytes > MaxChunkBytes || int64(o.ChunkBytes) > o.WindowBytes:
		return fmt.Errorf("snapshot: option ChunkBytes of a receiver is %d; it must be 1 to %d and at most WindowBytes", o.ChunkBytes, MaxChunkBytes)
	case o.WindowBytes > 1<<30 || o.BudgetBytes < int64(o.ChunkBytes):
		return fmt.Errorf("snapshot: options WindowBytes %d and BudgetBytes %d of a receiver must be at most 1 GiB and at least a chunk", o.WindowBytes, o.BudgetBytes)
	case o.ProgressBytes == 0 || o.Checkers < 1:
		return errors.New("snapshot: options ProgressBytes and Checkers of a receiver must be above 0")
	case o.StallTimeout <= 0 || o.BackoffMin <= 0 || o.BackoffMax < o.BackoffMin || o.SourceLostAfter <= 0 || o.GiveUpAfter <= 0:
		return errors.New("snapshot: durations of a receiver must be above 0, BackoffMax at least BackoffMin")
	}
	return nil
}

// Receiver receives images for the replicas of a node. Its methods may be called
// from any goroutine.
type Receiver struct {
	opts    ReceiverOptions
	budget  *budget
	running atomic.Int32 // calls of Receive
}

// NewReceiver returns a receiver. It has no goroutines but those of Receive.
func NewReceiver(opts ReceiverOptions) (*Receiver, error) {
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
	return &Receiver{opts: opts, budget: newBudget(opts.BudgetBytes)}, nil
}

// Running returns how many transfers are received now.
func (r *Receiver) Running() int { return int(r.running.Load()) }

// Staged is an image that is ready to be installed: all of it is durable and was
// checked, and the new state was opened.
type Staged struct {
	// Inbox holds it. After Stager.Install returned nil and the log has it too,
	// call its Remove; to keep the image for later, its Close.
	Inbox *Inbox
	// Sink to install.
	Sink Sink
}

// dial makes a client connection, which connects at its first call. A transfer
// has a connection of its own, so that nothing waits behind its data.
func (r *Receiver) dial(address string) (*grpc.ClientConn, error) {
	// Both windows: one alone leaves the other at 64 KiB. A little more than the
	// credit, for what wraps the data, so that only credit decides.
	window := int32(r.opts.WindowBytes + max(1<<16, r.opts.WindowBytes/8))
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(r.opts.TransportCredentials),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 10 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxWireBytes), grpc.MaxCallSendMsgSize(MaxWireBytes)),
	}
	if r.opts.Dialer != nil {
		opts = append(opts, grpc.WithContextDialer(r.opts.Dialer))
	}
	conn, err := grpc.NewClient("passthrough:///"+address, append(opts, r.opts.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("snapshot: address %q of a source: %w", address, err)
	}
	return conn, nil
}
