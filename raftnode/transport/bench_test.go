package transport

import (
	"fmt"
	"sync/atomic"
	"testing"
)

// BenchmarkSend measures Send to Receive over loopback, both ends in this
// process: 64 appends at a time, the next 64 when those have arrived, with two
// such bursts under way.
func BenchmarkSend(b *testing.B) {
	for _, size := range []int{256, 4096, 65536} {
		b.Run(fmt.Sprintf("batch=64/bytes=%d", size), func(b *testing.B) {
			const burst, underway = 64, 2
			sender, receiver := newTestNode(b, "n1"), newTestNode(b, "n2")
			tokens := make(chan struct{}, underway)
			done := make(chan struct{})
			var got atomic.Int64
			want := int64(b.N+burst-1) / burst * burst
			receiver.set(func() {
				receiver.onReceive = func(_ string, ms []GroupMessage) {
					before := got.Load()
					after := got.Add(int64(len(ms)))
					for range after/burst - before/burst {
						<-tokens
					}
					if after == want {
						close(done)
					}
				}
			})
			sender.knows(receiver)
			data := make([]byte, size)
			messages := make([]GroupMessage, burst)
			for i := range messages {
				messages[i] = appendOf(uint64(i+1), 100, data)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer() // an iteration is one message
			for range want / burst {
				tokens <- struct{}{}
				for _, m := range messages {
					sender.transport.Send("n2", m)
				}
			}
			<-done
			b.StopTimer()
			l := sender.lane("n2", bulk)
			b.ReportMetric(float64(l.SentMessages)/float64(l.SentBatches), "messages/batch")
			if l.Dropped > 0 {
				b.Fatalf("%d dropped", l.Dropped)
			}
		})
	}
}
