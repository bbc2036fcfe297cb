package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/snapshot"
)

// localApplied is the table that a receiver makes of the applied record.
const localApplied = "local-applied" + tableSuffix

// deltaSink takes a delta. Nothing is moved: the tables are ingested from where
// they arrived.
type deltaSink struct {
	staging

	mu       sync.Mutex
	detached bool
	record   appliedRecord
	paths    []string
}

// CheckFile verifies one file; see snapshot.Sink. An ingest looks only at the
// first and last key of a table, so unless the source is trusted all are read.
func (k *deltaSink) CheckFile(ctx context.Context, name string, verified bool) error {
	if err := k.check(ctx, name, verified); err != nil {
		return err
	}
	switch {
	case name == appliedFile:
		_, err := k.readAppliedFile()
		return err
	case isTable(name):
		_, err := k.tableSpan(name, !verified)
		return err
	}
	return nil
}

// Prepare checks the tables against each other, and the applied record; see
// snapshot.Sink.
func (k *deltaSink) Prepare(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.detached {
		return fmt.Errorf("kv: prepare a delta: %w", snapshot.ErrStale)
	}
	if err := k.prepare(ctx); err != nil {
		return fmt.Errorf("kv: prepare a delta to index %d in group %d: %w", k.m.GetIndex(), k.s.opts.Group, err)
	}
	return nil
}

func (k *deltaSink) prepare(ctx context.Context) error {
	k.paths = nil
	if err := k.complete(ctx); err != nil {
		return err
	}
	record, err := k.readAppliedFile()
	if err != nil {
		return err
	}
	spans, err := k.tableSpans()
	if err != nil {
		return err
	}
	if err := disjoint(spans); err != nil {
		return err
	}
	d, err := k.s.acquire()
	if err != nil {
		return err
	}
	defer d.release()
	// What Install needs unless journal_low rises until then.
	record.journalLow = k.s.low.Load()
	if k.paths, err = k.ingestPaths(d.pebbleOptions(), &record); err != nil {
		return err
	}
	k.record = record
	return syncDir(k.s.opts.FS, k.dir)
}

// detach ends the sink; the files stay.
func (k *deltaSink) detach() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.detached, k.paths = true, nil
	return nil
}

// Discard gives the delta up; its caller removes the files.
func (k *deltaSink) Discard() error {
	k.s.staged.remove(k.m.GetImage(), k)
	return k.detach()
}

// tableSpans returns what the tables of an image of records cover, in key order.
func (g *staging) tableSpans() ([]tableSpan, error) {
	var spans []tableSpan
	for _, name := range g.tables() {
		span, err := g.tableSpan(name, false)
		if err != nil {
			return nil, err
		}
		if span.start != nil {
			spans = append(spans, span)
		}
	}
	slices.SortFunc(spans, func(a, b tableSpan) int { return bytes.Compare(a.start, b.start) })
	return spans, nil
}

// disjoint wants spans in key order not to overlap.
func disjoint(spans []tableSpan) error {
	for i := 1; i < len(spans); i++ {
		if !spans[i-1].before(&spans[i]) {
			return damagedf("tables overlap at %q", spans[i].start)
		}
	}
	return nil
}

// tableSpan returns what a table of records covers: rows of spaces, and never
// the applied record, which the receiver writes itself.
func (g *staging) tableSpan(name string, full bool) (tableSpan, error) {
	path := g.s.opts.FS.PathJoin(g.dir, name)
	table, err := openTable(g.s.opts.FS, path, g.s.newDatabase("", "").pebbleOptions(), contextPacer(context.Background()))
	if err != nil {
		return tableSpan{}, damagedf("file %q: %v", name, err)
	}
	span, err := spanOf(table, full)
	if err = errors.Join(err, table.Close()); err != nil {
		return tableSpan{}, damagedf("file %q: %v", name, err)
	}
	if span.start != nil && (bytes.Compare(span.start, []byte(spaceBlobs)) < 0 || bytes.Compare(span.end, spaceEnd(spaceSessions)) > 0) {
		return tableSpan{}, damagedf("file %q holds keys of no space: %q to %q", name, span.start, span.end)
	}
	return span, nil
}

// ingestPaths writes the table of the applied record and returns the paths of
// all tables.
func (g *staging) ingestPaths(opts *pebble.Options, record *appliedRecord) ([]string, error) {
	filesystem := g.s.opts.FS
	path := filesystem.PathJoin(g.dir, localApplied)
	file, err := filesystem.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	out := &hashedFile{file: file, hash: xxhash.New()}
	w := sstable.NewWriter(out, opts.MakeWriterOptions(0, pebble.FormatMajorVersion(g.m.GetStateFormat()).MaxTableFormat()))
	err = w.Set([]byte(spaceApplied), appendApplied(nil, record))
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, out.abandon())
	}
	paths := []string{path}
	for _, name := range g.tables() {
		paths = append(paths, filesystem.PathJoin(g.dir, name))
	}
	return paths, nil
}
