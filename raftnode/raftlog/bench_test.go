package raftlog

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
)

// discardFS keeps segments' sizes but not their content, so that BenchmarkAppend
// measures this package and not a disk.
type discardFS struct{ vfs.FS }

func (f discardFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, opts...)
	return discardFile{file}, err
}

type discardFile struct{ vfs.File }

func (discardFile) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }
func (discardFile) SyncData() error                        { return nil }

// BenchmarkAppend appends batches of n entries of 256 bytes spread over 16
// groups, cutting each group behind 1,000 entries.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1, 64, 1024} {
		for _, kind := range []string{"cpu", "disk"} {
			b.Run(fmt.Sprintf("entries=%d/%s", n, kind), func(b *testing.B) {
				o := Options{FS: vfs.FS(discardFS{vfs.NewMem()}), Dir: "log", SegmentBytes: 8 << 20}
				if kind == "disk" {
					o = Options{Dir: b.TempDir()}
				}
				l := mustOpen(b, o)
				const groups = 16
				per := max(n/groups, 1)
				data := make([]byte, 256)
				next := [groups]uint64{}
				updates := make([]Update, 0, groups)
				g := 0
				b.ReportAllocs()
				for b.Loop() {
					b.StopTimer()
					updates = updates[:0]
					for range (n + per - 1) / per {
						g = (g + 1) % groups
						es := make([]*raftpb.Entry, per)
						for i := range es {
							next[g]++
							es[i] = entry(1, next[g], data)
						}
						u := Update{Group: uint64(g + 1), Entries: es, HardState: hard(1, 1, next[g])}
						if last := next[g]; last > 1000 && (last/uint64(per))%8 == 0 {
							u.Marker = &Marker{last - 1000, 1}
						}
						updates = append(updates, u)
					}
					b.StartTimer()
					if err := l.Append(updates, true); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/entry")
				b.SetBytes(int64(n * len(data)))
				mustClose(b, l)
			})
		}
	}
}

// BenchmarkEntries reads runs of 64 entries of 256 bytes of one of 16 groups whose
// entries lie mixed.
func BenchmarkEntries(b *testing.B) {
	for name, cache := range map[string]int64{"cached": 0, "cold": -1} {
		b.Run(name, func(b *testing.B) {
			l := mustOpen(b, Options{Dir: b.TempDir(), SegmentBytes: 16 << 20, CacheBytes: cache})
			defer mustClose(b, l)
			const count = 1024
			for i := range uint64(count / 8) {
				var us []Update
				for g := range uint64(16) {
					us = append(us, Update{Group: g + 1, Entries: entries(1, 1+8*i, 8, 256)})
				}
				mustAppend(b, l, false, us...)
			}
			g := l.Group(3)
			b.ReportAllocs()
			b.SetBytes(64 * 256)
			lo := uint64(1)
			for b.Loop() {
				es, err := g.Entries(lo, lo+64, ^uint64(0))
				if err != nil || len(es) != 64 {
					b.Fatal(len(es), err)
				}
				if lo += 64; lo+64 > count {
					lo = 1
				}
			}
		})
	}
}
