package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/streamraft/streamraft/snapshot"
)

const (
	// scrubPause is how long one look at the foreground is good for.
	scrubPause = 100 * time.Millisecond
	// scrubBusy commands in a scrubPause make the scrubber wait, but for at most
	// scrubPatience pauses: a store that is always busy is checked too, slowly.
	scrubBusy     = 200
	scrubPatience = 10
)

// errScrubEnds ends a check whose database goes.
var errScrubEnds = errors.New("kv: the scrubber ends")

// scrubbed is what is known of the tables of a database. A table is never
// changed and its number never used again while the database is open; across
// a restart a number may be, so nothing is kept on disk.
type scrubbed struct {
	mu     sync.Mutex
	tables map[string]scrubbedTable
	kick   chan struct{}
}

// scrubbedTable is a table whose blocks were read.
type scrubbedTable struct {
	size, digest uint64
	sound        bool
}

func (c *scrubbed) init() {
	c.tables, c.kick = make(map[string]scrubbedTable), make(chan struct{}, 1)
}

// wake has the scrubber look for new tables; it never blocks.
func (c *scrubbed) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// sound returns the digest of a table that was found sound.
func (c *scrubbed) sound(name string, size uint64) (digest uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	table := c.tables[name]
	return table.digest, table.sound && table.size == size
}

// damage notes that a table is damaged; false if that is known.
func (c *scrubbed) damage(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	table, known := c.tables[name]
	if known && !table.sound {
		return false
	}
	table.sound = false
	c.tables[name] = table
	return true
}

// record keeps what was found.
func (c *scrubbed) record(name string, table scrubbedTable) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tables[name] = table
}

// unknown returns the tables that were not looked at yet, the bottom level
// first: those above are soon compacted away. It forgets tables that are gone.
func (c *scrubbed) unknown(levels [][]pebble.SSTableInfo) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	there := make(map[string]bool)
	for level := len(levels) - 1; level >= 0; level-- {
		for i := range levels[level] {
			name := levels[level][i].BackingSSTNum.String() + tableSuffix
			if _, known := c.tables[name]; !known && !there[name] {
				names = append(names, name)
			}
			there[name] = true
		}
	}
	for name := range c.tables {
		if !there[name] {
			delete(c.tables, name)
		}
	}
	return names
}

// scrub is the background goroutine that reads every table of the state once,
// at a bounded rate: what it finds sound an image need not check again, and
// what it finds damaged is reported while other replicas are still whole.
func (s *Store) scrub(d *database) {
	defer s.background.Done()
	defer d.release()
	if s.opts.ScrubBytesPerSecond < 0 {
		return
	}
	pace := d.scrubPacer()
	for {
		levels, err := d.db.SSTables()
		if err != nil {
			s.log.Warn("listing the tables for the scrubber failed", "error", err)
		}
		for _, name := range d.scrubbed.unknown(levels) {
			if err := d.scrubTable(name, pace); err != nil {
				return
			}
		}
		select {
		case <-d.scrubbed.kick:
		case <-d.retired:
			return
		case <-d.failed:
			return
		case <-s.failed:
			return
		case <-s.closing:
			return
		}
	}
}

// scrubTable checks one table; an error ends the scrubber.
func (d *database) scrubTable(name string, pace pacer) error {
	s := d.s
	path := s.opts.FS.PathJoin(d.path, name)
	digest, size, err := digestFile(s.opts.FS, path, pace)
	if err == nil {
		err = checkTable(s.opts.FS, path, d.pebbleOptions(), pace)
	}
	switch {
	case errors.Is(err, errScrubEnds):
		return err
	case errors.Is(err, fs.ErrNotExist):
		// Compacted away meanwhile.
		return nil
	case err != nil:
		if d.scrubbed.damage(name) {
			s.damaged(fmt.Errorf("table %s: %w", path, err))
		}
		return nil
	}
	d.scrubbed.record(name, scrubbedTable{size: size, digest: digest, sound: true})
	s.counters.scrubbed.Add(1)
	return nil
}

// corrupted takes a block that a read or a compaction found damaged, perhaps with
// locks of the database held. Without it Pebble calls that fatal. Who reads gets an
// error; of a state that is replaced, or only staged, nobody else needs to know.
func (d *database) corrupted(info pebble.DataCorruptionInfo) {
	if current := d.s.current.Load(); !d.live.Load() || current != nil && current != d {
		return
	}
	// Each read of it finds it again.
	name := d.s.opts.FS.PathBase(info.Path)
	if d.scrubbed.damage(name) {
		d.s.damaged(fmt.Errorf("table %s: %w", info.Path, info.Details))
	}
}

// damaged reports a table that cannot be read as it was written.
func (s *Store) damaged(cause error) {
	s.counters.damaged.Add(1)
	err := fmt.Errorf("%w: the state of group %d is damaged; fetch it anew from another replica: %w", snapshot.ErrCorrupt, s.opts.Group, cause)
	s.damage.CompareAndSwap(nil, &err)
	s.log.Error("the state is damaged; it is no source of images any more", "error", cause)
	s.opts.OnDamage(err)
}

// scrubPacer returns a pacer that holds the rate and waits for the foreground.
func (d *database) scrubPacer() pacer {
	s := d.s
	rate := s.opts.ScrubBytesPerSecond
	owed := time.Duration(0)
	seen, looked := s.counters.commands.Load(), time.Now()
	wait := func(duration time.Duration) error {
		timer := time.NewTimer(duration)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-d.retired:
		case <-d.failed:
		case <-s.failed:
		case <-s.closing:
		}
		return errScrubEnds
	}
	return func(bytes int) error {
		if d.over() {
			return errScrubEnds
		}
		owed += time.Duration(int64(bytes)) * time.Second / time.Duration(rate)
		if owed >= 10*time.Millisecond {
			if err := wait(owed); err != nil {
				return err
			}
			owed = 0
		}
		for range scrubPatience {
			since := time.Since(looked)
			if since < scrubPause {
				return nil
			}
			commands := s.counters.commands.Load()
			busy := commands-seen > int64(scrubBusy)*int64(since/scrubPause)
			seen, looked = commands, time.Now()
			if !busy {
				return nil
			}
			if err := wait(scrubPause); err != nil {
				return err
			}
		}
		return nil
	}
}
