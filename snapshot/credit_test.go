package snapshot

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// stuckSync is a file system on which incomplete files do not become durable
// until a gate opens.
type stuckSync struct {
	vfs.FS
	gate chan struct{}
}

func (s *stuckSync) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := s.FS.OpenReadWrite(name, category, opts...)
	if err != nil || !strings.HasSuffix(name, partSuffix) {
		return file, err
	}
	return &stuckFile{file, s.gate}, nil
}

type stuckFile struct {
	vfs.File
	gate chan struct{}
}

func (f *stuckFile) Sync() error {
	<-f.gate
	return f.File.Sync()
}

// TestSlowSyncBoundsWhatIsLost: where writing is fast and syncing is not, the
// source is let run ahead of what is durable by a window and a step, for a crash
// would cost all of that.
func TestSlowSyncBoundsWhatIsLost(t *testing.T) {
	for name, sizes := range map[string][]int{"one file": {400 << 10}, "many files": {30 << 10, 30 << 10, 30 << 10, 30 << 10, 30 << 10, 30 << 10, 30 << 10}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestSource(t, randomContent(31, sizes...))
				fsys := &stuckSync{vfs.NewMem(), make(chan struct{})}
				r := newTestReceiverOn(t, fsys, s)
				smallChunks(s, r)
				s.start()
				done := make(chan struct{})
				go func() {
					defer close(done)
					r.mustReceive()
				}()
				synctest.Wait()
				bound := uint64(r.opts.WindowBytes) + r.opts.ProgressBytes
				if sent := s.counters.Metrics().SentBytes; sent > bound || sent < bound/2 {
					t.Errorf("%d bytes sent and none durable; the bound is %d", sent, bound)
				}
				close(fsys.gate)
				<-done
				s.stop()
			})
		})
	}
}

func TestReceiverCredit(t *testing.T) {
	c := recvCredit{window: 100, lag: 20}
	if got := c.limit(); got != 100 {
		t.Errorf("at first %d", got)
	}
	if err := c.receive(100); err != nil {
		t.Error(err)
	}
	if c.receive(1) == nil {
		t.Error("a byte beyond the credit")
	}
	c.wrote(60)
	if got := c.limit(); got != 120 {
		t.Errorf("60 written, none durable: %d", got)
	}
	if c.syncing() {
		t.Error("no sync was asked for")
	}
	if got := c.handOn(); got != 60 || !c.syncing() {
		t.Errorf("handed on %d", got)
	}
	c.synced(60)
	if got := c.limit(); got != 160 || c.syncing() {
		t.Errorf("60 durable: %d", got)
	}
}
