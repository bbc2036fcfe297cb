package raftlog

import (
	"fmt"
	"strings"
	"sync/atomic"
)

// Metrics are figures of the log since Open. They do no I/O and go on after a
// failure.
type Metrics struct {
	// Segments in use, and files recycled for a later segment.
	Segments int64
	Recycled int64
	// DiskBytes is what all files take, spare ones included; LiveBytes what the
	// entries of all groups take of it.
	DiskBytes int64
	LiveBytes int64
	// Batches and BytesWritten count all batches, heads and MOVED ones too.
	// Syncs counts syncs of log data.
	Batches      int64
	BytesWritten int64
	Syncs        int64
	// MovedEntries and MovedBytes were rewritten to free old segments.
	MovedEntries int64
	MovedBytes   int64
	// CacheHits and CacheMisses count entries read.
	CacheHits   int64
	CacheMisses int64
	// PreallocWaits counts Appends that had to wait for a segment to be made.
	PreallocWaits int64
}

// counters are the Metrics while they count.
type counters struct {
	segments, recycled, diskBytes, liveBytes atomic.Int64
	batches, bytesWritten, syncs             atomic.Int64
	movedEntries, movedBytes                 atomic.Int64
	cacheHits, cacheMisses, preallocWaits    atomic.Int64
}

// Metrics returns the figures now. It may be called from any goroutine.
func (l *Log) Metrics() Metrics {
	c := &l.metrics
	return Metrics{
		Segments: c.segments.Load(), Recycled: c.recycled.Load(),
		DiskBytes: c.diskBytes.Load(), LiveBytes: c.liveBytes.Load(),
		Batches: c.batches.Load(), BytesWritten: c.bytesWritten.Load(), Syncs: c.syncs.Load(),
		MovedEntries: c.movedEntries.Load(), MovedBytes: c.movedBytes.Load(),
		CacheHits: c.cacheHits.Load(), CacheMisses: c.cacheMisses.Load(),
		PreallocWaits: c.preallocWaits.Load(),
	}
}

// String returns the figures in five lines for a person.
func (m Metrics) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "segments: %d in use, %d recycled, %d waits for one\n", m.Segments, m.Recycled, m.PreallocWaits)
	fmt.Fprintf(&b, "disk:     %d bytes, %d live\n", m.DiskBytes, m.LiveBytes)
	fmt.Fprintf(&b, "written:  %d bytes in %d batches, %d syncs\n", m.BytesWritten, m.Batches, m.Syncs)
	fmt.Fprintf(&b, "moved:    %d entries, %d bytes\n", m.MovedEntries, m.MovedBytes)
	fmt.Fprintf(&b, "cache:    %d hits, %d misses\n", m.CacheHits, m.CacheMisses)
	return b.String()
}
