package kv

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/klauspost/compress/zstd"
)

// SharedOptions configure what the stores of one node share.
type SharedOptions struct {
	// CacheBytes is the size of the block cache; memtables are reserved out of
	// it. Default 256 MiB.
	CacheBytes int64
	// MemTableBytes is the budget for all memtables of the node: past it the
	// store with the most unwritten bytes is flushed. Default 256 MiB.
	MemTableBytes int64
	// OpenTables bounds the tables kept open, each a file descriptor. Default
	// 4096.
	OpenTables int
}

// EnsureDefaults fills zero fields.
func (o *SharedOptions) EnsureDefaults() {
	if o.CacheBytes == 0 {
		o.CacheBytes = 256 << 20
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 256 << 20
	}
	if o.OpenTables == 0 {
		o.OpenTables = 4096
	}
}

// Validate tells which field is out of range.
func (o *SharedOptions) Validate() error {
	if o.CacheBytes < 0 || o.MemTableBytes < 0 || o.OpenTables < 0 {
		return fmt.Errorf("kv: SharedOptions must not be negative: %+v", *o)
	}
	return nil
}

// Shared holds the block cache, the table cache, the memtable budget and the
// codecs that all stores of a node use. It is safe for concurrent use and
// starts no goroutine.
type Shared struct {
	opts    SharedOptions
	cache   *pebble.Cache
	files   *pebble.FileCache
	encoder *zstd.Encoder
	decoder *zstd.Decoder

	unflushed atomic.Int64
	mu        sync.Mutex
	stores    map[*Store]struct{}
	closed    bool
}

// fileCacheShards keeps lock contention low on few cores without spreading a
// small cache too thin.
const fileCacheShards = 4

// NewShared makes the shared resources of a node. Close frees them.
func NewShared(opts SharedOptions) (*Shared, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts.EnsureDefaults()
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(2), zstd.WithWindowSize(128<<10), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("kv: make the journal's encoder: %w", err)
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2),
		zstd.WithDecoderMaxMemory(maxJournalRow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("kv: make the journal's decoder: %w", err)
	}
	return &Shared{
		opts:    opts,
		cache:   pebble.NewCache(opts.CacheBytes),
		files:   pebble.NewFileCache(fileCacheShards, opts.OpenTables),
		encoder: encoder,
		decoder: decoder,
		stores:  make(map[*Store]struct{}),
	}, nil
}

// Close frees the shared resources. Every store that used them must be closed
// before; a store that failed keeps its part until the process ends.
func (s *Shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if n := len(s.stores); n > 0 {
		return fmt.Errorf("kv: %d stores still use the shared resources: close them first", n)
	}
	s.closed = true
	s.files.Unref()
	s.cache.Unref()
	s.decoder.Close()
	return s.encoder.Close()
}

// join counts a store in.
func (s *Shared) join(store *Store) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("kv: the shared resources were closed")
	}
	s.stores[store] = struct{}{}
	return nil
}

// leave counts a store out and takes its bytes off the budget.
func (s *Shared) leave(store *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.stores, store)
	s.unflushed.Add(-store.pending.bytes())
}
