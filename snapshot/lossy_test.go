package snapshot

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
)

// forgetful is a stream that loses every 100th message it should send. A message
// takes a millisecond, a chunk of 1 MiB at the speed of gRPC: without time the
// whole window would be on its way whenever one is lost.
type forgetful struct {
	grpc.ServerStream
	sent *atomic.Int64
}

func (f *forgetful) SendMsg(m any) error {
	timer := time.NewTimer(time.Millisecond)
	<-timer.C
	if f.sent.Add(1)%100 == 0 {
		return nil
	}
	return f.ServerStream.SendMsg(m)
}

// TestCase18LostMessages: every 100th message of a source is lost. Each costs what
// is on its way at that moment, and no more: the next attempt goes on behind the
// last byte that was written.
//
// It guards that a gap ends the attempt and what is staged stays. The window has
// the default's ratio to a chunk.
func TestCase18LostMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		s := newTestSource(t, randomContent(40, 3<<20, 2<<20, 1<<20))
		s.opts.ChunkBytes = 4 << 10
		s.extra = []grpc.ServerOption{grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return handler(srv, &forgetful{ss, &sent})
		})}
		r := newTestReceiver(t, s)
		r.opts.ChunkBytes, r.opts.WindowBytes, r.opts.BudgetBytes, r.opts.ProgressBytes = 4<<10, 64<<10, 256<<10, 64<<10
		s.start()
		transfer := r.mustReceiveWithin(time.Hour)
		s.stop()
		bytes, have := s.counters.Metrics().SentBytes, s.content.bytes()
		t.Logf("%d messages, %d attempts, %.3f of the bytes", sent.Load(), transfer.Progress().Attempt, float64(bytes)/float64(have))
		if lost := sent.Load() / 100; lost < 10 || transfer.Progress().Attempt < 5 {
			t.Errorf("%d messages were lost in %d attempts", lost, transfer.Progress().Attempt)
		}
		if float64(bytes) > 1.1*float64(have) {
			t.Errorf("%d bytes were sent for %d", bytes, have)
		}
	})
}
