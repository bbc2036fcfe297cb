package raftnode

import (
	"testing"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// TestRecovery: which image counts as one too many.
func TestRecovery(t *testing.T) {
	full := func(id string) *snapshotv1.Manifest {
		return &snapshotv1.Manifest{Kind: snapshotv1.Kind_KIND_FILES, Image: []byte(id)}
	}
	delta := &snapshotv1.Manifest{Kind: snapshotv1.Kind_KIND_RECORDS, Image: []byte("delta")}
	var r recovery
	got := func(m *snapshotv1.Manifest, want bool) {
		t.Helper()
		if repeated := r.got(m); repeated != want {
			t.Errorf("image %s: %v", m.Image, repeated)
		}
	}
	r.begin(5 * time.Second)
	got(full("a"), false)
	r.begin(6 * time.Second) // the next transfer of the same recovery
	got(full("a"), false)    // staged already, nothing was sent again
	got(delta, false)
	got(full("b"), true)
	if took := r.end(65 * time.Second); took != time.Minute {
		t.Errorf("it took %v", took)
	}
	// The log went on at once: that is no new recovery.
	r.begin(70 * time.Second)
	got(full("c"), true)
	r.end(71 * time.Second)
	// Long after, it is.
	r.begin(91 * time.Second)
	got(full("d"), false)
}
