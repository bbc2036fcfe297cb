package kv

import (
	"errors"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// TestPrepareAgain has Prepare fail at each of its operations that need space
// and calls it again on the same Sink: what the first call left is used or made
// anew, and the image is installed.
func TestPrepareAgain(t *testing.T) {
	for _, kind := range []string{"files", "records", "delta"} {
		t.Run(kind, func(t *testing.T) {
			c := newImageCase(t, kind)
			for n := int64(0); ; n++ {
				disk := new(fullDisk)
				disk.after.Store(n)
				o := c.opts
				o.FS = errorfs.Wrap(c.base.CrashClone(vfs.CrashCloneCfg{}), disk)
				s := openStore(t, o)
				sink, err := s.Stage(c.manifest, inboxDir)
				if err != nil {
					t.Fatal(err)
				}
				disk.armed.Store(true)
				err = sink.Prepare(t.Context())
				disk.armed.Store(false)
				if err != nil && !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("disk full at operation %d: %v", n, err)
				}
				if err != nil {
					if err := s.Install(sink); !errors.Is(err, errNotPrepared) {
						t.Fatalf("disk full at operation %d: installed: %v", n, err)
					}
				}
				if err := sink.Prepare(t.Context()); err != nil {
					t.Fatalf("disk full at operation %d, then not: %v", n, err)
				}
				if err := s.Install(sink); err != nil {
					t.Fatalf("disk full at operation %d, then not: %v", n, err)
				}
				if diff := cmp.Diff(c.new, dump(t, s)); diff != "" {
					t.Fatalf("disk full at operation %d, then not:\n%s", n, diff)
				}
				closeStore(t, s)
				if !disk.full.Load() {
					if n < 2 {
						t.Fatalf("Prepare writes only %d times", n)
					}
					return
				}
			}
		})
	}
}

// TestManifestAboveCapture flushes between Capture and Write: the files hold what
// is durable by then, and the manifest says so. The log above an image is pinned
// by that index, and one pinned by an older one would be kept for nothing.
func TestManifestAboveCapture(t *testing.T) {
	shared := testShared(t)
	source, log := grown(t, Options{Shared: shared}, 1, 50)
	if err := source.Flush(); err != nil {
		t.Fatal(err)
	}
	capture, err := source.Capture(snapshot.Have{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	captured := source.AppliedIndex()
	log.grow(50)
	if _, err := source.Apply(log.take()); err != nil {
		t.Fatal(err)
	}
	if err := source.Flush(); err != nil {
		t.Fatal(err)
	}
	want := dump(t, source)
	log.grow(10)
	if _, err := source.Apply(log.take()); err != nil { // in memory only
		t.Fatal(err)
	}
	emptyDir(t, source.opts.FS, imageDir)
	m, err := capture.Write(t.Context(), imageDir)
	if err := errors.Join(err, capture.Close()); err != nil {
		t.Fatal(err)
	}
	if m.GetKind() != snapshotv1.Kind_KIND_FILES || m.GetIndex() <= captured || m.GetIndex() != source.DurableApplied() {
		t.Fatalf("%v at index %d; at Capture %d was applied, at Write %d durable", m.GetKind(), m.GetIndex(), captured, source.DurableApplied())
	}
	m.Image = make([]byte, imageIDBytes)
	receiver := openStore(t, Options{Shared: shared})
	installImage(t, receiver, m, source.opts.FS)
	if diff := cmp.Diff(want, dump(t, receiver)); diff != "" {
		t.Error(diff)
	}
}
