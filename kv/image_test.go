package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// grown returns a store with a random log applied, and the log.
func grown(tb testing.TB, opts Options, seed uint64, indexes int) (*Store, *randomLog) {
	tb.Helper()
	s, log := openStore(tb, opts), newRandomLog(seed)
	log.grow(indexes)
	if _, err := s.Apply(log.take()); err != nil {
		tb.Fatal(err)
	}
	return s, log
}

// TestFilesImage moves the state by files into a store that holds another one:
// index, digest and journal are the source's, nothing of the old state is left,
// and both go on alike.
func TestFilesImage(t *testing.T) {
	for _, scrubbed := range []bool{false, true} {
		t.Run(fmt.Sprintf("scrubbed=%v", scrubbed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shared := testShared(t)
				opts := Options{Shared: shared}
				if !scrubbed {
					opts.ScrubBytesPerSecond = -1
				}
				source, log := grown(t, opts, 1, 200)
				if err := source.Flush(); err != nil {
					t.Fatal(err)
				}
				flushed := source.DurableApplied()
				log.grow(20)
				if _, err := source.Apply(log.take()); err != nil {
					t.Fatal(err)
				}
				if scrubbed {
					pass(time.Minute)
				}
				if _, err := writeImage(t, source, snapshot.Have{}, flushed+1); !errors.Is(err, snapshot.ErrTooOld) {
					t.Fatalf("an image at %d: %v", flushed+1, err)
				}
				m, err := writeImage(t, source, snapshot.Have{}, flushed)
				if err != nil {
					t.Fatal(err)
				}
				if m.GetKind() != snapshotv1.Kind_KIND_FILES || m.GetIndex() != flushed || m.GetRecords() == 0 {
					t.Fatalf("manifest %v", m)
				}
				for _, file := range m.GetFiles() {
					if isTable(file.GetName()) && file.GetVerified() != scrubbed {
						t.Fatalf("%v: scrubbed is %v", file, scrubbed)
					}
				}
				receiver, _ := grown(t, Options{Shared: shared}, 2, 30)
				installImage(t, receiver, m, source.opts.FS)
				// At the index of the image, both are one.
				reference, relog := openStore(t, Options{Shared: shared}), newRandomLog(1)
				relog.grow(200)
				if _, err := reference.Apply(relog.take()); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(dump(t, reference), dump(t, receiver)); diff != "" {
					t.Fatalf("the installed state differs:\n%s", diff)
				}
				if receiver.DurableApplied() != flushed || receiver.AppliedIndex() != flushed {
					t.Fatalf("durable %d, applied %d, want %d", receiver.DurableApplied(), receiver.AppliedIndex(), flushed)
				}
				relog.grow(20)
				rest := relog.take()
				if _, err := receiver.Apply(rest); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(dump(t, source), dump(t, receiver)); diff != "" {
					t.Fatalf("the states part after the install:\n%s", diff)
				}
				// The old directory goes, and a restart finds the new one.
				pass(time.Second)
				if dirs := stateDirs(t, receiver.opts.FS); len(dirs) != 1 {
					t.Fatalf("state directories %v", dirs)
				}
				if err := receiver.Flush(); err != nil {
					t.Fatal(err)
				}
				closeStore(t, receiver)
				again := openStore(t, Options{Shared: shared, FS: receiver.opts.FS})
				if diff := cmp.Diff(dump(t, source), dump(t, again)); diff != "" {
					t.Fatalf("after a restart:\n%s", diff)
				}
				for _, s := range []*Store{source, reference, again} {
					closeStore(t, s)
				}
			})
		})
	}
}

// stateDirs returns the directories in the state directory.
func stateDirs(tb testing.TB, fs vfs.FS) []string {
	tb.Helper()
	names, err := fs.List(testDir)
	if err != nil {
		tb.Fatal(err)
	}
	var dirs []string
	for _, name := range names {
		if !strings.HasPrefix(name, markerPrefix) {
			dirs = append(dirs, name)
		}
	}
	return dirs
}

// TestRecordsImage moves the whole state as records, to a store of an older
// format.
func TestRecordsImage(t *testing.T) {
	shared := testShared(t)
	source, log := grown(t, Options{Shared: shared}, 3, 300)
	source.records.tableBytes = 300
	if err := source.Flush(); err != nil {
		t.Fatal(err)
	}
	log.grow(50)
	if _, err := source.Apply(log.take()); err != nil {
		t.Fatal(err)
	}
	m, err := writeImage(t, source, snapshot.Have{StateFormat: uint32(pebble.FormatFlushableIngest)}, source.AppliedIndex())
	if err != nil {
		t.Fatal(err)
	}
	if m.GetKind() != snapshotv1.Kind_KIND_RECORDS || m.GetFromIndex() != 0 || m.GetIndex() != source.AppliedIndex() || len(m.GetFiles()) < 4 {
		t.Fatalf("manifest %v", m)
	}
	receiver, _ := grown(t, Options{Shared: shared}, 4, 30)
	installImage(t, receiver, m, source.opts.FS)
	want := dump(t, source)
	want = strings.Replace(want, "journalLow:0}", fmt.Sprintf("journalLow:%d}", source.AppliedIndex()), 1)
	if diff := cmp.Diff(want, dump(t, receiver)); diff != "" {
		t.Fatalf("the installed state differs:\n%s", diff)
	}
	if m := receiver.Metrics(); m.JournalLow != source.AppliedIndex() {
		t.Fatalf("journal_low %d, want %d", m.JournalLow, source.AppliedIndex())
	}
	// The next delta from there knows the term.
	have := snapshot.Have{Index: receiver.AppliedIndex(), Term: receiver.Metrics().Term, Schema: schemaVersion}
	log.grow(30)
	entries := log.take()
	for _, s := range []*Store{source, receiver} {
		if _, err := s.Apply(entries); err != nil {
			t.Fatal(err)
		}
	}
	if fits, err := receiver.deltaFits(have); err != nil || !fits {
		t.Fatalf("a delta from the image's index: %v, %v", fits, err)
	}
	closeStore(t, receiver)
}

// TestReadersOfOldState has readers go on over an install: short ones to their
// end, endless ones for 30 seconds.
func TestReadersOfOldState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := testShared(t)
		source, _ := grown(t, Options{Shared: shared}, 1, 100)
		if err := source.Flush(); err != nil {
			t.Fatal(err)
		}
		m, err := writeImage(t, source, snapshot.Have{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		receiver, _ := grown(t, Options{Shared: shared}, 2, 10)
		old, err := receiver.acquire()
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		installImage(t, receiver, m, source.opts.FS)
		if time.Since(begin) > time.Second {
			t.Fatal("the install waited for a reader")
		}
		select {
		case <-old.cut:
			t.Fatal("readers were cut off at once")
		case <-time.After(readersEnd - time.Second): // virtual
		}
		if got, err := loadApplied(old.db, nil); err != nil || got.Index != 10 {
			t.Fatal(got, err)
		}
		if len(stateDirs(t, receiver.opts.FS)) != 2 {
			t.Fatal("the old directory is gone under a reader")
		}
		<-old.cut
		iter, err := old.db.NewIter(nil)
		if err != nil {
			t.Fatal(err)
		}
		lower, upper, _ := spaceSpan(spaceRecords, nil, nil)
		if _, err := page(context.Background(), old, iter, spaceRecords, lower, upper, RangeOptions{}); !errors.Is(err, ErrReplaced) {
			t.Fatalf("a long read: %v", err)
		}
		if err := iter.Close(); err != nil {
			t.Fatal(err)
		}
		old.release()
		synctest.Wait()
		if dirs := stateDirs(t, receiver.opts.FS); len(dirs) != 1 {
			t.Fatalf("state directories %v", dirs)
		}
		closeStore(t, receiver)
		closeStore(t, source)
	})
}

// TestStageRefuses wants images that do not fit, or are damaged, refused.
func TestStageRefuses(t *testing.T) {
	shared := testShared(t)
	source, _ := grown(t, Options{Shared: shared, MemTableBytes: 64 << 10}, 1, 300)
	if err := source.Flush(); err != nil {
		t.Fatal(err)
	}
	m, err := writeImage(t, source, snapshot.Have{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	receiver := openStore(t, Options{Shared: shared})
	for name, change := range map[string]func(*snapshotv1.Manifest){
		"schema":      func(m *snapshotv1.Manifest) { m.Schema++ },
		"format":      func(m *snapshotv1.Manifest) { m.StateFormat++ },
		"kind":        func(m *snapshotv1.Manifest) { m.Kind = snapshotv1.Kind_KIND_STREAM },
		"id":          func(m *snapshotv1.Manifest) { m.Image = m.Image[1:] },
		"path":        func(m *snapshotv1.Manifest) { m.Files[0].Name = "../x" },
		"dots":        func(m *snapshotv1.Manifest) { m.Files[0].Name = ".." },
		"twice":       func(m *snapshotv1.Manifest) { m.Files[0].Name = m.Files[1].Name },
		"empty":       func(m *snapshotv1.Manifest) { m.Files = nil },
		"files delta": func(m *snapshotv1.Manifest) { m.FromIndex = 1 },
		"delta above": func(m *snapshotv1.Manifest) { m.Kind, m.FromIndex = snapshotv1.Kind_KIND_RECORDS, 1 },
	} {
		changed := clone(m)
		change(changed)
		if _, err := receiver.Stage(changed, inboxDir); !errors.Is(err, snapshot.ErrUnfit) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var table, manifest string
	for _, file := range m.GetFiles() {
		if isTable(file.GetName()) {
			table = file.GetName()
		}
		if strings.HasPrefix(file.GetName(), "MANIFEST") {
			manifest = file.GetName()
		}
	}
	fs := receiver.opts.FS
	for name, change := range map[string]func(*snapshotv1.Manifest){
		"flipped table":    func(*snapshotv1.Manifest) { flip(t, fs, fs.PathJoin(inboxDir, table)) },
		"flipped manifest": func(*snapshotv1.Manifest) { flip(t, fs, fs.PathJoin(inboxDir, manifest)) },
		"missing": func(*snapshotv1.Manifest) {
			if err := fs.Remove(fs.PathJoin(inboxDir, table)); err != nil {
				t.Fatal(err)
			}
		},
		"size":       func(m *snapshotv1.Manifest) { m.Files[0].Size++ },
		"index":      func(m *snapshotv1.Manifest) { m.Index++ },
		"term":       func(m *snapshotv1.Manifest) { m.Term++ },
		"clock":      func(m *snapshotv1.Manifest) { m.Clock++ },
		"membership": func(m *snapshotv1.Manifest) { m.Membership = []byte("other") },
	} {
		copyImage(t, m, source.opts.FS, fs)
		changed := clone(m)
		change(changed)
		sink, err := prepareImage(t, receiver, changed)
		if !errors.Is(err, snapshot.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if err := receiver.Install(sink); !errors.Is(err, errNotPrepared) {
			t.Errorf("%s: installed: %v", name, err)
		}
		if err := sink.Discard(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if dirs := stateDirs(t, fs); len(dirs) != 1 {
			t.Errorf("%s: state directories %v", name, dirs)
		}
	}
	if receiver.Err() != nil || receiver.AppliedIndex() != 0 {
		t.Error("the store was touched", receiver.Err())
	}
}

// TestStagedSurvivesRestart has a restart between Prepare and Install: where the
// image is to be kept its directory is found, otherwise it is swept.
func TestStagedSurvivesRestart(t *testing.T) {
	shared := testShared(t)
	source, _ := grown(t, Options{Shared: shared}, 1, 100)
	if err := source.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, have := range []snapshot.Have{{}, {StateFormat: uint32(pebble.FormatFlushableIngest)}} {
		for _, keep := range []bool{true, false} {
			m, err := writeImage(t, source, have, 0)
			if err != nil {
				t.Fatal(err)
			}
			receiver, _ := grown(t, Options{Shared: shared}, 2, 10)
			copyImage(t, m, source.opts.FS, receiver.opts.FS)
			if _, err := prepareImage(t, receiver, m); err != nil {
				t.Fatal(err)
			}
			closeStore(t, receiver)
			opts := Options{Shared: shared, FS: receiver.opts.FS}
			if keep {
				opts.KeepImages = func() [][]byte { return [][]byte{m.GetImage()} }
			}
			again := openStore(t, opts)
			if swept := again.Metrics().DirectoriesSwept; swept != int64(btoi(!keep)) {
				t.Fatalf("swept %d directories", swept)
			}
			sink, err := prepareImage(t, again, m)
			if !keep {
				if err == nil {
					t.Fatal("prepared from nothing")
				}
				closeStore(t, again)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := again.Install(sink); err != nil {
				t.Fatal(err)
			}
			if again.AppliedIndex() != m.GetIndex() {
				t.Fatalf("applied %d", again.AppliedIndex())
			}
			if _, err := again.Stage(m, inboxDir); !errors.Is(err, snapshot.ErrUnfit) {
				t.Fatalf("staging the state itself: %v", err)
			}
			closeStore(t, again)
		}
	}
}

// TestInstallWithoutState takes an image where the state does not open: that is
// how a quarantined replica comes back.
func TestInstallWithoutState(t *testing.T) {
	shared := testShared(t)
	source, _ := grown(t, Options{Shared: shared}, 1, 100)
	if err := source.Flush(); err != nil {
		t.Fatal(err)
	}
	m, err := writeImage(t, source, snapshot.Have{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	broken, _ := grown(t, Options{Shared: shared}, 2, 10)
	fs := broken.opts.FS
	closeStore(t, broken)
	if err := fs.RemoveAll(broken.opts.FS.PathJoin(testDir, "000001")); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, Options{Shared: shared, FS: fs})
	if _, err := s.Open(testDir); !errors.Is(err, ErrStateMissing) {
		t.Fatal(err)
	}
	if have := s.Have(); have.Index != 0 || have.Schema == 0 {
		t.Fatalf("have %+v", have)
	}
	installImage(t, s, m, source.opts.FS)
	if err := s.Close(); !errors.Is(err, ErrNotOpen) {
		t.Fatal(err)
	}
	again := openStore(t, Options{Shared: shared, FS: fs})
	if diff := cmp.Diff(dump(t, source), dump(t, again)); diff != "" {
		t.Fatal(diff)
	}
}

// TestDamagedIsNoSource wants no image of a state that the scrubber found
// damaged.
func TestDamagedIsNoSource(t *testing.T) {
	s, _ := grown(t, Options{}, 1, 10)
	s.damaged(errors.New("a test says so"))
	if _, err := s.Capture(snapshot.Have{}, 0); !errors.Is(err, snapshot.ErrCorrupt) {
		t.Fatal(err)
	}
}

// TestPinJournal has a pin keep the journal over its budget, but not for ever.
func TestPinJournal(t *testing.T) {
	const budget = 16 << 10
	s, log := openStore(t, Options{JournalBytes: budget, MemTableBytes: 8 << 20}), newTestLog()
	release := s.PinJournal(5)
	// Large values: a quarter of the state is far more than the budget.
	write := func(n int) {
		for range n {
			log.apply(t, s, EncodePut(nil, fmt.Appendf(nil, "%0200d", log.index), make([]byte, 1500), nil))
		}
	}
	write(500)
	if low := s.Metrics().JournalLow; low > 5 {
		t.Fatalf("journal_low %d over a pin at 5", low)
	}
	release()
	release()
	write(1)
	if low := s.Metrics().JournalLow; low < 300 {
		t.Fatalf("journal_low %d after the pin", low)
	}
	s.PinJournal(s.AppliedIndex())
	pinned := s.AppliedIndex()
	for range 50 {
		for range 20 {
			log.add(EncodePut(nil, fmt.Appendf(nil, "%0200d", log.index%100), nil, nil))
		}
		if _, err := s.Apply(log.take()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	for s.Metrics().JournalLow <= pinned && log.index < 100_000 {
		for range 20 {
			log.add(EncodePut(nil, fmt.Appendf(nil, "%0200d", log.index%100), nil, nil))
		}
		if _, err := s.Apply(log.take()); err != nil {
			t.Fatal(err)
		}
	}
	if s.Metrics().JournalLow <= pinned {
		t.Fatal("a pin holds for ever")
	}
}

func clone(m *snapshotv1.Manifest) *snapshotv1.Manifest {
	return proto.Clone(m).(*snapshotv1.Manifest)
}
