package kv

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Compression says how tables are compressed at rest. It is a matter of each
// replica: replicas of a group may differ.
type Compression string

// The compressions, from least to most CPU per byte written.
const (
	// CompressionNone stores blocks as they are.
	CompressionNone Compression = "none"
	// CompressionFastest uses the fastest codec at every level.
	CompressionFastest Compression = "fastest"
	// CompressionBalanced uses zstd at the bottom levels, where most bytes are.
	CompressionBalanced Compression = "balanced"
	// CompressionGood uses zstd at more levels.
	CompressionGood Compression = "good"
)

// Defaults of Options.
const (
	// MinJournalBytes is the least the journal keeps when JournalBytes is 0.
	MinJournalBytes = 16 << 20
	// journalShare is the part of the state, 1/journalShare, that the journal
	// keeps when JournalBytes is 0: 5 %.
	journalShare = 20
)

// Options configure a Store. All fields but OnFailure may be zero.
type Options struct {
	// FS is where the state lives. Default: the operating system's.
	FS vfs.FS
	// Shared holds the caches that the stores of a node share; its owner closes
	// it after the stores. Default: one of the store's own.
	Shared *Shared
	// Group the store belongs to; it names the store in logs and errors.
	Group uint64
	// Logger for what an operator should know. Default: none.
	Logger *slog.Logger
	// Limits that Store.Limits hands to who proposes. Apply enforces the bounds
	// of the format instead, since it must do alike on all replicas.
	Limits Limits
	// Compression at rest. Default CompressionBalanced.
	Compression Compression
	// JournalBytes bounds the change journal, in bytes of rows. Default: 5 % of
	// the state, at least MinJournalBytes.
	JournalBytes int64
	// MemTableBytes is the size of one memtable, at least 64 KiB. Up to four
	// exist before writes wait. Default 64 MiB.
	MemTableBytes int
	// ScrubBytesPerSecond bounds how fast the scrubber reads the tables of the
	// state, in bytes per second; it reads each table twice, the second time
	// from memory as a rule. Default 64 MiB; negative: no scrubber.
	ScrubBytesPerSecond int64
	// KeepImages returns the ids of the images that an inbox holds, READY or not:
	// Open keeps their staged directories, which have the only copy of their
	// files, and removes all others that are not the state. Default: none are
	// kept.
	KeepImages func() [][]byte
	// ClusterBound are prefixes of registry keys that speak of the members of a
	// cluster; Rebase deletes those records. None may be empty.
	ClusterBound []string
	// OnDamage is called once for each table that the scrubber, a reader or a
	// compaction finds damaged, perhaps with locks of the database held, with an
	// error that matches snapshot.ErrCorrupt. The store goes on, but makes no
	// images. It must return at once and call nothing of the store.
	OnDamage func(error)
	// OnFailure is called once when the store fails, on the goroutine that
	// found it, inside the database: it must return at once and call nothing of
	// the store. Default: nothing; Failed reports the same.
	OnFailure func(error)
}

// EnsureDefaults fills zero fields.
func (o *Options) EnsureDefaults() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Compression == "" {
		o.Compression = CompressionBalanced
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 64 << 20
	}
	if o.ScrubBytesPerSecond == 0 {
		o.ScrubBytesPerSecond = 64 << 20
	}
	if o.KeepImages == nil {
		o.KeepImages = func() [][]byte { return nil }
	}
	if o.OnDamage == nil {
		o.OnDamage = func(error) {}
	}
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
	o.Limits.EnsureDefaults()
}

// Validate tells every field that is out of range.
func (o *Options) Validate() error {
	var errs []error
	switch o.Compression {
	case "", CompressionNone, CompressionFastest, CompressionBalanced, CompressionGood:
	default:
		errs = append(errs, fmt.Errorf("kv: Compression is %q, must be none, fastest, balanced or good", o.Compression))
	}
	if slices.Contains(o.ClusterBound, "") {
		errs = append(errs, errors.New("kv: ClusterBound has an empty prefix, which would delete the whole registry"))
	}
	if o.JournalBytes < 0 {
		errs = append(errs, fmt.Errorf("kv: JournalBytes is %d, must be 0 (5 %% of the state) or more", o.JournalBytes))
	}
	// Pebble takes at most 4 GiB for a memtable and wants room for its header.
	if o.MemTableBytes != 0 && (o.MemTableBytes < 64<<10 || o.MemTableBytes > 1<<30) {
		errs = append(errs, fmt.Errorf("kv: MemTableBytes is %d, must be 0 (default) or 64 KiB to 1 GiB", o.MemTableBytes))
	}
	errs = append(errs, o.Limits.Validate())
	return errors.Join(errs...)
}
