package kv

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// imageBenchBytes is the size of the state that images are made of.
const imageBenchBytes = 256 << 20

// imageBench is a store on a real disk with imageBenchBytes of records, flushed
// and compacted.
type imageBench struct {
	store   *Store
	log     *testLog
	records int
	random  *rand.Rand
}

func newImageBench(b *testing.B) *imageBench {
	b.Helper()
	dir := b.TempDir()
	b.Chdir(dir)
	shared, err := NewShared(SharedOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := shared.Close(); err != nil {
			b.Error(err)
		}
	})
	i := &imageBench{log: newTestLog(), records: imageBenchBytes / (16 + 256), random: rand.New(rand.NewPCG(1, 1))}
	i.store = openStore(b, Options{FS: vfs.Default, Shared: shared, MemTableBytes: 64 << 20, ScrubBytesPerSecond: 1 << 40})
	i.put(b, i.records, func(n int) uint64 { return uint64(n) })
	i.settle(b)
	return i
}

// put puts n records; which key comes n-th, which says.
func (i *imageBench) put(b *testing.B, n int, which func(int) uint64) {
	b.Helper()
	key, value := make([]byte, 16), make([]byte, 256)
	for done := 0; done < n; {
		var commands [][]byte
		for ; done < n && len(commands) < 512; done++ {
			// Spread over the key space, as hashed keys are.
			binary.BigEndian.PutUint64(key, which(done)*0x9e3779b97f4a7c15)
			for at := 0; at < len(value); at += 8 {
				binary.LittleEndian.PutUint64(value[at:], i.random.Uint64())
			}
			commands = append(commands, EncodePut(nil, key, value, nil))
		}
		i.log.apply(b, i.store, commands...)
	}
}

// settle flushes and compacts.
func (i *imageBench) settle(b *testing.B) {
	b.Helper()
	if err := i.store.Flush(); err != nil {
		b.Fatal(err)
	}
	if err := i.store.current.Load().db.Compact(b.Context(), []byte("a"), []byte("z"), true); err != nil {
		b.Fatal(err)
	}
	i.store.refreshFigures(i.store.current.Load().db)
}

// have is what a follower says that has all so far.
func (i *imageBench) have() snapshot.Have {
	return snapshot.Have{Index: i.log.index, Term: i.log.term, Schema: schemaVersion, StateFormat: stateFormat()}
}

// BenchmarkCheckpoint makes an image of files of 256 MiB.
func BenchmarkCheckpoint(b *testing.B) {
	i := newImageBench(b)
	for b.Loop() {
		i.write(b, snapshot.Have{})
	}
}

// write captures and writes an image, and nothing beside.
func (i *imageBench) write(b *testing.B, have snapshot.Have) *snapshotv1.Manifest {
	b.Helper()
	b.StopTimer()
	emptyDir(b, vfs.Default, imageDir)
	b.StartTimer()
	capture, err := i.store.Capture(have, 0)
	if err != nil {
		b.Fatal(err)
	}
	m, err := capture.Write(b.Context(), imageDir)
	if err := errors.Join(err, capture.Close()); err != nil {
		b.Fatal(err)
	}
	return m
}

// BenchmarkDelta5Percent builds the delta after 5 % of the records of 256 MiB
// were overwritten at random.
func BenchmarkDelta5Percent(b *testing.B) {
	i := newImageBench(b)
	have := i.have()
	i.put(b, i.records/20, func(int) uint64 { return i.random.Uint64N(uint64(i.records)) })
	i.settle(b)
	var bytes uint64
	for b.Loop() {
		m := i.write(b, have)
		if m.GetFromIndex() == 0 {
			b.Fatal(m)
		}
		bytes = m.GetBytes()
	}
	b.ReportMetric(float64(bytes)/(1<<20), "MiB")
	b.ReportMetric(100*float64(bytes)/float64(i.store.StateBytes()), "%state")
}

// BenchmarkInstall installs images in a store that holds 256 MiB: Prepare is
// what is done before raft hears of the image, Install what holds up the group.
func BenchmarkInstall(b *testing.B) {
	for _, kind := range []string{"files", "files-unchecked", "delta"} {
		b.Run(kind, func(b *testing.B) {
			i := newImageBench(b)
			var check, prepare, install time.Duration
			runs := 0
			for b.Loop() {
				b.StopTimer()
				have := i.have()
				if kind != "delta" {
					have = snapshot.Have{}
				}
				i.put(b, i.records/20, func(int) uint64 { return i.random.Uint64N(uint64(i.records)) })
				if err := i.store.Flush(); err != nil {
					b.Fatal(err)
				}
				m, err := writeImage(b, i.store, have, 0)
				if err != nil {
					b.Fatal(err)
				}
				// It is installed in the store itself: the state is as large as a
				// follower's that is behind.
				if err := os.RemoveAll(inboxDir); err != nil {
					b.Fatal(err)
				}
				copyImage(b, m, vfs.Default, vfs.Default)
				sink, err := i.store.Stage(m, inboxDir)
				if err != nil {
					b.Fatal(err)
				}
				begin := time.Now()
				for _, file := range m.GetFiles() {
					if err := sink.CheckFile(b.Context(), file.GetName(), kind != "files-unchecked"); err != nil {
						b.Fatal(err)
					}
				}
				check += time.Since(begin)
				begin = time.Now()
				if err := sink.Prepare(b.Context()); err != nil {
					b.Fatal(err)
				}
				prepare += time.Since(begin)
				b.StartTimer()
				begin = time.Now()
				if err := i.store.Install(sink); err != nil {
					b.Fatal(err)
				}
				install += time.Since(begin)
				runs++
			}
			b.ReportMetric(float64(check.Milliseconds())/float64(runs), "check-ms")
			b.ReportMetric(float64(prepare.Microseconds())/1000/float64(runs), "prepare-ms")
			b.ReportMetric(float64(install.Microseconds())/1000/float64(runs), "install-ms")
		})
	}
}
