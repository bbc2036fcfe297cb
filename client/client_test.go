package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/streamraft/streamraft/client/clienttest"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newCluster starts three scripted nodes and a client of them.
func newCluster(t *testing.T, change func(*Options)) (*clienttest.Cluster, *Client) {
	t.Helper()
	cluster, err := clienttest.New(3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	o := Options{Endpoints: cluster.Addresses(), RequestTimeout: 5 * time.Second, BackoffBase: time.Millisecond, BackoffMax: 50 * time.Millisecond}
	if change != nil {
		change(&o)
	}
	c, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return cluster, c
}

func failure(reason kvv1.Reason) *kvv1.Failure {
	return &kvv1.Failure{Reason: reason, Message: "scripted"}
}

func TestReadsAndWrites(t *testing.T) {
	_, c := newCluster(t, nil)
	ctx := t.Context()
	put, err := c.Put(ctx, []byte("a"), []byte("1"))
	if err != nil || put.Revision == 0 {
		t.Fatal(put, err)
	}
	record, err := c.Get(ctx, []byte("a"), ReadOptions{})
	if err != nil || string(record.Value) != "1" || record.ModRevision != put.Revision {
		t.Fatalf("got %+v, %v", record, err)
	}
	if _, err := c.Get(ctx, []byte("b"), ReadOptions{}); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v, want ErrNotFound", err)
	}
	txn := &kvv1.Txn{
		Compares: []*kvv1.Compare{CompareValue([]byte("a"), []byte("1"))},
		Success:  []*kvv1.TxnOperation{TxnPut([]byte("b"), []byte("2")), TxnGet([]byte("a")), TxnDelete([]byte("a"))},
	}
	got, err := c.Txn(ctx, txn)
	if err != nil || !got.Succeeded || len(got.Steps) != 3 || string(got.Steps[1].Record.Value) != "1" || !got.Steps[2].Existed {
		t.Fatalf("got %+v, %v", got, err)
	}
	if got, err = c.Txn(ctx, txn); err != nil || got.Succeeded {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := c.Batch(ctx, []*kvv1.BatchOperation{BatchPut([]byte("c"), nil), BatchDelete([]byte("b"))}); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Delete(ctx, []byte("b")); err != nil || got.Existed {
		t.Fatal(got, err)
	}
	if _, err := c.DeleteRange(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Count(ctx, RangeOptions{}); err != nil || n != 0 {
		t.Fatal(n, err)
	}
}

func TestRangePages(t *testing.T) {
	cluster, c := newCluster(t, nil)
	for i := range 2500 {
		cluster.Set(fmt.Sprintf("k%05d", i), "v")
	}
	for _, test := range []struct {
		name        string
		o           RangeOptions
		want        int
		first, last string
	}{
		{"all", RangeOptions{}, 2500, "k00000", "k02499"},
		{"limit over pages", RangeOptions{Limit: 1500}, 1500, "k00000", "k01499"},
		{"reverse", RangeOptions{Reverse: true, Limit: 2}, 2, "k02499", "k02498"},
		{"prefix", RangeOptions{Start: []byte("k001"), End: PrefixEnd([]byte("k001"))}, 100, "k00100", "k00199"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var keys []string
			for record, err := range c.Range(t.Context(), test.o) {
				if err != nil {
					t.Fatal(err)
				}
				keys = append(keys, string(record.Key))
			}
			if len(keys) != test.want || keys[0] != test.first || keys[len(keys)-1] != test.last {
				t.Fatalf("got %d keys, %s to %s", len(keys), keys[0], keys[len(keys)-1])
			}
		})
	}
}

func TestFollowsLeader(t *testing.T) {
	for _, hide := range []bool{false, true} {
		t.Run(fmt.Sprintf("hidden=%v", hide), func(t *testing.T) {
			cluster, c := newCluster(t, nil)
			cluster.HideLeader(hide)
			for i := range 9 {
				cluster.SetLeader(i % 3)
				if _, err := c.Put(t.Context(), []byte{byte(i)}, nil); err != nil {
					t.Fatal(err)
				}
			}
			if leader, err := c.Leader(t.Context(), DataGroup); err != nil || leader != cluster.Addresses()[2] {
				t.Fatal(leader, err)
			}
		})
	}
}

func TestLeaderStopsAndReturns(t *testing.T) {
	cluster, c := newCluster(t, nil)
	for i := range 6 {
		old := i % 3
		cluster.SetLeader(old)
		if _, err := c.Put(t.Context(), []byte{byte(i)}, nil); err != nil {
			t.Fatal(err)
		}
		cluster.Stop(old)
		cluster.SetLeader((old + 1) % 3)
		// The stream to the stopped node may not have ended yet for the client:
		// then the first write is uncertain, and must say so.
		if _, err := c.Put(t.Context(), []byte{byte(i)}, nil); err != nil && !errors.Is(err, ErrUncertain) {
			t.Fatal(err)
		}
		if _, err := c.Get(t.Context(), []byte{byte(i)}, ReadOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := cluster.Start(old); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReasons(t *testing.T) {
	tests := []struct {
		reason    kvv1.Reason
		sentinel  error
		uncertain bool
		retried   bool
	}{
		{kvv1.Reason_REASON_DROPPED, ErrDropped, false, true},
		{kvv1.Reason_REASON_OVERLOADED, ErrOverloaded, false, true},
		{kvv1.Reason_REASON_UNAVAILABLE, ErrUnavailable, false, true},
		{kvv1.Reason_REASON_NOT_LEADER, ErrNotLeader, false, true},
		{kvv1.Reason_REASON_UNCERTAIN, ErrUncertain, true, false},
		{kvv1.Reason_REASON_FAILED, ErrFailed, true, false},
		{kvv1.Reason_REASON_NO_SPACE, ErrNoSpace, false, true},
		{kvv1.Reason_REASON_INVALID, ErrInvalid, false, false},
		{kvv1.Reason_REASON_SESSION_EXPIRED, ErrSessionExpired, false, false},
		{kvv1.Reason_REASON_SEQUENCE_TOO_OLD, ErrSequenceTooOld, false, false},
		{kvv1.Reason(99), ErrUncertain, true, false},
	}
	for _, test := range tests {
		t.Run(test.reason.String(), func(t *testing.T) {
			cluster, c := newCluster(t, nil)
			first := true
			cluster.Script(func(int, *kvv1.Write) clienttest.Action {
				if first {
					first = false
					return clienttest.Action{SkipApply: true, Failure: failure(test.reason)}
				}
				return clienttest.Action{}
			})
			_, err := c.Put(t.Context(), []byte("k"), []byte("v"))
			if test.retried {
				if err != nil {
					t.Fatalf("not retried: %v", err)
				}
			} else if !errors.Is(err, test.sentinel) || errors.Is(err, ErrUncertain) != test.uncertain {
				t.Fatalf("got %v", err)
			}
			want := 1
			if test.retried {
				want = 2
			}
			if got := len(cluster.Arrivals()); got != want {
				t.Fatalf("the write arrived %d times, want %d", got, want)
			}
			// At the end of patience a retried reason is still told.
			if test.retried {
				cluster.Script(func(int, *kvv1.Write) clienttest.Action {
					return clienttest.Action{SkipApply: true, Failure: failure(test.reason)}
				})
				err := putWithin(t, c, 100*time.Millisecond)
				for errors.Is(err, ErrUncertain) {
					// The deadline came while it was on its way.
					err = putWithin(t, c, 100*time.Millisecond)
				}
				if !errors.Is(err, test.sentinel) || errors.Is(err, ErrUncertain) || !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("got %v", err)
				}
			}
		})
	}
}

func putWithin(t *testing.T, c *Client, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_, err := c.Put(ctx, []byte("k"), []byte("v"))
	return err
}

func TestMinority(t *testing.T) {
	cluster, c := newCluster(t, func(o *Options) { o.RequestTimeout = 300 * time.Millisecond })
	cluster.SetLeader(clienttest.NoLeader)
	cluster.Stop(2)
	unavailable := func(node int) error {
		return clienttest.Refusal(&kvv1.Failure{Reason: kvv1.Reason_REASON_UNAVAILABLE, Message: "no leader is known"})
	}
	cluster.FailReads(unavailable)
	_, err := c.Put(t.Context(), []byte("k"), nil)
	if !errors.Is(err, ErrNoQuorum) || !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUncertain) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("put: %v", err)
	}
	var e *Error
	if !errors.As(err, &e) || len(e.Attempts) != 3 || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "certainly not applied") {
		t.Fatalf("the error does not tell what was tried: %v", err)
	}
	if _, err := c.Get(t.Context(), []byte("k"), ReadOptions{}); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("get: %v", err)
	}
	if _, err := c.Leader(t.Context(), DataGroup); !errors.Is(err, ErrNoQuorum) {
		t.Fatalf("leader: %v", err)
	}
	// All is well again as soon as there is a leader.
	cluster.FailReads(nil)
	cluster.SetLeader(1)
	if _, err := c.Put(t.Context(), []byte("k"), nil); err != nil {
		t.Fatal(err)
	}
}

func TestOpenUnreachable(t *testing.T) {
	cluster, err := clienttest.New(1)
	if err != nil {
		t.Fatal(err)
	}
	cluster.Close()
	o := Options{Endpoints: cluster.Addresses(), DialTimeout: 100 * time.Millisecond}
	_, err = Open(t.Context(), o)
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "refused") {
		t.Fatalf("got %v", err)
	}
	o.Lazy, o.RequestTimeout = true, 100*time.Millisecond
	c, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Put(t.Context(), []byte("k"), nil); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUncertain) {
		t.Fatalf("got %v", err)
	}
	for _, bad := range []Options{{}, {Endpoints: []string{"nohost"}}, {Endpoints: []string{"a:1"}, RequestTimeout: -1}} {
		if _, err := Open(t.Context(), bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func TestReadsGoOnElsewhere(t *testing.T) {
	cluster, c := newCluster(t, nil)
	cluster.Set("k", "v")
	cluster.FailReads(func(node int) error {
		if node != 2 {
			return clienttest.Refusal(failure(kvv1.Reason_REASON_FAILED))
		}
		return nil
	})
	if _, err := c.Get(t.Context(), []byte("k"), ReadOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), []byte("k"), ReadOptions{Endpoint: cluster.Addresses()[0]}); !errors.Is(err, ErrFailed) || errors.Is(err, ErrUncertain) {
		t.Fatalf("got %v", err)
	}
}

func TestClosedClient(t *testing.T) {
	cluster, c := newCluster(t, nil)
	cluster.Script(func(int, *kvv1.Write) clienttest.Action { return clienttest.Action{Silent: true} })
	var calls sync.WaitGroup
	calls.Go(func() {
		if _, err := c.Put(context.Background(), []byte("k"), nil); !errors.Is(err, ErrUncertain) || !errors.Is(err, ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
	waitFor(t, func() bool { return len(cluster.Arrivals()) == 1 })
	c.Close()
	calls.Wait()
	if _, err := c.Put(t.Context(), []byte("k"), nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("got %v", err)
	}
	if _, err := c.Get(t.Context(), []byte("k"), ReadOptions{}); !errors.Is(err, ErrClosed) {
		t.Fatalf("got %v", err)
	}
	if _, err := c.NewWriter(WriterOptions{}); !errors.Is(err, ErrClosed) {
		t.Fatalf("got %v", err)
	}
}

func TestAdmin(t *testing.T) {
	cluster, c := newCluster(t, nil)
	ctx := t.Context()
	if name, err := c.TransferLeader(ctx, DataGroup, "n3"); err != nil || name != "n3" {
		t.Fatal(name, err)
	}
	if _, err := c.TransferLeader(ctx, DataGroup, "n9"); !errors.Is(err, ErrInvalid) || errors.Is(err, ErrUncertain) {
		t.Fatalf("got %v", err)
	}
	status, err := c.Status(ctx, cluster.Addresses()[1])
	if err != nil || status.GetNode() != "n2" {
		t.Fatal(status, err)
	}
	cluster.Set("k", "v")
	d, err := c.Digest(ctx, DataGroup)
	if err != nil || d.Node != "n3" || d.Records != 1 {
		t.Fatal(d, err)
	}
	at, err := c.DigestAt(ctx, cluster.Addresses()[0], DataGroup, d.Index)
	if err != nil || at.Digest != d.Digest || at.Node != "n1" {
		t.Fatal(at, err)
	}
	if index, err := c.SetFeedMode(ctx, DataGroup, kvv1.FeedMode_FEED_MODE_VALUES); err != nil || index == 0 {
		t.Fatal(index, err)
	}
	cluster.Stop(0)
	if _, err := c.Status(ctx, cluster.Addresses()[0]); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
}

// waitFor polls until a condition holds.
func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	timeout := time.After(10 * time.Second)
	for !condition() {
		select {
		case <-ticker.C:
		case <-timeout:
			t.Fatal("waited 10 s for nothing")
		}
	}
}
