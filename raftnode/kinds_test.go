package raftnode

import (
	"slices"
	"testing"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

func TestFullImagesOnly(t *testing.T) {
	for _, full := range []bool{false, true} {
		kinds := (&SnapshotOptions{FullOnly: full}).kinds()
		if slices.Contains(kinds, snapshotv1.Kind_KIND_RECORDS) == full {
			t.Errorf("FullOnly %v: takes %v", full, kinds)
		}
		if !slices.Contains(kinds, snapshotv1.Kind_KIND_FILES) || !slices.Contains(kinds, snapshotv1.Kind_KIND_STREAM) {
			t.Errorf("FullOnly %v: takes no full image: %v", full, kinds)
		}
	}
}
