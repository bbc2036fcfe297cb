package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Options says how a Client reaches its cluster.
type Options struct {
	// Endpoints are host:port addresses of nodes of the cluster. One is enough
	// to find the leader; more let the client start while some are down.
	// Required.
	Endpoints []string

	// Logger receives what the client does about failures, at levels debug and
	// info. Default: nothing is logged.
	Logger *slog.Logger

	// DialTimeout bounds one attempt to connect to a node, and the wait of Open
	// for a first answer. Default 3 s.
	DialTimeout time.Duration

	// RequestTimeout bounds a call whose context has no deadline, with all its
	// retries, and each write of a Writer. Default 10 s.
	RequestTimeout time.Duration

	// AttemptTimeout bounds one attempt of a call that may be tried again on
	// another node, so that a silent node does not use up RequestTimeout.
	// Default 2 s.
	AttemptTimeout time.Duration

	// StallCheck is how long a node may leave a write or a repeatable call
	// unanswered before the client asks all nodes whether another one leads by
	// now, and again, with back-off, while the answer does not come. A node that
	// is frozen or cut off keeps its connections: nothing else tells. If another
	// leads in a higher term, the node is left: what is safe to send again is
	// sent to the new leader, other writes that it did not answer fail as
	// uncertain. Default 1 s, about an election.
	StallCheck time.Duration

	// MaxRetries is how often a call or a write is tried again at most. Default
	// 0: until its deadline. Negative: never.
	MaxRetries int

	// BackoffBase is the first pause between attempts; it doubles with each up
	// to BackoffMax, and half of it is random. Defaults 20 ms and 200 ms: a new
	// leader is found soon after its election.
	BackoffBase time.Duration
	BackoffMax  time.Duration

	// Keepalive is how long a connection with calls under way may be silent
	// before it is probed; one that then stays silent as long again is cut, so
	// that a node that vanished is noticed. Default 10 s, the least that gRPC
	// permits.
	Keepalive time.Duration

	// MaxMessageBytes bounds a message in either direction. It must not exceed
	// the servers' limit. Default 8 MiB.
	MaxMessageBytes int

	// Lazy makes Open return without having reached any node.
	Lazy bool

	// TransportCredentials secures the connections. Default: none (plain text).
	TransportCredentials credentials.TransportCredentials

	// Dialer makes the connections, for tests and tunnels. Default: TCP.
	Dialer func(ctx context.Context, address string) (net.Conn, error)

	// DialOptions are added to every connection, for interceptors and the like.
	DialOptions []grpc.DialOption
}

// EnsureDefaults fills in every field that is zero.
func (o *Options) EnsureDefaults() {
	setDefault(&o.DialTimeout, 3*time.Second)
	setDefault(&o.RequestTimeout, 10*time.Second)
	setDefault(&o.AttemptTimeout, 2*time.Second)
	setDefault(&o.StallCheck, time.Second)
	setDefault(&o.BackoffBase, 20*time.Millisecond)
	setDefault(&o.BackoffMax, 200*time.Millisecond)
	setDefault(&o.Keepalive, 10*time.Second)
	setDefault(&o.MaxMessageBytes, 8<<20)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.TransportCredentials == nil {
		o.TransportCredentials = insecure.NewCredentials()
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate tells what is wrong with the options, all of it.
func (o *Options) Validate() error {
	var errs []error
	if len(o.Endpoints) == 0 {
		errs = append(errs, errors.New("no endpoints: name at least one node as host:port"))
	}
	for _, endpoint := range o.Endpoints {
		if _, port, err := net.SplitHostPort(endpoint); err != nil || port == "" {
			errs = append(errs, fmt.Errorf("endpoint %q is not host:port", endpoint))
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"DialTimeout", o.DialTimeout}, {"RequestTimeout", o.RequestTimeout}, {"AttemptTimeout", o.AttemptTimeout}, {"StallCheck", o.StallCheck},
		{"BackoffBase", o.BackoffBase}, {"BackoffMax", o.BackoffMax}, {"Keepalive", o.Keepalive},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s is negative: %s", d.name, d.value))
		}
	}
	if o.MaxMessageBytes < 0 || (o.MaxMessageBytes > 0 && o.MaxMessageBytes < 64<<10) {
		errs = append(errs, fmt.Errorf("MaxMessageBytes is %d, the least is 65536", o.MaxMessageBytes))
	}
	if len(errs) > 0 {
		return fmt.Errorf("client options: %w", errors.Join(errs...))
	}
	return nil
}
