package kv

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

var (
	_ snapshot.Capturer = (*Store)(nil)
	_ snapshot.Stager   = (*Store)(nil)
)

const (
	// maxImageFiles bounds the files of a manifest that is staged.
	maxImageFiles = 1 << 20
	// imageIDBytes is the length of an image's id.
	imageIDBytes = 16
)

// stateFormat is the format of the database's files that this release writes
// and the highest it reads.
func stateFormat() uint32 { return uint32(pebble.FormatNewest) }

// Have returns what to tell the source of an image: index and term of the
// durable applied record, since a delta that starts above it would be illegal
// after a crash, with schema and format. Flush before for a smaller delta. The
// zero Have, but for schema and format, is that of a store that is not open.
func (s *Store) Have() snapshot.Have {
	have := snapshot.Have{Schema: schemaVersion, StateFormat: stateFormat()}
	if s.failure() != nil || s.current.Load() == nil {
		return have
	}
	s.durableMu.Lock()
	defer s.durableMu.Unlock()
	have.Index, have.Term = s.durable.Load(), s.durableTerm
	return have
}

// Capture pins the state as snapshot.Capturer says. With a Have that a delta
// may legally start from it pins a delta, whose index is the applied one; for
// a store of an older format the whole state as records; else the files, whose
// index is the durable one. A state with a damaged table is no source:
// snapshot.ErrCorrupt.
func (s *Store) Capture(have snapshot.Have, minIndex uint64) (snapshot.Capture, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	if damage := s.damage.Load(); damage != nil {
		return nil, *damage
	}
	w, format := s.writer, stateFormat()
	if have.StateFormat != 0 {
		format = min(format, have.StateFormat)
	}
	if format < uint32(pebble.FormatMinSupported) {
		return nil, fmt.Errorf("%w: the receiver reads state format %d at most, this release writes %d at least",
			snapshot.ErrUnfit, format, uint32(pebble.FormatMinSupported))
	}
	delta, err := s.deltaFits(have)
	if err != nil {
		return nil, err
	}
	c := capture{s: s, d: w.d}
	if (delta || format < stateFormat()) && w.applied.Index < minIndex || !delta && format == stateFormat() && s.durable.Load() < minIndex {
		return nil, fmt.Errorf("kv: capture group %d at index %d: applied %d, durable %d: %w",
			s.opts.Group, minIndex, w.applied.Index, s.durable.Load(), snapshot.ErrTooOld)
	}
	// The applied index and the state of a snapshot are of one moment only
	// because no Apply runs now.
	if !w.d.retain() {
		return nil, ErrNotOpen
	}
	if !delta && format == stateFormat() {
		return &filesCapture{capture: c, least: minIndex}, nil
	}
	r := &recordsCapture{capture: c, applied: w.applied, format: format, snapshot: w.db.NewSnapshot()}
	if delta {
		r.from, r.fromTerm = have.Index, have.Term
	}
	return r, nil
}

// capture holds a reference of the database that is captured.
type capture struct {
	s *Store
	d *database
}

// run runs f with a context that ends with ctx, and when readers of the state
// have to end.
func (c *capture) run(ctx context.Context, f func(context.Context) (*snapshotv1.Manifest, error)) (*snapshotv1.Manifest, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-c.d.cut:
			cancel(ErrReplaced)
		case <-c.s.closing:
			cancel(ErrNotOpen)
		case <-ended:
		}
	}()
	var manifest *snapshotv1.Manifest
	err := c.d.guard(func() (err error) {
		manifest, err = f(ctx)
		return err
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
			err = cause
		}
		return nil, fmt.Errorf("kv: make an image of group %d: %w", c.s.opts.Group, err)
	}
	c.s.counters.captured.Add(1)
	return manifest, nil
}

// manifestOf returns the part of a manifest that says which state it is.
func manifestOf(kind snapshotv1.Kind, applied *appliedRecord, format uint32) *snapshotv1.Manifest {
	return &snapshotv1.Manifest{
		Kind:        kind,
		Index:       applied.Index,
		Term:        applied.Term,
		Clock:       applied.Clock,
		Membership:  applied.Membership,
		Schema:      uint32(applied.schema),
		StateFormat: format,
	}
}

// addFile adds a file to a manifest.
func addFile(m *snapshotv1.Manifest, file *snapshotv1.File) {
	m.Files = append(m.Files, file)
	m.Bytes += file.GetSize()
}

// imageName is the name of an image's directory in the state directory.
func imageName(id []byte) string { return hex.EncodeToString(id) }

// syncDir makes the names in a directory durable.
func syncDir(fs vfs.FS, dir string) error {
	file, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// PinJournal keeps the journal above from, so that a delta can follow an image
// at from, until release is called; it may be called more than once. The pin
// yields where the journal would grow past a quarter of the state (or past its
// own bound, if that is more): Metrics.JournalLow tells.
func (s *Store) PinJournal(from uint64) (release func()) {
	pin := &journalPin{from: from}
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	if s.pins.held == nil {
		s.pins.held = make(map[*journalPin]struct{})
	}
	s.pins.held[pin] = struct{}{}
	return func() {
		s.pins.mu.Lock()
		defer s.pins.mu.Unlock()
		delete(s.pins.held, pin)
	}
}
