package kv

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// counters count what happened since Open.
type counters struct {
	commands, refused, repeated, expired atomic.Int64
	batches, flushes, digests            atomic.Int64
	backgroundErrors                     atomic.Int64
	sessions, replies                    atomic.Int64
	captured, deltas, installed, swept   atomic.Int64
	scrubbed, damaged                    atomic.Int64
}

// figures are what the database told when it was last asked.
type figures struct {
	stateBytes, journalBytes       int64
	compactions                    int64
	l0Files                        int64
	l0Sublevels, readAmplification int
	cacheHits, cacheMisses         int64
}

// Metrics are figures of one store. Those of the database are as of its last
// flush or compaction; all are kept from memory, so that asking a failed store
// is safe.
type Metrics struct {
	// Group the store belongs to.
	Group uint64
	// AppliedIndex is visible to reads, DurableIndex survives a crash.
	AppliedIndex, DurableIndex uint64
	// Term of the last applied entry.
	Term uint64
	// JournalLow: the journal holds every index above it.
	JournalLow uint64
	// FeedMode of the journal.
	FeedMode kvv1.FeedMode
	// Failed tells that the store failed.
	Failed bool

	// StateBytes is the size of the tables on disk, MemTableBytes what is only
	// in memory, JournalBytes the journal's part of the tables.
	StateBytes, MemTableBytes, JournalBytes int64
	// L0Files and L0Sublevels wait for compaction, ReadAmplification is the
	// number of places a read looks at.
	L0Files                        int64
	L0Sublevels, ReadAmplification int
	// WriteStalled tells that writes are held up now, until memtables or L0 have
	// room.
	WriteStalled bool
	// Flushes and Compactions since Open, BackgroundErrors among them.
	Flushes, Compactions, BackgroundErrors int64
	// CacheHits and CacheMisses of the block cache all stores of a node share.
	CacheHits, CacheMisses int64

	// Commands applied since Open; Refused were answered with a Failure,
	// Repeated with a recorded reply. Batches they were written in.
	Commands, Refused, Repeated, Batches int64
	// Sessions are open client sessions, Replies what they have recorded,
	// ExpiredSessions those that expired since Open.
	Sessions, Replies, ExpiredSessions int64
	// Digests taken since Open.
	Digests int64
	// ImagesCaptured since Open, Deltas among them; ImagesInstalled, and
	// DirectoriesSwept that nothing referred to.
	ImagesCaptured, Deltas, ImagesInstalled, DirectoriesSwept int64
	// TablesScrubbed were read and found sound since Open, TablesDamaged not.
	TablesScrubbed, TablesDamaged int64
}

// Metrics returns the store's figures. It never blocks.
func (s *Store) Metrics() Metrics {
	f, c, d := s.figures.Load(), &s.counters, s.current.Load()
	return Metrics{
		Group:             s.opts.Group,
		AppliedIndex:      s.applied.Load(),
		DurableIndex:      s.durable.Load(),
		Term:              s.term.Load(),
		JournalLow:        s.low.Load(),
		FeedMode:          kvv1.FeedMode(s.feedMode.Load()),
		Failed:            s.failure() != nil,
		StateBytes:        f.stateBytes,
		MemTableBytes:     s.pending.bytes(),
		JournalBytes:      f.journalBytes,
		L0Files:           f.l0Files,
		L0Sublevels:       f.l0Sublevels,
		ReadAmplification: f.readAmplification,
		WriteStalled:      d != nil && d.stalled.Load(),
		Flushes:           c.flushes.Load(),
		Compactions:       f.compactions,
		BackgroundErrors:  c.backgroundErrors.Load(),
		CacheHits:         f.cacheHits,
		CacheMisses:       f.cacheMisses,
		Commands:          c.commands.Load(),
		Refused:           c.refused.Load(),
		Repeated:          c.repeated.Load(),
		Batches:           c.batches.Load(),
		Sessions:          c.sessions.Load(),
		Replies:           c.replies.Load(),
		ExpiredSessions:   c.expired.Load(),
		Digests:           c.digests.Load(),
		ImagesCaptured:    c.captured.Load(),
		Deltas:            c.deltas.Load(),
		ImagesInstalled:   c.installed.Load(),
		DirectoriesSwept:  c.swept.Load(),
		TablesScrubbed:    c.scrubbed.Load(),
		TablesDamaged:     c.damaged.Load(),
	}
}

// StateBytes returns the size of the state on disk as of the last flush or
// compaction, with what is only in memory.
func (s *Store) StateBytes() int64 {
	return s.figures.Load().stateBytes + s.pending.bytes()
}

// refreshFigures asks the database.
func (s *Store) refreshFigures(db *pebble.DB) {
	m := db.Metrics()
	f := &figures{
		stateBytes:        int64(m.Table.Local.LiveSize),
		compactions:       m.Compact.Count,
		l0Files:           m.Levels[0].TablesCount,
		l0Sublevels:       int(m.Levels[0].Sublevels),
		readAmplification: m.ReadAmp(),
		cacheHits:         m.BlockCache.Hits,
		cacheMisses:       m.BlockCache.Misses,
	}
	low, applied := s.low.Load(), s.applied.Load()
	if applied > low {
		bytes, err := db.EstimateDiskUsage(journalKey(nil, low+1), journalKey(nil, applied+1))
		if err != nil {
			s.log.Warn("estimating the journal's size failed", "error", err)
		}
		f.journalBytes = int64(bytes)
	}
	s.figures.Store(f)
}

// String renders the figures for a person, in a form kept by a golden test.
func (m Metrics) String() string {
	var b strings.Builder
	state := "ok"
	switch {
	case m.Failed:
		state = "failed"
	case m.WriteStalled:
		state = "writes are held up"
	}
	fmt.Fprintf(&b, "kv group %d: %s\n", m.Group, state)
	fmt.Fprintf(&b, "  applied   index %d  durable %d  term %d\n", m.AppliedIndex, m.DurableIndex, m.Term)
	fmt.Fprintf(&b, "  journal   above %d  mode %s  %s\n", m.JournalLow, m.FeedMode, formatBytes(m.JournalBytes))
	fmt.Fprintf(&b, "  state     disk %s  memory %s\n", formatBytes(m.StateBytes), formatBytes(m.MemTableBytes))
	fmt.Fprintf(&b, "  levels    L0 files %d  L0 sublevels %d  read amplification %d\n", m.L0Files, m.L0Sublevels, m.ReadAmplification)
	fmt.Fprintf(&b, "  written   flushes %d  compactions %d  background errors %d\n", m.Flushes, m.Compactions, m.BackgroundErrors)
	fmt.Fprintf(&b, "  cache     hits %d  misses %d\n", m.CacheHits, m.CacheMisses)
	fmt.Fprintf(&b, "  commands  applied %d  refused %d  repeated %d  batches %d\n", m.Commands, m.Refused, m.Repeated, m.Batches)
	fmt.Fprintf(&b, "  sessions  open %d  replies %d  expired %d\n", m.Sessions, m.Replies, m.ExpiredSessions)
	fmt.Fprintf(&b, "  digests   taken %d\n", m.Digests)
	fmt.Fprintf(&b, "  images    captured %d  deltas %d  installed %d  swept %d\n", m.ImagesCaptured, m.Deltas, m.ImagesInstalled, m.DirectoriesSwept)
	fmt.Fprintf(&b, "  tables    scrubbed %d  damaged %d\n", m.TablesScrubbed, m.TablesDamaged)
	return b.String()
}

// formatBytes renders a size in the largest binary unit that keeps it above 1.
func formatBytes(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/(1<<10), 0
	for value >= 1<<10 && unit < len(units)-1 {
		value, unit = value/(1<<10), unit+1
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}
