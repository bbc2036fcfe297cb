package kv

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/streamraft/streamraft/raftnode"
)

// diskFault errs write operations on paths that contain a string while it is on.
type diskFault struct {
	path string
	err  error
	on   atomic.Bool
	hits atomic.Int64
}

func (f *diskFault) String() string { return "disk fault" }

// MaybeError errs while the fault is on.
func (f *diskFault) MaybeError(op errorfs.Op) error {
	if !f.on.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || !strings.Contains(op.Path, f.path) {
		return nil
	}
	f.hits.Add(1)
	return f.err
}

// TestDiskFull has the disk fill up and empty again: writing waits without
// spinning, reads and Apply go on in memory, and nothing needs a restart.
func TestDiskFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := &diskFault{path: ".sst", err: syscall.ENOSPC}
		s := openStore(t, Options{FS: errorfs.Wrap(vfs.NewMem(), fault)})
		log := newTestLog()
		log.apply(t, s, put("a", "1"))
		fault.on.Store(true)
		flushed := make(chan error, 1)
		go func() { flushed <- s.Flush() }()
		select {
		case err := <-flushed:
			t.Fatalf("flushed onto a full disk: %v", err)
		case <-time.After(time.Minute): // virtual
		}
		if n := fault.hits.Load(); n < 10 || n > 200 {
			t.Fatalf("%d tries in a minute: want a back-off of up to a second", n)
		}
		log.apply(t, s, put("b", "1"))
		if got, err := s.Get([]byte("b")); err != nil || !got.Found {
			t.Fatal(got, err)
		}
		if s.DurableApplied() != 0 || s.Metrics().BackgroundErrors == 0 || s.Err() != nil {
			t.Fatal(s.Metrics(), s.Err())
		}
		fault.on.Store(false)
		if err := <-flushed; err != nil {
			t.Fatal(err)
		}
		if s.DurableApplied() < 1 {
			t.Fatal("not durable after the flush")
		}
		// Closing with the disk full does not wait for space.
		fault.on.Store(true)
		log.apply(t, s, put("c", "1"))
		if _, err := s.current.Load().db.AsyncFlush(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		closeStore(t, s)
		if waited := time.Since(begin); waited > 5*time.Second {
			t.Fatalf("closing took %s", waited)
		}
	})
}

// TestFatal has the manifest fail, which Pebble calls fatal: the store fails
// once, says so, and is touched no more.
func TestFatal(t *testing.T) {
	fault := &diskFault{path: "MANIFEST", err: errors.New("the disk is gone")}
	var reported atomic.Int64
	shared, err := NewShared(SharedOptions{CacheBytes: 8 << 20, OpenTables: 64})
	if err != nil {
		t.Fatal(err)
	}
	mem := vfs.NewCrashableMem()
	s := newStore(t, Options{FS: errorfs.Wrap(mem, fault), Shared: shared, OnFailure: func(err error) {
		reported.Add(1)
		if !errors.Is(err, ErrFailed) {
			t.Errorf("reported %v", err)
		}
	}})
	makeDir(t, mem)
	if _, err := s.Open(testDir); err != nil {
		t.Fatal(err)
	}
	log := newTestLog()
	log.apply(t, s, put("a", "1"))
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	log.apply(t, s, put("a", "2"))
	fault.on.Store(true)
	if err := s.Flush(); !errors.Is(err, ErrFailed) {
		t.Fatalf("flush: %v, want ErrFailed", err)
	}
	<-s.Failed()
	hits := fault.hits.Load()
	log.add(put("a", "3"))
	_, applyErr := s.Apply(log.take())
	_, getErr := s.Get([]byte("a"))
	_, rangeErr := s.Range(t.Context(), RangeOptions{})
	_, digestErr := s.DigestAt(t.Context(), 99)
	for name, err := range map[string]error{
		"apply": applyErr, "get": getErr, "range": rangeErr, "digest": digestErr, "flush": s.Flush(), "err": s.Err(),
	} {
		var failed *FailedError
		if !errors.As(err, &failed) || failed.Group != 2 || !strings.Contains(err.Error(), "the disk is gone") {
			t.Errorf("%s: %v, want a FailedError that says why", name, err)
		}
	}
	if m := s.Metrics(); !m.Failed || m.AppliedIndex != 2 || m.DurableIndex != 1 || s.DurableApplied() != 1 {
		t.Errorf("figures of a failed store: %+v", m)
	}
	if err := s.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("close: %v, want ErrFailed", err)
	}
	if reported.Load() != 1 || fault.hits.Load() != hits {
		t.Errorf("reported %d times; %d operations after the failure", reported.Load(), fault.hits.Load()-hits)
	}
	// What is durable is there for the next one.
	next := openStore(t, Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if got, err := next.Get([]byte("a")); err != nil || string(got.Record.Value) != "1" || got.Index != 1 {
		t.Errorf("after the failure: %+v, %v", got, err)
	}
}

// nthFault errs the write operation number n, from 0.
type nthFault struct {
	n     int32
	armed atomic.Bool
	seen  atomic.Int32
}

func (f *nthFault) String() string { return "nth fault" }

// MaybeError counts.
func (f *nthFault) MaybeError(op errorfs.Op) error {
	if f.armed.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && f.seen.Add(1)-1 == f.n {
		return errorfs.ErrInjected
	}
	return nil
}

// TestOpenFails has each write of Open fail in turn: an error or a panic of the
// database is an error of Open, and the next Open works.
func TestOpenFails(t *testing.T) {
	for n := int32(0); ; n++ {
		mem := vfs.NewCrashableMem()
		makeDir(t, mem)
		fault := &nthFault{n: n}
		s := newStore(t, Options{FS: errorfs.Wrap(mem, fault)})
		fault.armed.Store(true)
		_, err := s.Open(testDir)
		if err == nil {
			fault.armed.Store(false)
			closeStore(t, s)
			if fault.seen.Load() > n {
				// Pebble did without it.
				continue
			}
			if n < 10 {
				t.Fatalf("Open wrote only %d times", n)
			}
			return
		}
		next := openStore(t, Options{FS: mem.CrashClone(vfs.CrashCloneCfg{})})
		if applied, err := (next.AppliedIndex()), next.Err(); applied != 0 || err != nil {
			t.Fatalf("fault %d: applied %d, %v", n, applied, err)
		}
		closeStore(t, next)
	}
}

// TestOpenRefuses wants errors, and never an empty state, for states that are
// gone or of a newer release.
func TestOpenRefuses(t *testing.T) {
	mem := vfs.NewMem()
	s, log := openStore(t, Options{FS: mem}), newTestLog()
	log.apply(t, s, put("a", "1"))
	closeStore(t, s)
	db, err := pebble.Open(mem.PathJoin(testDir, "000001"), s.newDatabase("", "").pebbleOptions())
	if err != nil {
		t.Fatal(err)
	}
	newer := newAppliedRecord()
	newer.schema = schemaVersion + 1
	if err := errors.Join(db.Set([]byte(spaceApplied), appendApplied(nil, &newer), pebble.NoSync), db.Flush(), db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := newStore(t, Options{FS: mem}).Open(testDir); !errors.Is(err, ErrSchemaTooNew) {
		t.Errorf("newer schema: %v", err)
	}
	if err := mem.RemoveAll(mem.PathJoin(testDir, "000001")); err != nil {
		t.Fatal(err)
	}
	if _, err := newStore(t, Options{FS: mem}).Open(testDir); !errors.Is(err, ErrStateMissing) {
		t.Errorf("missing state: %v", err)
	}
}

// TestOutOfOrder wants gaps, repetitions and split indexes refused untouched.
func TestOutOfOrder(t *testing.T) {
	s, log := openStore(t, Options{}), newTestLog()
	log.apply(t, s, put("a", "1"))
	for name, entries := range map[string][]raftnode.Entry{
		"gap":         {{Index: 3, Last: true}},
		"repetition":  {{Index: 1, Last: true}},
		"split index": {{Index: 2}},
		"ordinal":     {{Index: 2, Ordinal: 1, Last: true}},
		"later gap":   {{Index: 2, Last: true, Data: put("a", "2")}, {Index: 4, Last: true}},
	} {
		if _, err := s.Apply(entries); !errors.Is(err, ErrOutOfOrder) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := s.Get([]byte("a")); err != nil || string(got.Record.Value) != "1" || got.Index != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	log.apply(t, s, put("a", "3"))
}

// TestClosed wants every call after Close refused.
func TestClosed(t *testing.T) {
	s := openStore(t, Options{})
	closeStore(t, s)
	_, getErr := s.Get([]byte("a"))
	_, applyErr := s.Apply(nil)
	for _, err := range []error{getErr, applyErr, s.Flush(), s.Close()} {
		if !errors.Is(err, ErrNotOpen) {
			t.Errorf("%v, want ErrNotOpen", err)
		}
	}
}

// TestWriteStallIsTold: Metrics tell while memtables are full and cannot be
// flushed, and no longer.
func TestWriteStallIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := &diskFault{path: ".sst", err: syscall.ENOSPC}
		s := openStore(t, Options{FS: errorfs.Wrap(vfs.NewMem(), fault)})
		fault.on.Store(true)
		filled := make(chan struct{})
		go func() {
			defer close(filled)
			log := newTestLog()
			for i := range 80 {
				log.apply(t, s, put(fmt.Sprint("k", i), strings.Repeat("v", 100_000)))
			}
		}()
		synctest.Wait()
		select {
		case <-filled:
			t.Fatal("8 MB fit into memtables of 1 MiB")
		default:
		}
		if m := s.Metrics(); !m.WriteStalled || !strings.Contains(m.String(), "writes are held up") {
			t.Error(m)
		}
		fault.on.Store(false)
		<-filled
		if m := s.Metrics(); m.WriteStalled {
			t.Error(m)
		}
	})
}
