package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Limits of Options. A segment offset is kept in 32 bits, so segments stay below
// 4 GiB; a head batch with every group must fit beside a full batch.
const (
	MinSegmentBytes = 64 << 10
	MaxSegmentBytes = 1 << 30

	// MaxGroupEntries bounds the entries a group keeps in the log. It bounds
	// what Open allocates for a group before it has seen the entries.
	MaxGroupEntries = 1 << 28
)

const (
	defaultSegmentBytes = 64 << 20
	defaultBatchBytes   = 16 << 20
	defaultCacheBytes   = 64 << 20
)

// Options configure Open.
type Options struct {
	// FS is the file system; nil means vfs.Default.
	FS vfs.FS

	// Dir is the directory of the log. Open creates it (its parent must exist
	// for the creation to be durable). The caller locks it.
	Dir string

	// SegmentBytes is the size of a segment file, from MinSegmentBytes to
	// MaxSegmentBytes; 0 means 64 MiB. It may differ from one Open to the next:
	// existing segments keep their size. One eighth of it bounds the head of a
	// segment, which holds 89 bytes per group.
	SegmentBytes int64

	// MaxBatchBytes bounds a batch, and so a single Update: 16 MiB at most 3/4
	// of SegmentBytes if 0. A batch is written with one write.
	MaxBatchBytes int64

	// CacheBytes bounds the recent entries of all groups kept in memory, with
	// an estimate of their overhead; 0 means 64 MiB, a negative value none.
	CacheBytes int64

	// Logger gets events an operator wants to see; nil means none.
	Logger *slog.Logger

	// OnSync, if set, is called on the append goroutine after every successful
	// sync of log data with its duration and the bytes it made durable. It must
	// not block.
	OnSync func(d time.Duration, bytes int)

	// newSalt makes the identity of a new log. Tests set it to get the same
	// bytes each time.
	newSalt func() uint64

	// moveBytes bounds what one Append rewrites; tests set it low to stretch
	// the rewriting of a segment over many.
	moveBytes int
}

// EnsureDefaults replaces zero values by their defaults.
func (o *Options) EnsureDefaults() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = defaultSegmentBytes
	}
	if o.MaxBatchBytes == 0 {
		o.MaxBatchBytes = min(defaultBatchBytes, o.SegmentBytes/4*3)
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCacheBytes
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.moveBytes == 0 {
		o.moveBytes = defaultMoveBytes
	}
	if o.newSalt == nil {
		o.newSalt = randomSalt
	}
}

// Validate tells which field is out of range. It expects defaults to be set.
func (o *Options) Validate() error {
	switch {
	case o.Dir == "":
		return errors.New("raftlog: Options.Dir is empty: name the directory of the log")
	case o.SegmentBytes < MinSegmentBytes || o.SegmentBytes > MaxSegmentBytes || o.SegmentBytes%4096 != 0:
		return fmt.Errorf("raftlog: Options.SegmentBytes is %d: it must be a multiple of 4096 from %d to %d",
			o.SegmentBytes, MinSegmentBytes, MaxSegmentBytes)
	case o.MaxBatchBytes < 4096 || o.MaxBatchBytes > o.SegmentBytes/4*3:
		return fmt.Errorf("raftlog: Options.MaxBatchBytes is %d: it must be from 4096 to 3/4 of SegmentBytes, %d",
			o.MaxBatchBytes, o.SegmentBytes/4*3)
	}
	return nil
}

// maxHeadBytes bounds the head of a segment: 3/4 for a batch, 1/8 for the head
// and the rest for the empty batch that proves the end.
func (o *Options) maxHeadBytes() int64 { return o.SegmentBytes / 8 }
