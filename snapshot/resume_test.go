package snapshot

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// hookPacer calls a function before each chunk leaves, with its number.
type hookPacer struct {
	chunks atomic.Int64
	hook   func(chunk int64)
}

func (p *hookPacer) Begin(snapshotv1.Class) Pace { return p }

func (p *hookPacer) Wait(ctx context.Context, _ int) error {
	p.hook(p.chunks.Add(1))
	return context.Cause(ctx)
}

func (p *hookPacer) End() {}

// smallChunks makes the ratio of window to image that of 16 MiB to a GiB.
func smallChunks(s *testSource, r *testReceiver) {
	s.opts.ChunkBytes = 4 << 10
	r.opts.ChunkBytes, r.opts.WindowBytes, r.opts.BudgetBytes, r.opts.ProgressBytes = 4<<10, 16<<10, 64<<10, 32<<10
}

const mostBytes = 1.02

func checkBytes(t *testing.T, s *testSource) {
	t.Helper()
	sent, have := s.counters.Metrics().SentBytes, s.content.bytes()
	if sent < have || float64(sent) > mostBytes*float64(have) {
		t.Errorf("%d bytes sent for %d, %.3fx", sent, have, float64(sent)/float64(have))
	}
}

// TestResumeAfterCut breaks the connection at every 16th chunk, in a run of its
// own each.
func TestResumeAfterCut(t *testing.T) {
	for at := int64(1); at < 300; at += 16 {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			s := newTestSource(t, randomContent(2, 700<<10, 0, 100<<10, 224<<10))
			s.verified = at%32 == 1
			s.opts.Pacer = &hookPacer{hook: func(chunk int64) {
				if chunk == at {
					s.cut()
				}
			}}
			r := newTestReceiver(t, s)
			smallChunks(s, r)
			s.start()
			defer s.stop()
			transfer := r.mustReceive()
			if at < 256 && transfer.Progress().Attempt != 2 {
				t.Errorf("%d attempts", transfer.Progress().Attempt)
			}
			if n := s.captures.Load(); n != 1 {
				t.Errorf("%d captures", n)
			}
			checkBytes(t, s)
		})
	}
}

// TestResumeAfterSourceRestart: the image is on the source's disk and the rest
// of the files goes from there.
func TestResumeAfterSourceRestart(t *testing.T) {
	s := newTestSource(t, randomContent(3, 600<<10, 424<<10))
	stopped := make(chan struct{})
	s.opts.Pacer = &hookPacer{hook: func(chunk int64) {
		if chunk == 100 {
			go func() {
				defer close(stopped)
				s.stop()
				s.start()
			}()
		}
	}}
	r := newTestReceiver(t, s)
	smallChunks(s, r)
	s.start()
	defer s.stop()
	transfer := r.mustReceive()
	<-stopped
	if n := s.captures.Load(); n != 1 {
		t.Errorf("%d captures", n)
	}
	if p := transfer.Progress(); p.Restarts != 0 {
		t.Errorf("restarted: %+v", p)
	}
	checkBytes(t, s)
}

// TestResumeAfterReceiverRestart ends the receiving process again and again.
func TestResumeAfterReceiverRestart(t *testing.T) {
	s := newTestSource(t, randomContent(4, 600<<10, 0, 424<<10))
	stop := make(chan struct{}, 1)
	s.opts.Pacer = &hookPacer{hook: func(chunk int64) {
		if chunk%60 == 0 {
			stop <- struct{}{}
		}
	}}
	r := newTestReceiver(t, s)
	smallChunks(s, r)
	s.start()
	defer s.stop()
	for runs := 1; ; runs++ {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			select {
			case <-stop:
				cancel()
			case <-ctx.Done():
			}
		}()
		staged, transfer, err := r.receive(ctx)
		cancel()
		<-done
		if errors.Is(err, context.Canceled) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := r.install(staged); err != nil {
			t.Fatal(err)
		}
		if runs < 3 || transfer.Progress().Attempt < uint64(runs) {
			t.Errorf("%d runs, attempt %d", runs, transfer.Progress().Attempt)
		}
		break
	}
	// Each of about four cuts costs a window, as 16 MiB of a GiB.
	sent, have := s.counters.Metrics().SentBytes, s.content.bytes()
	if float64(sent) > (1+4*(mostBytes-1))*float64(have) {
		t.Errorf("%d bytes sent for %d", sent, have)
	}
}

// TestReadyAfterRestart: what is ready needs no source any more.
func TestReadyAfterRestart(t *testing.T) {
	s := newTestSource(t, randomContent(5, 10<<10, 3)).start()
	r := newTestReceiver(t, s)
	staged, _, err := r.receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := staged.Inbox.Close(); err != nil {
		t.Fatal(err)
	}
	s.stop()
	inboxes, err := OpenInboxes(r.fsys, "inbox", nil)
	if err != nil {
		t.Fatal(err)
	}
	infos, err := inboxes.List()
	if err != nil || len(infos) != 1 || !infos[0].Ready || infos[0].Bytes != s.content.bytes() || infos[0].Manifest.Index != 100 {
		t.Fatalf("%+v, %v", infos, err)
	}
	if r.mustReceive().Progress().WireBytes != 0 || r.stager.prepares.Load() != 2 {
		t.Errorf("received again; %d prepares", r.stager.prepares.Load())
	}
	if err := inboxes.Remove(r.transfer.ID); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
}

// TestSourceLost: another source has another image, and only files whose digest
// it vouches for count again.
func TestSourceLost(t *testing.T) {
	for _, verified := range []bool{true, false} {
		t.Run(fmt.Sprintf("verified %v", verified), func(t *testing.T) {
			c := randomContent(6, 200<<10, 100<<10, 300<<10)
			s1, s2 := newTestSource(t, c), newTestSource(t, c)
			s1.verified, s2.verified = verified, verified
			gone := make(chan struct{})
			s1.opts.Pacer = &hookPacer{hook: func(chunk int64) {
				if chunk == 100 {
					go func() { defer close(gone); s1.stop() }()
				}
			}}
			r := newTestReceiver(t, s1, s2)
			smallChunks(s1, r)
			r.opts.SourceLostAfter = 50 * time.Millisecond
			s1.start()
			s2.start()
			defer s2.stop()
			p := r.mustReceive().Progress()
			<-gone
			if p.Restarts != 1 || p.LastRestart != "source_lost" || p.Source != "s2" {
				t.Errorf("%+v", p)
			}
			m := r.counters.Metrics()
			sent := s2.counters.Metrics().SentBytes
			// What was on its way when the receiver asked anew is a window at most.
			if want := uint64(300 << 10); verified && (m.ReusedBytes != want || sent > c.bytes()-want+16<<10) {
				t.Errorf("reused %d, sent %d", m.ReusedBytes, sent)
			}
			if !verified && (m.ReusedBytes != 0 || sent != c.bytes()) {
				t.Errorf("reused %d, sent %d of %d", m.ReusedBytes, sent, c.bytes())
			}
			if m.Restarted["source_lost"] != 1 {
				t.Error(m)
			}
		})
	}
}

// TestImageGone: the source lost the image; it makes another.
func TestImageGone(t *testing.T) {
	s := newTestSource(t, randomContent(7, 200<<10, 300<<10))
	s.opts.Pacer = &hookPacer{hook: func(chunk int64) {
		if chunk == 60 {
			if err := s.images.Remove(s.images.Kept()[0].Manifest.Image); err != nil {
				t.Error(err)
			}
			s.cut()
		}
	}}
	r := newTestReceiver(t, s)
	smallChunks(s, r)
	s.start()
	defer s.stop()
	if p := r.mustReceive().Progress(); p.Restarts != 1 || p.LastRestart != "image_gone" || s.captures.Load() != 2 {
		t.Errorf("%d captures, %+v", s.captures.Load(), p)
	}
	if kept := s.images.Kept(); len(kept) != 1 {
		t.Errorf("%d images are kept", len(kept))
	}
}
