package kv

import (
	"context"
	"encoding/binary"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"
)

const (
	// digestsKept is how many finished digests are kept for DigestAt.
	digestsKept = 16
	// digestsWaiting bounds the snapshots held for digests: each keeps old
	// versions from being compacted away. The oldest one is dropped for a new.
	digestsWaiting = 4
	// digestStopEvery is how many rows are hashed between looks at Close.
	digestStopEvery = 1024
)

// Digest is a checksum of the replicated state at one index. Replicas of a
// group that applied the same log have equal digests at equal indexes, whatever
// their compression, journal retention or flushes.
type Digest struct {
	// Index that was digested.
	Index uint64
	// Hash is the xxhash64 over every replicated row in key order, as uvarint
	// key length, key, uvarint value length, value.
	Hash uint64
	// Records is the number of rows under the hash.
	Records uint64
}

// digests takes digests in the background, one at a time.
type digests struct {
	s       *Store
	mu      sync.Mutex
	waiting []waitingDigest
	current uint64
	done    []Digest
	running bool
	// changed is closed and replaced whenever something above changes, or the
	// applied index passes while someone waits.
	changed chan struct{}
	waiters int
	report  func(index uint64, digest []byte)
	// upTo is the index up to which every digest was handed over to take.
	upTo   uint64
	worker sync.WaitGroup
}

// waitingDigest holds a reference of the database that its snapshot is of.
type waitingDigest struct {
	index    uint64
	d        *database
	snapshot *pebble.Snapshot
}

// drop closes the snapshot and gives the reference back.
func (w *waitingDigest) drop() error {
	defer w.d.release()
	return w.snapshot.Close()
}

func (d *digests) init(s *Store) {
	d.s, d.changed = s, make(chan struct{})
}

// broadcast wakes who waits; the lock is held.
func (d *digests) broadcast() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// passed tells that the applied index rose to index, and that take was called
// for every digest up to there.
func (d *digests) passed(index uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.upTo = index
	if d.waiters > 0 {
		d.broadcast()
	}
}

// take starts the digest of the index that a database is at.
func (d *digests) take(db *database, index uint64) {
	if !db.retain() {
		return
	}
	snapshot := db.db.NewSnapshot()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.waiting) == digestsWaiting {
		if err := d.waiting[0].drop(); err != nil {
			d.s.log.Warn("closing the snapshot of a dropped digest failed", "error", err)
		}
		d.waiting = append(d.waiting[:0], d.waiting[1:]...)
	}
	d.waiting = append(d.waiting, waitingDigest{index, db, snapshot})
	if !d.running {
		d.running = true
		d.worker.Add(1)
		go d.work()
	}
}

// work digests until nothing waits.
func (d *digests) work() {
	defer d.worker.Done()
	for {
		d.mu.Lock()
		d.current = 0
		if len(d.waiting) == 0 || d.s.failure() != nil {
			d.running = false
			d.broadcast()
			d.mu.Unlock()
			return
		}
		next := d.waiting[0]
		d.waiting = append(d.waiting[:0], d.waiting[1:]...)
		d.current = next.index
		d.mu.Unlock()

		result, err := next.d.hash(next.snapshot, next.index)
		if d.s.failure() != nil {
			continue
		}
		if closeErr := next.drop(); err == nil {
			err = closeErr
		}
		d.mu.Lock()
		if err != nil && !next.d.over() {
			d.s.log.Warn("taking a digest failed", "index", next.index, "error", err)
		}
		if err == nil {
			if len(d.done) == digestsKept {
				d.done = append(d.done[:0], d.done[1:]...)
			}
			d.done = append(d.done, result)
			d.s.counters.digests.Add(1)
			if d.report != nil {
				d.report(result.Index, binary.BigEndian.AppendUint64(nil, result.Hash))
			}
		}
		d.current = 0
		d.broadcast()
		d.mu.Unlock()
	}
}

// stop waits for the worker, which sees that the store closes.
func (d *digests) stop() { d.worker.Wait() }

// hash digests the replicated spaces of a snapshot of the database.
func (d *database) hash(snapshot *pebble.Snapshot, index uint64) (Digest, error) {
	result, hash := Digest{Index: index}, xxhash.New()
	var sizes [2 * binary.MaxVarintLen64]byte
	for _, space := range replicatedSpaces() {
		iter, err := snapshot.NewIter(&pebble.IterOptions{LowerBound: []byte(space), UpperBound: spaceEnd(space)})
		if err != nil {
			return Digest{}, err
		}
		for valid := iter.First(); valid; valid = iter.Next() {
			if result.Records%digestStopEvery == 0 && d.over() {
				return Digest{}, joinClose(ErrNotOpen, iter)
			}
			value, err := iter.ValueAndErr()
			if err != nil {
				return Digest{}, joinClose(err, iter)
			}
			// A Digest of xxhash never returns an error from Write.
			_, _ = hash.Write(binary.AppendUvarint(sizes[:0], uint64(len(iter.Key()))))
			_, _ = hash.Write(iter.Key())
			_, _ = hash.Write(binary.AppendUvarint(sizes[:0], uint64(len(value))))
			_, _ = hash.Write(value)
			result.Records++
		}
		if err := joinClose(iter.Error(), iter); err != nil {
			return Digest{}, err
		}
	}
	result.Hash = hash.Sum64()
	return result, nil
}

// stopping tells whether Close was called or the store failed.
func (s *Store) stopping() bool {
	select {
	case <-s.closing:
		return true
	case <-s.failed:
		return true
	default:
		return false
	}
}

// DigestAt returns the digest that a TakeDigest command took at index. It waits
// until index is applied and the digest is computed, until ctx ends, or until
// the store closes or fails. ErrDigestUnknown tells that none was taken there,
// or that it is no longer kept: the last 16 are, and none survives a restart
// that does not apply its index again.
func (s *Store) DigestAt(ctx context.Context, index uint64) (Digest, error) {
	d := &s.digests
	d.mu.Lock()
	d.waiters++
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.waiters--
		d.mu.Unlock()
	}()
	for {
		result, pending, changed := d.find(index)
		if !pending {
			if result.Index == 0 {
				return Digest{}, ErrDigestUnknown
			}
			return result, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Digest{}, ctx.Err()
		case <-s.closing:
			return Digest{}, ErrNotOpen
		case <-s.failed:
			return Digest{}, s.failure()
		}
	}
}

// find returns the digest of an index, or that it may still come.
func (d *digests) find(index uint64) (result Digest, pending bool, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, done := range d.done {
		if done.Index == index {
			return done, false, nil
		}
	}
	pending = d.current == index || index > d.upTo
	for _, w := range d.waiting {
		pending = pending || w.index == index
	}
	return Digest{}, pending, d.changed
}
