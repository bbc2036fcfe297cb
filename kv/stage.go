package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// Stage begins or resumes taking an image as snapshot.Stager says. A full image
// may also be staged in a store whose state did not open, or failed; then
// Install moves only the marker, and the store is closed and another one opened.
// Staging an image again ends the sink of before.
func (s *Store) Stage(m *snapshotv1.Manifest, dir string) (snapshot.Sink, error) {
	state := s.dir.Load()
	if state == nil {
		return nil, ErrNotOpen
	}
	if err := s.fits(m); err != nil {
		return nil, fmt.Errorf("kv: stage an image of index %d in group %d: %w", m.GetIndex(), s.opts.Group, err)
	}
	staging := staging{s: s, m: m, dir: dir, files: make(map[string]*snapshotv1.File, len(m.GetFiles()))}
	for _, file := range m.GetFiles() {
		staging.files[file.GetName()] = file
	}
	var sink sink
	if m.GetFromIndex() > 0 {
		sink = &deltaSink{staging: staging}
	} else {
		name := imageName(m.GetImage())
		sink = &fullSink{staging: staging, name: name, path: s.opts.FS.PathJoin(*state, name), state: *state}
	}
	if err := s.staged.add(m.GetImage(), sink); err != nil {
		return nil, fmt.Errorf("kv: stage an image of index %d in group %d: %w", m.GetIndex(), s.opts.Group, err)
	}
	return sink, nil
}

// fits tells whether an image could ever be installed.
func (s *Store) fits(m *snapshotv1.Manifest) error {
	if len(m.GetImage()) != imageIDBytes {
		return unfitf("its id has %d bytes", len(m.GetImage()))
	}
	if m.GetKind() != snapshotv1.Kind_KIND_FILES && m.GetKind() != snapshotv1.Kind_KIND_RECORDS {
		return unfitf("it is of kind %s", m.GetKind())
	}
	if m.GetSchema() == 0 || m.GetSchema() > schemaVersion || m.GetStateFormat() > stateFormat() {
		return unfitf("it has schema %d and format %d, this release reads %d and %d",
			m.GetSchema(), m.GetStateFormat(), schemaVersion, stateFormat())
	}
	if len(m.GetFiles()) == 0 || len(m.GetFiles()) > maxImageFiles || m.GetIndex() < m.GetFromIndex() {
		return unfitf("it has %d files, from index %d to %d", len(m.GetFiles()), m.GetFromIndex(), m.GetIndex())
	}
	seen := make(map[string]bool, len(m.GetFiles()))
	for _, file := range m.GetFiles() {
		if name := file.GetName(); !fileNameFits(name) || seen[name] {
			return unfitf("it has a file %q", name)
		}
		seen[file.GetName()] = true
	}
	if m.GetKind() == snapshotv1.Kind_KIND_RECORDS && !seen[appliedFile] {
		return unfitf("it has no file %q", appliedFile)
	}
	d := s.current.Load()
	if d != nil && d.image == imageName(m.GetImage()) {
		return unfitf("it is the state already")
	}
	if m.GetFromIndex() == 0 {
		return nil
	}
	if m.GetKind() != snapshotv1.Kind_KIND_RECORDS {
		return unfitf("only records can be a delta")
	}
	return s.deltaStarts(m)
}

// deltaStarts tells whether a delta starts from a state that this one contains.
func (s *Store) deltaStarts(m *snapshotv1.Manifest) error {
	d, err := s.acquire()
	if err != nil {
		return unfitf("a delta needs a sound state: %v", err)
	}
	defer d.release()
	from, applied := m.GetFromIndex(), s.applied.Load()
	if from > applied || m.GetIndex() < applied {
		return unfitf("it leads from index %d to %d, the state is at %d", from, m.GetIndex(), applied)
	}
	if from < s.low.Load() {
		// The row that tells the term is gone, as it may be for a durable index:
		// the source compared it with what this store told it.
		return nil
	}
	var term uint64
	if err := d.guard(func() (err error) {
		term, err = termAt(d.db, from)
		return err
	}); err != nil {
		return err
	}
	if term != m.GetFromTerm() {
		return unfitf("it starts at index %d of term %d, here that index has term %d", from, m.GetFromTerm(), term)
	}
	return nil
}

// unfitf returns an error that matches snapshot.ErrUnfit.
func unfitf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", snapshot.ErrUnfit, fmt.Sprintf(format, args...))
}

// damagedf returns an error that matches snapshot.ErrCorrupt.
func damagedf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", snapshot.ErrCorrupt, fmt.Sprintf(format, args...))
}

// fileNameFits tells whether a name from the wire may be used: it must not lead
// out of its directory, nor be one that Pebble or a sink makes itself.
func fileNameFits(name string) bool {
	if len(name) == 0 || len(name) > 128 || name == "." || name == ".." || name == pebbleLock || name == localApplied {
		return false
	}
	for _, c := range []byte(name) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

// sink is a sink of this package.
type sink interface {
	snapshot.Sink
	install(s *Store) error
	// detach closes what is open and keeps what is staged; the sink is of no
	// further use.
	detach() error
}

// stagedImages are the sinks of a store, so that Close finds what is open.
type stagedImages struct {
	mu     sync.Mutex
	sinks  map[string]sink
	closed bool
}

// add adds a sink; one of the same image before it ends.
func (i *stagedImages) add(id []byte, next sink) error {
	i.mu.Lock()
	if i.closed {
		i.mu.Unlock()
		return ErrNotOpen
	}
	old := i.sinks[string(id)]
	if i.sinks == nil {
		i.sinks = make(map[string]sink)
	}
	i.sinks[string(id)] = next
	// A sink takes this lock under its own.
	i.mu.Unlock()
	if old != nil {
		return old.detach()
	}
	return nil
}

// remove forgets a sink.
func (i *stagedImages) remove(id []byte, old sink) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.sinks[string(id)] == old {
		delete(i.sinks, string(id))
	}
}

// close detaches all sinks.
func (i *stagedImages) close() error {
	i.mu.Lock()
	sinks := i.sinks
	i.sinks, i.closed = nil, true
	i.mu.Unlock()
	var errs []error
	for _, s := range sinks {
		errs = append(errs, s.detach())
	}
	return errors.Join(errs...)
}

// staging is what sinks have in common.
type staging struct {
	s     *Store
	m     *snapshotv1.Manifest
	dir   string
	files map[string]*snapshotv1.File
}

// check verifies a file in dir: its size, and of a table each block unless the
// source did that.
func (g *staging) check(ctx context.Context, name string, verified bool) error {
	file := g.files[name]
	if file == nil {
		return damagedf("the image has no file %q", name)
	}
	path := g.s.opts.FS.PathJoin(g.dir, name)
	if err := g.sized(path, file.GetSize()); err != nil {
		return err
	}
	if !isTable(name) || verified {
		return nil
	}
	err := checkTable(g.s.opts.FS, path, g.s.newDatabase("", "").pebbleOptions(), contextPacer(ctx))
	if ctxErr := ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	if err != nil {
		return damagedf("file %q: %v", name, err)
	}
	return nil
}

// sized wants a file to have a size.
func (g *staging) sized(path string, size uint64) error {
	info, err := g.s.opts.FS.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return damagedf("%s is missing", path)
	}
	if err != nil {
		return err
	}
	if info.IsDir() || uint64(info.Size()) != size {
		return damagedf("%s has %d bytes, the manifest says %d", path, info.Size(), size)
	}
	return nil
}

// complete wants all files to be there.
func (g *staging) complete(ctx context.Context) error {
	for _, file := range g.m.GetFiles() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := g.sized(g.s.opts.FS.PathJoin(g.dir, file.GetName()), file.GetSize()); err != nil {
			return err
		}
	}
	return nil
}

// matches wants an applied record to be the one the manifest tells.
func (g *staging) matches(applied *appliedRecord) error {
	if applied.Index != g.m.GetIndex() || applied.Term != g.m.GetTerm() || applied.Clock != g.m.GetClock() ||
		applied.schema != uint64(g.m.GetSchema()) || !bytes.Equal(applied.Membership, g.m.GetMembership()) {
		return damagedf("its applied record is at index %d term %d clock %d schema %d, the manifest says %d, %d, %d, %d, or the membership differs",
			applied.Index, applied.Term, applied.Clock, applied.schema,
			g.m.GetIndex(), g.m.GetTerm(), g.m.GetClock(), g.m.GetSchema())
	}
	return nil
}

// readAppliedFile reads the applied record that travels with records.
func (g *staging) readAppliedFile() (appliedRecord, error) {
	size := g.files[appliedFile].GetSize()
	if size > maxMembership+appliedFixed+64 {
		return appliedRecord{}, damagedf("an applied record of %d bytes", size)
	}
	file, err := g.s.opts.FS.Open(g.s.opts.FS.PathJoin(g.dir, appliedFile))
	if err != nil {
		return appliedRecord{}, err
	}
	content := make([]byte, size)
	_, err = file.ReadAt(content, 0)
	if err = errors.Join(err, file.Close()); err != nil {
		return appliedRecord{}, err
	}
	record, err := decodeApplied(content)
	if err == nil {
		err = g.matches(&record)
	}
	if errors.Is(err, ErrCorrupt) {
		err = damagedf("%v", err)
	}
	return record, err
}

// tables returns the names of the image's tables in order.
func (g *staging) tables() []string {
	var names []string
	for name := range g.files {
		if isTable(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
