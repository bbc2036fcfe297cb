package raftnode_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/streamraft/streamraft/raftnode"
)

// BenchmarkPropose measures three nodes in one process on loopback sockets and
// real disks with a state machine that costs nothing: what the raft side alone
// can do. Each proposer waits for its own durable acknowledgement.
func BenchmarkPropose(b *testing.B) {
	for _, proposers := range []int{1, 16, 64, 256, 1024} {
		b.Run(fmt.Sprintf("proposers=%d", proposers), func(b *testing.B) {
			c := newCluster(b, 3, func(o *raftnode.Options) { o.LogSegmentBytes = 0 })
			c.openAll()
			g := c.leader(raftnode.FirstDataGroup).group(b, raftnode.FirstDataGroup)
			command := make([]byte, 280)
			before := g.Status()
			b.ReportAllocs()
			b.ResetTimer()
			var next atomic.Int64
			var wg sync.WaitGroup
			for range proposers {
				wg.Go(func() {
					for next.Add(1) <= int64(b.N) {
						if _, err := g.Propose(b.Context(), command); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "puts/s")
			b.ReportMetric(float64(b.N)/float64(g.Status().Applied-before.Applied), "puts/entry")
		})
	}
}

// BenchmarkRead measures linearizable reads on the leader.
func BenchmarkRead(b *testing.B) {
	for _, readers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			c := newCluster(b, 3, nil)
			c.openAll()
			g := c.leader(raftnode.FirstDataGroup).group(b, raftnode.FirstDataGroup)
			b.ReportAllocs()
			b.ResetTimer()
			var next atomic.Int64
			var wg sync.WaitGroup
			for range readers {
				wg.Go(func() {
					for next.Add(1) <= int64(b.N) {
						if _, err := g.Read(b.Context(), raftnode.ReadOptions{}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reads/s")
		})
	}
}
