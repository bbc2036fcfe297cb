package snapshot

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// testImages opens images under a clock that the test moves.
func testImages(t *testing.T, fsys vfs.FS, now *time.Time, change func(*ImagesOptions)) *Images {
	t.Helper()
	opts := ImagesOptions{FS: fsys, Dir: "images", ClusterID: []byte("cluster"), HistoryEpoch: 1, Group: 7, Expiry: time.Minute, Now: func() time.Time { return *now }}
	if change != nil {
		change(&opts)
	}
	images, err := OpenImages(opts)
	if err != nil {
		t.Fatal(err)
	}
	return images
}

func makeImage(t *testing.T, images *Images, fsys vfs.FS, m *snapshotv1.Manifest, size int) *Image {
	t.Helper()
	image, err := images.Create(t.Context(), &fakeCapture{fsys: fsys, content: randomContent(1, size), manifest: m})
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func fullAt(index uint64) *snapshotv1.Manifest {
	return &snapshotv1.Manifest{Kind: snapshotv1.Kind_KIND_FILES, Index: index, Term: 3}
}

func deltaFrom(from, index uint64) *snapshotv1.Manifest {
	return &snapshotv1.Manifest{Kind: snapshotv1.Kind_KIND_RECORDS, FromIndex: from, FromTerm: 3, Index: index, Term: 3}
}

func keptIndexes(images *Images) (indexes []uint64) {
	for _, info := range images.Kept() {
		indexes = append(indexes, info.Manifest.Index)
	}
	return indexes
}

func TestImagesExpire(t *testing.T) {
	fsys, now := vfs.NewMem(), time.Unix(1000, 0)
	images := testImages(t, fsys, &now, nil)
	held := makeImage(t, images, fsys, fullAt(10), 100)
	makeImage(t, images, fsys, fullAt(20), 100).Release()
	for range 5 {
		now = now.Add(40 * time.Second)
		if err := images.Expire(); err != nil {
			t.Fatal(err)
		}
	}
	if got := keptIndexes(images); !slices.Equal(got, []uint64{10}) {
		t.Fatal(got)
	}
	// A restart knows the expiry that was renewed while it was held.
	images = testImages(t, fsys, &now, nil)
	if got := keptIndexes(images); !slices.Equal(got, []uint64{10}) {
		t.Fatal(got)
	}
	now = now.Add(2 * time.Minute)
	images = testImages(t, fsys, &now, nil)
	if got := keptIndexes(images); len(got) > 0 || diskUse(t, fsys, "images") > 0 {
		t.Fatal(got)
	}
	_ = held
}

func TestImagesRetention(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*ImagesOptions)
		later  time.Duration
		want   []uint64
	}{
		{"by number", func(o *ImagesOptions) { o.MaxImages = 2 }, 0, []uint64{30, 20}},
		{"by bytes", func(o *ImagesOptions) { o.MaxBytes = 250 }, 0, []uint64{30, 20}},
		{"kept beyond expiry", func(o *ImagesOptions) { o.Keep = 2 }, time.Hour, []uint64{30, 20}},
		{"none", nil, time.Hour, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			fsys, now := vfs.NewMem(), time.Unix(1000, 0)
			images := testImages(t, fsys, &now, test.change)
			for index := uint64(10); index <= 30; index += 10 {
				makeImage(t, images, fsys, fullAt(index), 100).Release()
				now = now.Add(time.Second)
			}
			now = now.Add(test.later)
			if err := images.Expire(); err != nil {
				t.Fatal(err)
			}
			if got := keptIndexes(images); !slices.Equal(got, test.want) {
				t.Error(got)
			}
			if names, err := fsys.List("images"); err != nil || len(names) != len(test.want) {
				t.Error(names, err)
			}
		})
	}
}

// TestImagesKeep: an image that is told to live longer does, over restarts and
// uses, until a bound needs its place; the newest stays over the bound of bytes.
func TestImagesKeep(t *testing.T) {
	fsys, now := vfs.NewMem(), time.Unix(1000, 0)
	bound := func(o *ImagesOptions) { o.MaxBytes = 150 }
	images := testImages(t, fsys, &now, nil)
	image := makeImage(t, images, fsys, fullAt(10), 100)
	if err := image.Keep(24 * time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := image.Keep(time.Second); err != nil { // it lives longer already
		t.Fatal(err)
	}
	image.Release()
	for range 3 {
		now = now.Add(7 * time.Hour)
		images = testImages(t, fsys, &now, nil)
		if got := keptIndexes(images); !slices.Equal(got, []uint64{10}) {
			t.Fatal(got)
		}
		held, err := images.Open(image.Manifest().Image)
		if err != nil {
			t.Fatal(err)
		}
		held.Release()
	}
	// A clock that was set back for years must not keep it that long.
	past := now.Add(-10 * 24 * time.Hour)
	images = testImages(t, fsys, &past, nil)
	if got := images.Kept(); len(got) != 1 || got[0].Expires.After(past.Add(24*time.Hour)) {
		t.Fatal(got)
	}
	images = testImages(t, fsys, &now, bound)
	makeImage(t, images, fsys, fullAt(20), 200).Release()
	if err := images.Expire(); err != nil {
		t.Fatal(err)
	}
	if got := keptIndexes(images); !slices.Equal(got, []uint64{20}) {
		t.Fatal(got)
	}
	now = now.Add(4 * time.Hour)
	if err := images.Expire(); err != nil || len(images.Kept()) > 0 {
		t.Fatal(images.Kept(), err)
	}
}

// TestExpiryOfEarlierVersion: version 1 had the time alone.
func TestExpiryOfEarlierVersion(t *testing.T) {
	fsys, now := vfs.NewMem(), time.Unix(1000, 0)
	images := testImages(t, fsys, &now, nil)
	image := makeImage(t, images, fsys, fullAt(10), 100)
	image.Release()
	path := fsys.PathJoin(images.dir(FormatID(image.Manifest().Image)), expiryName)
	old := durable.Format{Magic: expiryFormat().Magic, Version: 1, Limit: 8}
	if err := durable.WriteRecord(fsys, path, old, binary.LittleEndian.AppendUint64(nil, uint64(now.Add(time.Second).UnixMilli()))); err != nil {
		t.Fatal(err)
	}
	images = testImages(t, fsys, &now, nil)
	if got := images.Kept(); len(got) != 1 || !got[0].Expires.Equal(now.Add(time.Second)) {
		t.Fatal(got)
	}
}

// TestImagesHeld: what a transfer holds goes only after it let go.
func TestImagesHeld(t *testing.T) {
	fsys, now := vfs.NewMem(), time.Unix(1000, 0)
	images := testImages(t, fsys, &now, nil)
	image := makeImage(t, images, fsys, fullAt(10), 100)
	id := image.Manifest().Image
	second, err := images.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := images.Close(); err == nil {
		t.Error("closed while an image is held")
	}
	if err := images.Remove(id); err != nil {
		t.Fatal(err)
	}
	if _, err := images.Open(id); !errors.Is(err, ErrImageGone) || len(images.Kept()) > 0 {
		t.Error(err)
	}
	image.Release()
	image.Release()
	if f, err := second.OpenFile("000000.sst"); err != nil {
		t.Error(err)
	} else if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := second.OpenFile("../manifest"); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	second.Release()
	if use := diskUse(t, fsys, "images"); use > 0 {
		t.Errorf("%d bytes are left", use)
	}
	if err := images.Remove(id); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
	if _, err := images.Create(t.Context(), &fakeCapture{fsys: fsys}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestImagesOpenDamaged: what cannot be used is removed, the rest stays.
func TestImagesOpenDamaged(t *testing.T) {
	for name, damage := range map[string]func(fsys vfs.FS, dir string) error{
		"no manifest":  func(fsys vfs.FS, dir string) error { return fsys.Remove(dir + "/manifest") },
		"bad manifest": func(fsys vfs.FS, dir string) error { return writeTestFile(fsys, dir+"/manifest", []byte("x")) },
		"no expiry":    func(fsys vfs.FS, dir string) error { return fsys.Remove(dir + "/expiry") },
		"short file":   func(fsys vfs.FS, dir string) error { return writeTestFile(fsys, dir+"/db/000000.sst", []byte("x")) },
		"another name": func(fsys vfs.FS, dir string) error { return fsys.Rename(dir, "images/"+FormatID(NewID())) },
	} {
		t.Run(name, func(t *testing.T) {
			fsys, now := vfs.NewMem(), time.Unix(1000, 0)
			images := testImages(t, fsys, &now, nil)
			makeImage(t, images, fsys, fullAt(10), 100).Release()
			bad := makeImage(t, images, fsys, fullAt(20), 100)
			bad.Release()
			if err := damage(fsys, "images/"+FormatID(bad.Manifest().Image)); err != nil {
				t.Fatal(err)
			}
			if err := fsys.MkdirAll("images/tmp-half/db", 0o700); err != nil {
				t.Fatal(err)
			}
			images = testImages(t, fsys, &now, nil)
			if got := keptIndexes(images); !slices.Equal(got, []uint64{10}) {
				t.Error(got)
			}
			if names, err := fsys.List("images"); err != nil || len(names) != 1 {
				t.Error(names, err)
			}
		})
	}
	fsys, now := vfs.NewMem(), time.Unix(1000, 0)
	makeImage(t, testImages(t, fsys, &now, nil), fsys, fullAt(10), 100).Release()
	if got := keptIndexes(testImages(t, fsys, &now, func(o *ImagesOptions) { o.HistoryEpoch = 2 })); len(got) > 0 {
		t.Errorf("an image of another history epoch is kept: %v", got)
	}
}

// failingCapture ends as the test wants.
type failingCapture struct {
	fakeCapture
	result *snapshotv1.Manifest
	err    error
}

func (c *failingCapture) Write(context.Context, string) (*snapshotv1.Manifest, error) {
	return c.result, c.err
}

func TestImagesCreateFails(t *testing.T) {
	fsys, now := vfs.NewMem(), time.Unix(1000, 0)
	images := testImages(t, fsys, &now, nil)
	missing := fullAt(10)
	missing.Files, missing.Bytes = []*snapshotv1.File{{Name: "a", Size: 1}}, 1
	for name, c := range map[string]*failingCapture{
		"no delta":     {err: ErrNoDelta},
		"file missing": {result: missing},
		"no manifest":  {result: &snapshotv1.Manifest{}},
	} {
		_, err := images.Create(t.Context(), c)
		if want := ErrCorrupt; err == nil || c.err == nil && !errors.Is(err, want) || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if c.closed.Load() != 1 {
			t.Errorf("%s: closed %d times", name, c.closed.Load())
		}
	}
	if names, err := fsys.List("images"); err != nil || len(names) > 0 {
		t.Error(names, err)
	}
}

// TestProvide is the table of what a source serves.
func TestProvide(t *testing.T) {
	kinds := []snapshotv1.Kind{snapshotv1.Kind_KIND_FILES, snapshotv1.Kind_KIND_RECORDS}
	for _, test := range []struct {
		name     string
		kept     []*snapshotv1.Manifest
		request  *snapshotv1.Open
		delta    error // what a capture of a delta says
		want     Choice
		index    uint64
		captures int
	}{
		{"nothing kept", nil, &snapshotv1.Open{}, nil, ChoiceFull, 100, 1},
		{"kept", []*snapshotv1.Manifest{fullAt(40), fullAt(50)}, &snapshotv1.Open{MinIndex: 45}, nil, ChoiceKept, 50, 0},
		{"kept is too old", []*snapshotv1.Manifest{fullAt(40)}, &snapshotv1.Open{MinIndex: 45}, nil, ChoiceFull, 100, 1},
		{"delta", nil, &snapshotv1.Open{Applied: &snapshotv1.ReplicaState{Index: 30, Term: 3}}, nil, ChoiceDelta, 100, 1},
		{"kept delta", []*snapshotv1.Manifest{deltaFrom(30, 60)}, &snapshotv1.Open{Applied: &snapshotv1.ReplicaState{Index: 30, Term: 3}}, nil, ChoiceDelta, 60, 0},
		{"kept delta from elsewhere", []*snapshotv1.Manifest{deltaFrom(29, 60)}, &snapshotv1.Open{Applied: &snapshotv1.ReplicaState{Index: 30, Term: 3}}, nil, ChoiceDelta, 100, 1},
		{"kept delta of another term", []*snapshotv1.Manifest{deltaFrom(30, 60)}, &snapshotv1.Open{Applied: &snapshotv1.ReplicaState{Index: 30, Term: 2}}, nil, ChoiceDelta, 100, 1},
		{"no legal delta", []*snapshotv1.Manifest{fullAt(40)}, &snapshotv1.Open{Applied: &snapshotv1.ReplicaState{Index: 30, Term: 3}}, ErrNoDelta, ChoiceKept, 40, 1},
		{"no delta taken", nil, &snapshotv1.Open{Applied: &snapshotv1.ReplicaState{Index: 30, Term: 3}, Kinds: kinds[:1]}, nil, ChoiceFull, 100, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			fsys, now := vfs.NewMem(), time.Unix(1000, 0)
			images := testImages(t, fsys, &now, nil)
			for _, m := range test.kept {
				size := 1000
				if m.Kind == snapshotv1.Kind_KIND_RECORDS {
					size = 100
				}
				makeImage(t, images, fsys, m, size).Release()
			}
			req := test.request
			req.ClusterId, req.HistoryEpoch, req.Group = []byte("cluster"), 1, 7
			if req.Kinds == nil {
				req.Kinds = kinds
			}
			captures := 0
			capture := func(_ context.Context, have Have, minIndex uint64) (Capture, error) {
				captures++
				if minIndex != req.MinIndex {
					t.Errorf("asked for index %d", minIndex)
				}
				if have.Index == 0 {
					return &fakeCapture{fsys: fsys, content: randomContent(1, 1000), manifest: fullAt(100)}, nil
				}
				if test.delta != nil {
					return nil, test.delta
				}
				return &fakeCapture{fsys: fsys, content: randomContent(1, 100), manifest: deltaFrom(have.Index, 100)}, nil
			}
			image, choice, err := images.Provide(t.Context(), req, capture)
			if err != nil {
				t.Fatal(err)
			}
			if choice != test.want || image.Manifest().Index != test.index || captures != test.captures {
				t.Errorf("%s at %d after %d captures", choice, image.Manifest().Index, captures)
			}
			reason := map[string]string{"no legal delta": "no_delta"}[test.name]
			if reason == "" {
				reason = map[Choice]string{ChoiceFull: "no_state", ChoiceKept: "no_state", ChoiceDelta: "behind"}[choice]
			}
			if told := images.opts.Counters.Metrics().Decisions; len(told) != 1 || told[Decision{choice, reason}] != 1 {
				t.Errorf("counted as %v", told)
			}
			// What was begun goes on, whatever is newer.
			makeImage(t, images, fsys, fullAt(1000), 10).Release()
			req.Resume = &snapshotv1.Resume{Image: image.Manifest().Image}
			again, choice, err := images.Provide(t.Context(), req, capture)
			if err != nil || choice != ChoiceResume || string(again.Manifest().Image) != string(image.Manifest().Image) {
				t.Errorf("%s, %v", choice, err)
			}
		})
	}
}

// TestProvideLargeDelta: a delta of more than half of a full image at hand is
// not worth it.
func TestProvideLargeDelta(t *testing.T) {
	fsys, now := vfs.NewMem(), time.Unix(1000, 0)
	images := testImages(t, fsys, &now, nil)
	makeImage(t, images, fsys, fullAt(40), 1000).Release()
	image, choice, err := images.Provide(t.Context(), &snapshotv1.Open{
		ClusterId: []byte("cluster"), HistoryEpoch: 1, Group: 7, Applied: &snapshotv1.ReplicaState{Index: 30, Term: 3},
		Kinds: []snapshotv1.Kind{snapshotv1.Kind_KIND_FILES, snapshotv1.Kind_KIND_RECORDS},
	}, func(_ context.Context, have Have, _ uint64) (Capture, error) {
		return &fakeCapture{fsys: fsys, content: randomContent(1, 500), manifest: deltaFrom(have.Index, 100)}, nil
	})
	if err != nil || choice != ChoiceKept || image.Manifest().Index != 40 {
		t.Error(choice, err)
	}
	if got := keptIndexes(images); !slices.Equal(got, []uint64{40}) {
		t.Errorf("kept: %v", got)
	}
}

// TestProvideShared: those who ask while an image is made get the same one.
func TestProvideShared(t *testing.T) {
	fsys, now := vfs.NewMem(), time.Unix(1000, 0)
	images := testImages(t, fsys, &now, nil)
	gate := make(chan struct{})
	type answer struct {
		image *Image
		err   error
	}
	answers := make(chan answer)
	for range 3 {
		go func() {
			image, _, err := images.Provide(t.Context(), &snapshotv1.Open{
				ClusterId: []byte("cluster"), HistoryEpoch: 1, Group: 7, Kinds: []snapshotv1.Kind{snapshotv1.Kind_KIND_FILES},
			}, func(context.Context, Have, uint64) (Capture, error) {
				return &fakeCapture{fsys: fsys, content: randomContent(1, 10), gate: gate}, nil
			})
			answers <- answer{image, err}
		}()
	}
	close(gate)
	ids := map[string]bool{}
	for range 3 {
		a := <-answers
		if a.err != nil {
			t.Fatal(a.err)
		}
		ids[FormatID(a.image.Manifest().Image)] = true
	}
	if len(ids) != 1 || images.Kept()[0].Holders != 3 {
		t.Errorf("%d images, held by %d", len(ids), images.Kept()[0].Holders)
	}
}
