package snapshottest

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// RoundTrip: a full image makes an empty replica, and one with other content,
// the same as the source.
func RoundTrip(tb testing.TB, open Open) {
	b := newBench(tb, open)
	source := b.state("source", entries)
	defer source.Close()
	i := b.full(source, "image")
	if i.manifest.Index != entries || i.manifest.Term != 1 {
		b.Errorf("the image is at index %d of term %d", i.manifest.Index, i.manifest.Term)
	}
	later := b.state("later", entries+20)
	defer later.Close()
	for name, index := range map[string]uint64{"empty": 0, "old": entries / 3} {
		s := b.state(name, index)
		b.install(s, i, name+".inbox")
		s = b.same(source, s, name)
		// It goes on from there, as any replica.
		b.advance(s, entries+20)
		if got, want := b.digest(s), b.digest(later); got != want {
			b.Errorf("%s: 20 entries later: digest %s, not %s", name, got, want)
		}
		b.must(s.Close())
	}
}

// OneIndex: an image holds what its manifest's index says, all of it and nothing
// of later ones, though entries are applied between Capture and Write.
func OneIndex(tb testing.TB, open Open) {
	b := newBench(tb, open)
	source := b.state("source", entries)
	defer source.Close()
	b.must(source.Flush())
	c, err := source.Capture(snapshot.Have{}, entries)
	b.must(err)
	b.advance(source, 2*entries)
	b.must(source.Flush())
	b.must(b.fsys.MkdirAll("image", 0o700))
	m, err := c.Write(b.Context(), "image")
	b.must(errors.Join(err, c.Close()))
	m.Image, m.Group = snapshot.NewID(), 1
	if m.Index < entries {
		b.Errorf("the image is at index %d, and at least %d was asked for", m.Index, entries)
	}
	twin := b.state("twin", m.Index)
	defer twin.Close()
	s := b.state("replica", 0)
	b.install(s, image{m, "image"}, "inbox")
	b.must(b.same(twin, s, "replica").Close())
}

// Delta: a delta from X on a state anywhere from X to Y makes the state at Y.
func Delta(tb testing.TB, open Open) {
	b := newBench(tb, open)
	source := b.state("source", entries)
	defer source.Close()
	i, ok := b.delta(source, "delta", entries-10)
	if !ok {
		b.Log("the state machine made no delta")
		return
	}
	if i.manifest.Index != entries || i.manifest.FromIndex != entries-10 {
		b.Errorf("a delta from %d to %d", i.manifest.FromIndex, i.manifest.Index)
	}
	for name, index := range map[string]uint64{"at X": entries - 10, "between": entries - 3, "at Y": entries} {
		s := b.state(name, index)
		b.must(s.Flush())
		b.install(s, i, name+".inbox")
		b.must(b.same(source, s, name).Close())
	}
}

// DeltaLegality: a delta is refused by Stage or Prepare where the state is
// before X, in another term or of another schema.
func DeltaLegality(tb testing.TB, open Open) {
	b := newBench(tb, open)
	source := b.state("source", entries)
	defer source.Close()
	i, ok := b.delta(source, "delta", entries-10)
	if !ok {
		b.Log("the state machine made no delta")
		return
	}
	for name, change := range map[string]func(m *snapshotv1.Manifest) uint64{
		"before X":       func(*snapshotv1.Manifest) uint64 { return entries - 11 },
		"empty":          func(*snapshotv1.Manifest) uint64 { return 0 },
		"another term":   func(m *snapshotv1.Manifest) uint64 { m.FromTerm, m.Term = 2, 2; return entries - 10 },
		"another schema": func(m *snapshotv1.Manifest) uint64 { m.Schema += 1000; return entries - 10 },
	} {
		m := proto.Clone(i.manifest).(*snapshotv1.Manifest)
		s := b.state(name, change(m))
		before := b.digest(s)
		b.deliver(i, name+".inbox", len(m.Files))
		sink, err := s.Stage(m, name+".inbox")
		if err == nil {
			if err = sink.Prepare(b.Context()); err == nil {
				b.Errorf("%s: a delta that is not legal was staged and prepared", name)
			}
		} else if !errors.Is(err, snapshot.ErrUnfit) {
			b.Errorf("%s: refused with %v, which is no ErrUnfit", name, err)
		}
		if after := b.digest(s); after != before {
			b.Errorf("%s: the state changed", name)
		}
		b.must(s.Close())
	}
}

// Resume: files arrive bit by bit, with restarts between; Stage is called again
// for a directory that holds some of them.
func Resume(tb testing.TB, open Open) {
	b := newBench(tb, open)
	source := b.state("source", entries)
	defer source.Close()
	i := b.full(source, "image")
	s := b.state("replica", 5)
	half := len(i.manifest.Files) / 2
	b.deliver(i, "inbox", half)
	sink, err := s.Stage(i.manifest, "inbox")
	b.must(err)
	for _, f := range i.manifest.Files[:half] {
		b.must(sink.CheckFile(b.Context(), f.Name, f.Verified))
	}
	b.must(s.Close())
	s = b.state("replica", 5)
	sink, err = s.Stage(i.manifest, "inbox")
	b.must(err)
	b.deliver(i, "inbox", len(i.manifest.Files))
	b.check(sink, i, half)
	b.must(sink.Prepare(b.Context()))
	b.must(s.Install(sink))
	b.must(b.same(source, s, "replica").Close())
}

// PrepareAfterRestart: an image that was prepared is staged and prepared again
// after a restart, and the state in between is the old one.
func PrepareAfterRestart(tb testing.TB, open Open) {
	b := newBench(tb, open)
	source := b.state("source", entries)
	defer source.Close()
	i := b.full(source, "image")
	s := b.state("replica", 5)
	b.must(s.Flush())
	old := b.digest(s)
	sink := b.stage(s, i, "inbox")
	b.must(sink.Prepare(b.Context()))
	if got := b.digest(s); got != old || s.Applied() != 5 {
		b.Fatal("Prepare changed the state")
	}
	b.must(s.Close())
	s = b.open(b.fsys, "replica")
	if got := b.digest(s); got != old || s.Applied() != 5 {
		b.Fatal("after a restart between Prepare and Install the state is not the old one")
	}
	sink, err := s.Stage(i.manifest, "inbox")
	b.must(err)
	b.must(sink.Prepare(b.Context()))
	b.must(s.Install(sink))
	b.must(b.same(source, s, "replica").Close())
}

// Discard: an image that is given up leaves nothing, and another can be taken.
func Discard(tb testing.TB, open Open) {
	b := newBench(tb, open)
	source := b.state("source", entries)
	defer source.Close()
	i := b.full(source, "image")
	s := b.state("replica", 5)
	b.must(s.Flush())
	old := b.digest(s)
	for _, prepare := range []bool{false, true} {
		sink := b.stage(s, i, "inbox")
		if prepare {
			b.must(sink.Prepare(b.Context()))
		}
		b.must(sink.Discard())
		b.must(b.fsys.RemoveAll("inbox"))
		b.staged = nil
		if got := b.digest(s); got != old {
			b.Fatalf("prepared %v: Discard changed the state", prepare)
		}
	}
	b.install(s, i, "inbox")
	b.must(b.same(source, s, "replica").Close())
}

// InstallCrash: a crash before any file operation of Install, or right after it,
// leaves the old state or the new one; after it returned, the new one.
func InstallCrash(tb testing.TB, open Open) {
	b := newBench(tb, open)
	source := b.state("source", entries)
	defer source.Close()
	want := b.digest(source)
	images := []image{b.full(source, "image")}
	if i, ok := b.delta(source, "delta", entries-10); ok {
		images = append(images, i)
	}
	for n, i := range images {
		dir := []string{"full", "add"}[n]
		s := b.state(dir, entries-10)
		b.must(s.Flush())
		old := b.digest(s)
		b.must(s.Close())
		fsys, crashes := b.crashes()
		s = b.open(fsys, dir)
		sink := b.stage(s, i, dir+".inbox")
		b.must(sink.Prepare(b.Context()))
		before := len(crashes())
		b.must(s.Install(sink))
		all := crashes()
		after := b.fsys.CrashClone(vfs.CrashCloneCfg{})
		for _, c := range all[before:] {
			b.oldOrNew(c, dir, old, want, true)
		}
		b.oldOrNew(crash{"after the install", after}, dir, old, want, false)
		b.must(s.Close())
	}
}

// oldOrNew opens what a crash left.
func (b *bench) oldOrNew(c crash, dir, old, want string, oldAllowed bool) {
	b.Helper()
	s := b.open(c.fsys, dir)
	got, index := b.digest(s), s.Applied()
	isOld := oldAllowed && got == old && index == entries-10
	if isNew := got == want && index == entries; !isOld && !isNew {
		b.Errorf("crash %s: the state is neither the old nor the new one: index %d", c.what, index)
	}
	b.must(s.Close())
}
