package client

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestSlowDigestIsAskedOnce: a digest of a large state takes longer than an
// attempt may; asking again would put another digest command into the log.
func TestSlowDigestIsAskedOnce(t *testing.T) {
	cluster, c := newCluster(t, func(o *Options) { o.AttemptTimeout = 20 * time.Millisecond })
	var calls atomic.Int32
	cluster.FailCalls(func(int) error {
		calls.Add(1)
		timer := time.NewTimer(200 * time.Millisecond) // the work
		defer timer.Stop()
		<-timer.C
		return nil
	})
	if _, err := c.Digest(t.Context(), DataGroup); err != nil {
		t.Fatal(err)
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("the node was asked %d times", n)
	}
}
