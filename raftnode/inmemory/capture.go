package inmemory

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// Capture hands out the kept image, if it is at minIndex or later; see
// snapshot.Capturer. snapshot.ErrTooOld tells to Flush first: always so where
// nothing is kept yet, or what is kept was found damaged. There are no deltas.
func (s *StateMachine[M]) Capture(have snapshot.Have, minIndex uint64) (snapshot.Capture, error) {
	if s.live.Load() == nil || s.closed.Load() {
		return nil, ErrNotOpen
	}
	if have.Index > 0 {
		return nil, fmt.Errorf("%w: a state in memory has only full images", snapshot.ErrNoDelta)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil || s.kept.damaged || s.kept.record.applied.Index < minIndex {
		return nil, snapshot.ErrTooOld
	}
	s.kept.holders++
	return &capture[M]{s: s, image: s.kept}, nil
}

// capture holds a kept image.
type capture[M Machine] struct {
	s     *StateMachine[M]
	image *keptImage
}

// Write links the files of the image into dir, after it read each of them once:
// what is sent was checked, and what is damaged is found while the sound state
// is still in memory. See snapshot.Capture.
func (c *capture[M]) Write(ctx context.Context, dir string) (*snapshotv1.Manifest, error) {
	m, err := c.write(ctx, dir)
	if errors.Is(err, snapshot.ErrCorrupt) {
		c.s.mu.Lock()
		c.image.damaged = true
		c.s.mu.Unlock()
		c.s.opts.Logger.Error("the kept image is damaged on disk; the next capture has another one saved from memory", "image", c.image.name, "error", err)
	}
	if err != nil {
		return nil, fmt.Errorf("inmemory: hand out image %s: %w", c.image.name, err)
	}
	return m, nil
}

func (c *capture[M]) write(ctx context.Context, dir string) (*snapshotv1.Manifest, error) {
	fsys, r := c.s.opts.FS, c.image.record
	m := &snapshotv1.Manifest{
		Kind: snapshotv1.Kind_KIND_STREAM, Index: r.applied.Index, Term: r.applied.Term, Clock: r.applied.Clock,
		Membership: r.applied.Membership, Schema: r.schema, StateFormat: stateFormat, RawBytes: r.raw,
		Files: make([]*snapshotv1.File, 0, len(r.files)+1),
	}
	from := fsys.PathJoin(*c.s.dir.Load(), c.image.name)
	stop := func() error { return errors.Join(context.Cause(ctx), c.s.stopped()) }
	for i := -1; i < len(r.files); i++ {
		name := recordName
		if i >= 0 {
			name = dataName(i)
		}
		size, digest, err := fileDigest(fsys, fsys.PathJoin(from, name), stop)
		if isGone(err) {
			err = damagedf("%v", err)
		}
		if err != nil {
			return nil, err
		}
		if i >= 0 && (size != r.files[i].size || digest != r.files[i].digest) {
			return nil, damagedf("%s has %d bytes and digest %016x, and had %d and %016x when it was written", name, size, digest, r.files[i].size, r.files[i].digest)
		}
		m.Files = append(m.Files, &snapshotv1.File{Name: name, Size: size, Digest: digest, Verified: true})
		m.Bytes += size
	}
	// The record has a checksum of its own.
	if _, err := readRecord(fsys, from, r.schema); err != nil {
		return nil, err
	}
	for _, file := range m.Files {
		if err := fsys.Link(fsys.PathJoin(from, file.Name), fsys.PathJoin(dir, file.Name)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Close lets go of the image; see snapshot.Capture.
func (c *capture[M]) Close() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.image.holders--
	c.s.removeRetired(c.image)
	return nil
}
