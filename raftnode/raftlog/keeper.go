package raftlog

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	maxSpares = 2         // recycled files kept for later segments
	zeroBytes = 256 << 10 // written at once when a file is filled
)

// spare is a file of full size, synced, that can become a segment. It holds
// zeros or what an older segment held; batches name their segment, so that is
// never taken for the new one's.
type spare struct {
	file vfs.File
	name string
	size int64
}

// keeper makes spare files and disposes of retired segments on a goroutine of
// its own, so that neither holds up an Append.
type keeper struct {
	fs      vfs.FS
	dir     string
	size    int64
	logger  *slog.Logger
	metrics *counters
	done    chan struct{}

	mu      sync.Mutex
	wake    *sync.Cond // of the goroutine and of acquire
	stopped bool
	retired []*segment // oldest first
	spares  []spare
	want    int   // spares to be there
	err     error // why the last attempt to make one failed
	nextID  uint64
}

func newKeeper(o *Options, m *counters) *keeper {
	k := &keeper{fs: o.FS, dir: o.Dir, size: o.SegmentBytes, logger: o.Logger, metrics: m, done: make(chan struct{})}
	k.wake = sync.NewCond(&k.mu)
	go k.run()
	return k
}

// run disposes of retired segments first: one may become the spare that is
// wanted, and on a full disk its space may be what is missing.
func (k *keeper) run() {
	defer close(k.done)
	k.mu.Lock()
	defer k.mu.Unlock()
	for !k.stopped {
		switch {
		case len(k.retired) > 0 && k.dispose():
		case len(k.spares) < k.want && k.err == nil:
			k.make()
		default:
			k.wake.Wait()
		}
	}
}

// dispose recycles or deletes the oldest retired segment. It is called with the
// lock and gives it up meanwhile. Where it fails the segment stays first in line
// for the next wake-up: deleting a younger one would leave a hole.
func (k *keeper) dispose() bool {
	s := k.retired[0]
	recycle := s.size == k.size && len(k.spares) < maxSpares
	name := k.nextSpareName()
	k.mu.Unlock()
	var err error
	if recycle {
		err = k.fs.Rename(s.name, name)
	} else {
		err = k.fs.Remove(s.name)
	}
	k.mu.Lock()
	if err != nil {
		k.logger.Warn("a segment that is not needed any more cannot be freed; trying again later", "segment", s.name, "err", err)
		return false
	}
	k.retired = k.retired[1:]
	if recycle {
		k.spares = append(k.spares, spare{s.file, name, s.size})
		k.metrics.recycled.Add(1)
		k.wake.Broadcast()
		return true
	}
	k.metrics.diskBytes.Add(-s.size)
	if err := s.file.Close(); err != nil {
		k.logger.Warn("closing a deleted segment failed", "segment", s.name, "err", err)
	}
	return true
}

// make creates one spare. It is called with the lock and gives it up meanwhile.
func (k *keeper) make() {
	name := k.nextSpareName()
	k.mu.Unlock()
	s, err := k.create(name)
	k.mu.Lock()
	if err != nil {
		k.err = fmt.Errorf("make %s: %w", name, err)
		k.logger.Warn("the next segment cannot be prepared", "file", name, "err", err)
	} else {
		k.spares = append(k.spares, s)
		k.metrics.diskBytes.Add(s.size)
	}
	k.wake.Broadcast()
}

// create writes a file full of zeros and syncs it: overwriting it later needs no
// change of the file's metadata, which makes syncing faster, and no space. What
// it made is removed again if it fails, since a full disk is the usual reason.
func (k *keeper) create(name string) (spare, error) {
	f, err := k.fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return spare{}, err
	}
	zeros := make([]byte, min(k.size, zeroBytes))
	for left := k.size; left > 0 && err == nil; left -= int64(len(zeros)) {
		zeros = zeros[:min(left, int64(len(zeros)))]
		clear(zeros) // a vfs.File may change what it was given to write
		_, err = f.Write(zeros)
	}
	if err == nil {
		err = f.Sync()
	}
	err = firstError(err, f.Close())
	if err == nil {
		// WriteAt is only promised for files opened like this.
		if f, err = k.fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified); err == nil {
			return spare{f, name, k.size}, nil
		}
	}
	if e := k.fs.Remove(name); e != nil {
		k.logger.Warn("an unfinished segment file cannot be removed", "file", name, "err", e)
	}
	return spare{}, err
}

func (k *keeper) nextSpareName() string {
	k.nextID++
	return k.fs.PathJoin(k.dir, spareName(k.nextID))
}

// prepare asks for n spares without waiting for them.
func (k *keeper) prepare(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.spares) < n && k.want < n {
		k.want, k.err = n, nil
		k.wake.Broadcast()
	}
}

// acquire takes n spares, waiting for those that are not there; waited says
// whether it had to. On an error it takes none; the next call tries anew.
func (k *keeper) acquire(n int) (spares []spare, waited bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if waited = len(k.spares) < n; waited {
		k.want, k.err = n, nil
		k.wake.Broadcast()
		for len(k.spares) < n && k.err == nil && !k.stopped {
			k.wake.Wait()
		}
	}
	k.want = 0
	if len(k.spares) < n {
		if k.err != nil {
			return nil, waited, k.err
		}
		return nil, waited, ErrClosed
	}
	spares = append(spares, k.spares[:n]...)
	k.spares = append(k.spares[:0], k.spares[n:]...)
	return spares, waited, nil
}

// giveBack returns acquired spares that were not used.
func (k *keeper) giveBack(spares []spare) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spares = append(k.spares, spares...)
}

// retire takes over a segment nobody needs any more.
func (k *keeper) retire(s *segment) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.retired = append(k.retired, s)
	k.wake.Broadcast()
}

// close ends the goroutine, waits for it and closes the files. What is retired
// and not yet disposed of stays on disk until the next Open.
func (k *keeper) close() error {
	k.mu.Lock()
	k.stopped = true
	k.wake.Broadcast()
	k.mu.Unlock()
	<-k.done
	var err error
	for _, s := range k.retired {
		err = firstError(err, s.file.Close())
	}
	for _, s := range k.spares {
		err = firstError(err, s.file.Close())
	}
	k.retired, k.spares = nil, nil
	if err != nil {
		return fmt.Errorf("raftlog: close a spare file of %s: %w", k.dir, err)
	}
	return nil
}
