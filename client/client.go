package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

// Groups every cluster has.
const (
	// MetaGroup keeps the node directory and the registry.
	MetaGroup uint64 = 1
	// DataGroup keeps the records.
	DataGroup uint64 = 2
)

// Client is a client of one cluster. See the package's contract.
type Client struct {
	options     Options
	connections *connections
	leaders     leaders
	surveys     surveys
	// fullPatience is defaultFullPatience, shorter in tests.
	fullPatience time.Duration

	mu      sync.Mutex
	closed  bool
	shared  *Writer
	writers map[*Writer]struct{}
}

// Open makes a client of the cluster that the endpoints belong to. Unless
// Options.Lazy is set it waits, at most Options.DialTimeout, until one node has
// answered, and returns an error that matches ErrUnavailable if none does. A
// cluster without a leader is no error yet: calls wait for one.
func Open(ctx context.Context, o Options) (*Client, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.EnsureDefaults()
	c := &Client{options: o, connections: newConnections(o), fullPatience: defaultFullPatience, writers: map[*Writer]struct{}{}}
	if o.Lazy {
		return c, nil
	}
	if err := c.reachAny(ctx); err != nil {
		c.connections.close()
		return nil, err
	}
	return c, nil
}

// reachAny waits until one node has answered.
func (c *Client) reachAny(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.DialTimeout)
	defer cancel()
	var t trail
	pause := c.backoff()
	for {
		_, err := c.findLeader(ctx, DataGroup, &t)
		attempts, answered := t.attempts()
		if err == nil || answered {
			return nil
		}
		if err := wait(ctx, pause.pause()); err != nil {
			return &Error{
				Op: "open", Outcome: OutcomeRead, Attempts: attempts, kinds: []error{ErrUnavailable}, cause: err,
				Message: fmt.Sprintf("no node answered within %s; check the endpoints and that nodes run", c.options.DialTimeout),
			}
		}
	}
}

func (c *Client) backoff() *backoff {
	return &backoff{base: c.options.BackoffBase, max: c.options.BackoffMax}
}

// Close ends all writers and closes all connections. Writes that wait to be sent
// fail with ErrClosed, certainly not applied; those that were sent and are not
// answered fail as uncertain. It returns when every goroutine of the client has
// ended.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	var writers []*Writer
	for w := range c.writers {
		writers = append(writers, w)
	}
	c.mu.Unlock()
	for _, w := range writers {
		w.abort()
	}
	c.connections.close()
	return nil
}

// Endpoints returns the addresses the client knows: the configured ones and
// those the cluster named.
func (c *Client) Endpoints() []string {
	c.connections.mu.Lock()
	defer c.connections.mu.Unlock()
	return append([]string(nil), c.connections.addresses...)
}

// Leader returns the address of a group's leader, looking for it if it is not
// known. It waits until there is one or ctx or RequestTimeout ends; then the
// error matches ErrUnavailable and, where nodes answered, ErrNoQuorum.
func (c *Client) Leader(ctx context.Context, group uint64) (string, error) {
	var leader string
	err := c.call(ctx, callOptions{op: "find leader", group: group, target: toLeader, repeatable: true, read: true},
		func(ctx context.Context, conn *grpc.ClientConn, address string) error {
			leader = address
			return nil
		})
	return leader, err
}

// Status returns what one node knows of itself and its groups. It is asked of
// that node only, once.
func (c *Client) Status(ctx context.Context, endpoint string) (*adminv1.StatusResponse, error) {
	var response *adminv1.StatusResponse
	err := c.call(ctx, callOptions{op: "status", endpoint: endpoint, target: toEndpoint, read: true},
		func(ctx context.Context, conn *grpc.ClientConn, _ string) (err error) {
			response, err = adminv1.NewAdminServiceClient(conn).Status(ctx, &adminv1.StatusRequest{})
			return err
		})
	if err != nil {
		return nil, err
	}
	for _, node := range response.GetNodes() {
		c.connections.learn(node.GetAddress())
	}
	return response, nil
}

// TransferLeader asks the leader of a group to hand over to the named node, or
// to its most caught-up voter if node is empty, and returns the node that leads
// then. A request that may have been carried out is not repeated.
func (c *Client) TransferLeader(ctx context.Context, group uint64, node string) (string, error) {
	var leader string
	err := c.call(ctx, callOptions{op: "transfer leader", group: group, target: toLeader},
		func(ctx context.Context, conn *grpc.ClientConn, address string) error {
			response, err := adminv1.NewAdminServiceClient(conn).TransferLeader(ctx, &adminv1.TransferLeaderRequest{Group: group, Node: node})
			if err == nil {
				leader = response.GetLeaderNode()
				c.leaders.forget(group, address)
			}
			return err
		})
	return leader, err
}
