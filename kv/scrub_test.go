package kv

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// stateTables returns the names of the tables in the state's directory.
func stateTables(tb testing.TB, s *Store) []string {
	tb.Helper()
	names, err := s.opts.FS.List(s.current.Load().path)
	if err != nil {
		tb.Fatal(err)
	}
	var tables []string
	for _, name := range names {
		if isTable(name) {
			tables = append(tables, name)
		}
	}
	return tables
}

// flip inverts a byte in the middle of a file.
func flip(tb testing.TB, fs vfs.FS, path string) {
	tb.Helper()
	info, err := fs.Stat(path)
	if err != nil {
		tb.Fatal(err)
	}
	file, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		tb.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := file.ReadAt(b, info.Size()/2); err != nil {
		tb.Fatal(err)
	}
	b[0] ^= 0xff
	if _, err := file.WriteAt(b, info.Size()/2); err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		tb.Fatal(err)
	}
}

// fillLog adds puts of random-looking values.
func fillLog(log *testLog, n, size int) {
	for i := range n {
		value := make([]byte, size)
		for at := range value {
			value[at] = byte(at*at*31 + i*7 + at>>3)
		}
		log.add(EncodePut(nil, fmt.Appendf(nil, "key %06d", i), value, nil))
	}
}

// TestScrubber reads a sound state and remembers its digests, finds a flipped
// bit after a restart, and says so once for each table.
func TestScrubber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, log := vfs.NewMem(), newTestLog()
		var damaged []error
		opts := Options{FS: fs, Shared: testShared(t), OnDamage: func(err error) { damaged = append(damaged, err) }}
		s := openStore(t, opts)
		fillLog(log, 300, 1000)
		if _, err := s.Apply(log.take()); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		synctest.Wait()
		tables := stateTables(t, s)
		if m := s.Metrics(); m.TablesScrubbed < 1 || m.TablesDamaged != 0 || len(damaged) != 0 {
			t.Fatalf("scrubbed %d, damaged %d: %v", m.TablesScrubbed, m.TablesDamaged, damaged)
		}
		d := s.current.Load()
		path := fs.PathJoin(d.path, tables[0])
		want, size, err := digestFile(fs, path, contextPacer(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := d.scrubbed.sound(tables[0], size); !ok || got != want {
			t.Fatalf("digest %x, %v, want %x", got, ok, want)
		}
		if _, ok := d.scrubbed.sound(tables[0], size+1); ok {
			t.Fatal("sound with another size")
		}
		closeStore(t, s)

		flip(t, fs, path)
		s = openStore(t, opts)
		pass(time.Minute)
		synctest.Wait()
		if m := s.Metrics(); m.TablesDamaged != 1 || len(damaged) != 1 || !errors.Is(damaged[0], snapshot.ErrCorrupt) {
			t.Fatalf("damaged %d: %v", m.TablesDamaged, damaged)
		}
		if s.Err() != nil {
			t.Fatal("the store failed", s.Err())
		}
		closeStore(t, s)
	})
}

// TestReadFindsDamage: a block that went bad after it was checked is an error for
// who reads it, and is reported once; Apply tells that the state is unsound. The
// store does not fail: its database can be closed and another one opened.
func TestReadFindsDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs, log := vfs.NewMem(), newTestLog()
		damaged := 0
		opts := Options{FS: fs, Shared: testShared(t), ScrubBytesPerSecond: -1, OnDamage: func(error) { damaged++ }}
		s := openStore(t, opts)
		fillLog(log, 300, 1000)
		if _, err := s.Apply(log.take()); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		path := fs.PathJoin(s.current.Load().path, stateTables(t, s)[0])
		closeStore(t, s)
		flip(t, fs, path)
		s = openStore(t, opts)
		// Each failed read takes Pebble a while: it looks for the bit that flipped.
		var bad []byte
		for i := 0; i < 300 && damaged == 0; i++ {
			bad = fmt.Appendf(nil, "key %06d", i)
			_, _ = s.Get(bad)
		}
		if _, err := s.Get(bad); err == nil || damaged != 1 || s.Metrics().TablesDamaged != 1 || s.Err() != nil {
			t.Errorf("get %q: %v; damage was reported %d times, the store failed with %v", bad, err, damaged, s.Err())
		}
		txn, err := EncodeTxn(nil, &kvv1.Txn{Compares: []*kvv1.Compare{{Key: bad, Condition: &kvv1.Compare_Exists{Exists: true}}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		log.add(txn)
		_, err = s.Apply(log.take())
		if !errors.Is(err, raftnode.ErrUnsound) || s.Err() != nil {
			t.Errorf("apply: %v; the store failed with %v", err, s.Err())
		}
		if _, again := s.Apply(nil); !errors.Is(again, raftnode.ErrUnsound) {
			t.Errorf("apply after it: %v", again)
		}
		closeStore(t, s)
	})
}

// TestScrubberYields has the scrubber hold its rate, and wait longer while
// commands are applied.
func TestScrubberYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		opts := Options{FS: fs, Shared: testShared(t), ScrubBytesPerSecond: 100 << 10}
		opts.Compression = CompressionNone
		s, log := openStore(t, opts), newTestLog()
		fillLog(log, 600, 1000)
		if _, err := s.Apply(log.take()); err != nil {
			t.Fatal(err)
		}
		scrub := func(load bool) time.Duration {
			before, begin := s.Metrics().TablesScrubbed, time.Now()
			var stop atomic.Bool
			done := make(chan struct{})
			go func() {
				defer close(done)
				for !stop.Load() {
					if load {
						s.counters.commands.Add(1000)
					}
					pass(20 * time.Millisecond)
				}
			}()
			for s.Metrics().TablesScrubbed == before && time.Since(begin) < time.Hour {
				pass(10 * time.Millisecond)
			}
			stop.Store(true)
			<-done
			return time.Since(begin)
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		// 600 kB are read twice at 100 KiB/s.
		idle := scrub(false)
		if idle < 10*time.Second || idle > 20*time.Second {
			t.Fatalf("an idle store was scrubbed in %s", idle)
		}
		fillLog(log, 600, 1000)
		if _, err := s.Apply(log.take()); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		if busy := scrub(true); busy < 2*idle || busy == time.Hour {
			t.Fatalf("a busy store was scrubbed in %s, an idle one in %s", busy, idle)
		}
		closeStore(t, s)
	})
}
