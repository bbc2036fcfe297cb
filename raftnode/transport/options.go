package transport

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// QueueLimits bounds what waits for one peer on one lane, counting what the
// sender has taken but not yet handed to gRPC. Reaching either drops messages.
type QueueLimits struct {
	// Messages is the number of messages, from 1.
	Messages int
	// Bytes is the estimated size of the messages, from 1. The entries in it are
	// mostly those that raft and the log hold anyway.
	Bytes int64
}

// GRPCOptions configures a GRPC transport. The zero value of each field means
// its default.
type GRPCOptions struct {
	// UrgentQueue bounds the urgent lane of a peer. Default 16,384 messages and
	// 8 MiB: heartbeats and responses of 1,000 groups several times over. More
	// would only be stale when it arrives.
	UrgentQueue QueueLimits

	// AppendQueue bounds the append lane of a peer. Default 4,096 messages and
	// 32 MiB: 0.3 s of a 1 Gbit/s link. A peer further behind is better served
	// by raft's probing than by a longer queue.
	AppendQueue QueueLimits

	// BatchMessages is the number of messages packed into one gRPC message, from
	// 1 to MaxBatchMessages. Default 1,024: beyond that the cost of a gRPC
	// message no longer shows.
	BatchMessages int

	// BatchBytes bounds the bytes packed into one gRPC message, from 1 to
	// MaxWireBytes. A single larger message travels alone. Default 512 KiB:
	// throughput does not rise further, and gRPC pools buffers up to 1 MiB.
	BatchBytes int

	// WindowBytes is the flow-control window of a stream and of its connection,
	// 64 KiB to 16 MiB. It bounds what a receiver that does not read may have to
	// hold per lane. Default 4 MiB: 10 Gbit/s over 3 ms. Both directions of a
	// Connect stream use it through ServerOptions.
	WindowBytes int32

	// BackoffMin and BackoffMax bound the pause between attempts to connect; it
	// doubles from one to the other, with a jitter of a fifth. A connection that
	// lasted BackoffMax starts it over. Defaults 50 ms and 1 s: about one
	// election timeout after a peer is back.
	BackoffMin time.Duration
	BackoffMax time.Duration

	// HandshakeTimeout bounds an attempt, from dialling to the accepted hello.
	// Default 5 s.
	HandshakeTimeout time.Duration

	// KeepaliveTime is how long a connection may be silent before it is probed;
	// at least 10 s, gRPC's minimum. Default 10 s.
	KeepaliveTime time.Duration

	// KeepaliveTimeout is how long a probe, or on Linux sent data, may stay
	// without an answer before the connection is closed. Default 3 s. Heartbeats
	// always leave data unanswered on a cut link, so it is also the time after
	// which a cut link is dialled anew, instead of when TCP tries next.
	KeepaliveTimeout time.Duration

	// TransportCredentials secures the connections this node makes. Default:
	// none (plain text).
	TransportCredentials credentials.TransportCredentials

	// Dialer makes the network connections. Default: TCP, without proxy.
	Dialer func(ctx context.Context, address string) (net.Conn, error)

	// DialOptions are applied last, after those the transport sets itself.
	DialOptions []grpc.DialOption

	// Logger takes connects, losses and refusals, one line per change. Default:
	// nothing is logged.
	Logger *slog.Logger
}

// EnsureDefaults puts the defaults in place of zero values.
func (o *GRPCOptions) EnsureDefaults() {
	setDefault(&o.UrgentQueue.Messages, 16384)
	setDefault(&o.UrgentQueue.Bytes, 8<<20)
	setDefault(&o.AppendQueue.Messages, 4096)
	setDefault(&o.AppendQueue.Bytes, 32<<20)
	setDefault(&o.BatchMessages, 1024)
	setDefault(&o.BatchBytes, 512<<10)
	setDefault(&o.WindowBytes, 4<<20)
	setDefault(&o.BackoffMin, 50*time.Millisecond)
	setDefault(&o.BackoffMax, max(time.Second, o.BackoffMin))
	setDefault(&o.HandshakeTimeout, 5*time.Second)
	setDefault(&o.KeepaliveTime, 10*time.Second)
	setDefault(&o.KeepaliveTimeout, 3*time.Second)
	if o.TransportCredentials == nil {
		o.TransportCredentials = insecure.NewCredentials()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate tells the first field that is out of range. Call it after
// EnsureDefaults.
func (o *GRPCOptions) Validate() error {
	for _, c := range []struct {
		ok    bool
		field string
		rule  string
		value any
	}{
		{o.UrgentQueue.Messages > 0, "UrgentQueue.Messages", "at least 1", o.UrgentQueue.Messages},
		{o.UrgentQueue.Bytes > 0, "UrgentQueue.Bytes", "at least 1", o.UrgentQueue.Bytes},
		{o.AppendQueue.Messages > 0, "AppendQueue.Messages", "at least 1", o.AppendQueue.Messages},
		{o.AppendQueue.Bytes > 0, "AppendQueue.Bytes", "at least 1", o.AppendQueue.Bytes},
		{o.BatchMessages > 0 && o.BatchMessages <= MaxBatchMessages, "BatchMessages", fmt.Sprintf("1 to %d", MaxBatchMessages), o.BatchMessages},
		{o.BatchBytes > 0 && o.BatchBytes <= MaxWireBytes, "BatchBytes", fmt.Sprintf("1 to %d", MaxWireBytes), o.BatchBytes},
		{o.WindowBytes >= 64<<10 && o.WindowBytes <= 16<<20, "WindowBytes", "64 KiB to 16 MiB", o.WindowBytes},
		{o.BackoffMin > 0, "BackoffMin", "above 0", o.BackoffMin},
		{o.BackoffMax >= o.BackoffMin, "BackoffMax", "at least BackoffMin", o.BackoffMax},
		{o.HandshakeTimeout > 0, "HandshakeTimeout", "above 0", o.HandshakeTimeout},
		{o.KeepaliveTime >= 10*time.Second, "KeepaliveTime", "at least 10s", o.KeepaliveTime},
		{o.KeepaliveTimeout > 0, "KeepaliveTimeout", "above 0", o.KeepaliveTimeout},
	} {
		if !c.ok {
			return fmt.Errorf("transport: option %s is %v; it must be %s", c.field, c.value, c.rule)
		}
	}
	return nil
}

func (o *GRPCOptions) queue(lane raftv1.Lane) QueueLimits {
	if lane == raftv1.Lane_LANE_APPEND {
		return o.AppendQueue
	}
	return o.UrgentQueue
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
