package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/streamraft/streamraft/client/clienttest"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// newStalling starts a cluster and a client that would wait a minute for a node,
// but looks for another one soon. asked counts the questions who leads.
func newStalling(t *testing.T) (cluster *clienttest.Cluster, c *Client, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	count := func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		if method == adminv1.AdminService_Status_FullMethodName {
			asked.Add(1)
		}
		return invoke(ctx, method, request, reply, conn, options...)
	}
	cluster, c = newCluster(t, func(o *Options) {
		o.RequestTimeout, o.AttemptTimeout, o.StallCheck = time.Minute, time.Minute, 20*time.Millisecond
		o.DialOptions = []grpc.DialOption{grpc.WithUnaryInterceptor(count)}
	})
	return cluster, c, asked
}

// outcome waits for a write; a client that stays with a frozen node does not
// make it in time.
func outcome(t *testing.T, p *Pending) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := p.Wait(ctx)
	if ctx.Err() != nil {
		t.Fatal("the client waits for the frozen node")
	}
	return err
}

// stallWriter makes a writer with a stream to node 0, which then freezes.
func stallWriter(t *testing.T, cluster *clienttest.Cluster, c *Client, o WriterOptions) *Writer {
	t.Helper()
	w, err := c.NewWriter(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	p, err := w.Put(t.Context(), []byte("first"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := outcome(t, p); err != nil {
		t.Fatal(err)
	}
	cluster.Freeze(0)
	return w
}

func put(t *testing.T, w *Writer, key, value string) *Pending {
	t.Helper()
	p, err := w.Put(t.Context(), []byte(key), []byte(value))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFrozenLeaderIsLeft(t *testing.T) {
	cluster, c, _ := newStalling(t)
	w := stallWriter(t, cluster, c, WriterOptions{OrderKeys: true})
	// The second one waits for the answer to the first and is never sent to the
	// frozen node.
	sentOne, unsent := put(t, w, "k", "sent"), put(t, w, "k", "unsent")
	cluster.SetLeader(1)
	if err := outcome(t, sentOne); !errors.Is(err, ErrUncertain) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want uncertain", err)
	}
	if err := outcome(t, unsent); err != nil {
		t.Fatal(err)
	}
	if leader, err := c.Leader(t.Context(), DataGroup); err != nil || leader != cluster.Addresses()[1] {
		t.Fatal(leader, err)
	}
	cluster.Thaw(0)
	if _, err := c.Put(t.Context(), []byte("after"), nil); err != nil {
		t.Fatal(err)
	}
	for _, a := range cluster.Arrivals() {
		if string(a.Write.GetOperation().GetPut().GetValue()) == "sent" && a.Node != 0 {
			t.Fatal("a write of uncertain outcome was sent again")
		}
	}
}

func TestFrozenLeaderWithClientSession(t *testing.T) {
	cluster, c, _ := newStalling(t)
	session, err := c.OpenClientSession(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	w := stallWriter(t, cluster, c, WriterOptions{Session: session})
	p := put(t, w, "k", "v")
	cluster.SetLeader(2)
	if err := outcome(t, p); err != nil {
		t.Fatal(err)
	}
	if value, _ := cluster.Value("k"); value != "v" {
		t.Fatalf("k is %q", value)
	}
}

func TestFrozenLeaderThatStillLeadsIsAwaited(t *testing.T) {
	cluster, c, asked := newStalling(t)
	w := stallWriter(t, cluster, c, WriterOptions{})
	before := asked.Load()
	p := put(t, w, "k", "v")
	// Three nodes are asked each time.
	waitFor(t, func() bool { return asked.Load() >= before+7 })
	select {
	case <-p.Done():
		_, err := p.Outcome()
		t.Fatalf("given up: %v", err)
	default:
	}
	cluster.Thaw(0)
	if err := outcome(t, p); err != nil {
		t.Fatal(err)
	}
	if got := len(cluster.Arrivals()); got != 2 {
		t.Fatalf("%d writes arrived, want 2", got)
	}
}

// The term of a leader that was found by a hint is not known, only that of the
// one before it.
func TestFrozenAfterHint(t *testing.T) {
	cluster, c, _ := newStalling(t)
	w := stallWriter(t, cluster, c, WriterOptions{})
	cluster.Thaw(0)
	cluster.SetLeader(1)
	if err := outcome(t, put(t, w, "hinted", "v")); err != nil {
		t.Fatal(err)
	}
	cluster.Freeze(1)
	p := put(t, w, "k", "v")
	cluster.SetLeader(2)
	if err := outcome(t, p); !errors.Is(err, ErrUncertain) {
		t.Fatalf("got %v, want uncertain", err)
	}
	if err := outcome(t, put(t, w, "k2", "v")); err != nil {
		t.Fatal(err)
	}
}

func TestCallsLeaveFrozenNode(t *testing.T) {
	tests := []struct {
		name string
		// read: any node can answer, without a new leader.
		read bool
		call func(ctx context.Context, c *Client) error
	}{
		{"get", true, func(ctx context.Context, c *Client) error {
			_, err := c.Get(ctx, []byte("first"), ReadOptions{})
			return err
		}},
		{"stale get", true, func(ctx context.Context, c *Client) error {
			_, err := c.Get(ctx, []byte("first"), ReadOptions{Stale: true})
			return err
		}},
		{"range", true, func(ctx context.Context, c *Client) error {
			_, err := c.RangePage(ctx, RangeOptions{}, nil)
			return err
		}},
		{"count", true, func(ctx context.Context, c *Client) error {
			_, err := c.Count(ctx, RangeOptions{})
			return err
		}},
		{"digest", false, func(ctx context.Context, c *Client) error {
			_, err := c.Digest(ctx, DataGroup)
			return err
		}},
		{"set feed mode", false, func(ctx context.Context, c *Client) error {
			_, err := c.SetFeedMode(ctx, DataGroup, kvv1.FeedMode_FEED_MODE_KEYS)
			return err
		}},
		{"open client session", false, func(ctx context.Context, c *Client) error {
			_, err := c.OpenClientSession(ctx, 0)
			return err
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cluster, c, asked := newStalling(t)
			if _, err := c.Put(t.Context(), []byte("first"), nil); err != nil {
				t.Fatal(err)
			}
			before := asked.Load()
			cluster.Freeze(0)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- test.call(ctx, c) }()
			if !test.read {
				waitFor(t, func() bool { return asked.Load() >= before+7 })
				select {
				case err := <-ended:
					t.Fatalf("ended while the frozen node led: %v", err)
				default:
				}
				cluster.SetLeader(1)
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestWhoSupersedesWhom(t *testing.T) {
	leader := candidate{address: "b:1", alias: "10.0.0.2:1", term: 7}
	silent := survey{leader: candidate{address: "a:1", term: 7}, answered: []string{"b:1", "c:1"}, complete: true}
	for _, test := range []struct {
		name       string
		s          survey
		at         candidate
		supersedes bool
		read       string // where a read that stalls at the node goes
	}{
		{"a higher term elsewhere", survey{leader: leader}, candidate{address: "a:1", term: 6}, true, "b:1"},
		{"the same term elsewhere", survey{leader: leader}, candidate{address: "a:1", term: 7}, false, ""},
		{"an older one elsewhere", survey{leader: leader}, candidate{address: "a:1", term: 8}, false, ""},
		{"elected again", survey{leader: leader}, candidate{address: "b:1", term: 6}, false, ""},
		{"elected again, other name", survey{leader: leader}, candidate{address: "10.0.0.2:1", term: 6}, false, ""},
		{"elected again, named by others", survey{leader: candidate{address: "10.0.0.2:1", term: 8}}, leader, false, ""},
		{"nobody knows", survey{answered: []string{"a:1"}, complete: true}, candidate{address: "a:1", term: 6}, false, ""},
		{"silent and still named", silent, candidate{address: "a:1", term: 7}, false, "b:1"},
		{"slow to answer, others had no time", survey{leader: silent.leader, answered: silent.answered}, candidate{address: "a:1", term: 7}, false, ""},
		{"a follower, the leader silent", silent, candidate{address: "b:1", term: 7}, false, ""},
		{
			"a follower, the leader answers", survey{leader: leader, answered: []string{"b:1", "c:1"}},
			candidate{address: "c:1", term: 7}, false, "b:1",
		},
	} {
		if got := test.s.supersedes(test.at); got != test.supersedes {
			t.Errorf("%s: supersedes is %v", test.name, got)
		}
		if next, leave := test.s.leave(toAny, test.at); next.address != test.read || leave != (test.read != "") {
			t.Errorf("%s: a read goes to %q", test.name, next.address)
		}
		if _, leave := test.s.leave(toLeader, test.at); leave != test.supersedes {
			t.Errorf("%s: a call to the leader is left: %v", test.name, leave)
		}
	}
}
