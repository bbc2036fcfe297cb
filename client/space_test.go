package client

import (
	"errors"
	"testing"
	"time"

	"github.com/streamraft/streamraft/client/clienttest"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// full refuses every write on node 0 for want of space.
func full(node int, _ *kvv1.Write) clienttest.Action {
	if node != 0 {
		return clienttest.Action{}
	}
	return clienttest.Action{SkipApply: true, Failure: failure(kvv1.Reason_REASON_NO_SPACE)}
}

func TestFullLeaderHandsOver(t *testing.T) {
	cluster, c := newCluster(t, func(o *Options) { o.RequestTimeout = time.Minute })
	cluster.Script(full)
	w, err := c.NewWriter(WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := put(t, w, "k", "v")
	waitFor(t, func() bool { return len(cluster.Arrivals()) >= 2 })
	cluster.SetLeader(1)
	if err := outcome(t, p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFullLeaderThatStays(t *testing.T) {
	cluster, c := newCluster(t, func(o *Options) { o.RequestTimeout = time.Minute })
	c.fullPatience = 100 * time.Millisecond
	cluster.Script(full)
	start := time.Now()
	_, err := c.Put(t.Context(), []byte("k"), []byte("v"))
	if !errors.Is(err, ErrNoSpace) || errors.Is(err, ErrUncertain) || errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	if took := time.Since(start); took < c.fullPatience || took > 20*time.Second {
		t.Fatalf("it took %v", took)
	}
	arrived := len(cluster.Arrivals())
	if arrived < 2 {
		t.Fatalf("the write arrived %d times: not retried", arrived)
	}
	// Space is back.
	cluster.Script(nil)
	if _, err := c.Put(t.Context(), []byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
}

func TestFullLeaderRefusesCall(t *testing.T) {
	cluster, c := newCluster(t, func(o *Options) { o.RequestTimeout = time.Minute })
	c.fullPatience = 100 * time.Millisecond
	refusals := 0
	cluster.FailCalls(func(node int) error {
		if refusals++; refusals <= 2 {
			return clienttest.Refusal(failure(kvv1.Reason_REASON_NO_SPACE))
		}
		return nil
	})
	if _, err := c.OpenClientSession(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	cluster.FailCalls(func(node int) error { return clienttest.Refusal(failure(kvv1.Reason_REASON_NO_SPACE)) })
	if _, err := c.OpenClientSession(t.Context(), 0); !errors.Is(err, ErrNoSpace) || errors.Is(err, ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
}

func TestFullLeaderClock(t *testing.T) {
	const patience = 2 * time.Second
	start := time.Now()
	for _, test := range []struct {
		name    string
		address []string
		at      []time.Duration
		final   bool
	}{
		{"first", []string{"a"}, []time.Duration{0}, false},
		{"soon", []string{"a", "a"}, []time.Duration{0, patience - 1}, false},
		{"late", []string{"a", "a", "a"}, []time.Duration{0, time.Second, patience}, true},
		{"another node", []string{"a", "b", "b"}, []time.Duration{0, time.Second, patience}, false},
		{"back and forth", []string{"a", "b", "a"}, []time.Duration{0, time.Second, patience}, false},
		{"nothing between", []string{"a", "a"}, []time.Duration{0, patience + 1}, false},
	} {
		var f fullLeader
		got := false
		for i, address := range test.address {
			got = f.refused(address, start.Add(test.at[i]), patience)
		}
		if got != test.final {
			t.Errorf("%s: final is %v", test.name, got)
		}
	}
}
