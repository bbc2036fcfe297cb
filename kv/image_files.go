package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// pebbleLock is the file that Pebble leaves in each directory it opened.
const pebbleLock = "LOCK"

// filesCapture makes an image of the database's own files.
type filesCapture struct {
	capture
	least uint64
}

// Close gives the state free.
func (c *filesCapture) Close() error {
	c.d.release()
	return nil
}

// Write links the tables of a checkpoint into dir. Without a flush a checkpoint
// holds what is durable, so its index is read from it.
func (c *filesCapture) Write(ctx context.Context, dir string) (*snapshotv1.Manifest, error) {
	return c.run(ctx, func(ctx context.Context) (*snapshotv1.Manifest, error) { return c.write(ctx, dir) })
}

func (c *filesCapture) write(ctx context.Context, dir string) (*snapshotv1.Manifest, error) {
	fs := c.s.opts.FS
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// A checkpoint makes its directory itself. An error leaves none behind.
	if err := fs.Remove(dir); err != nil {
		return nil, fmt.Errorf("an image needs an empty directory: %w", err)
	}
	err := c.d.db.Checkpoint(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("checkpoint into %s: %w", dir, err), fs.MkdirAll(dir, 0o755))
	}
	m, err := c.describe(dir)
	if err != nil {
		return nil, err
	}
	if m.GetIndex() < c.least {
		return nil, fmt.Errorf("the checkpoint is at index %d, wanted %d: %w", m.GetIndex(), c.least, snapshot.ErrTooOld)
	}
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	pace := contextPacer(ctx)
	for _, name := range names {
		if name == pebbleLock {
			continue
		}
		path := fs.PathJoin(dir, name)
		file := &snapshotv1.File{Name: name}
		if isTable(name) {
			info, err := fs.Stat(path)
			if err != nil {
				return nil, err
			}
			file.Size = uint64(info.Size())
			file.Digest, file.Verified = c.d.scrubbed.sound(name, file.GetSize())
		} else {
			// Small, and opening the checkpoint has read it.
			if file.Digest, file.Size, err = digestFile(fs, path, pace); err != nil {
				return nil, err
			}
			file.Verified = true
		}
		addFile(m, file)
	}
	return m, nil
}

// describe opens a checkpoint for reading and returns what it holds.
func (c *filesCapture) describe(dir string) (*snapshotv1.Manifest, error) {
	opts := c.s.newDatabase(dir, "").pebbleOptions()
	opts.ReadOnly, opts.ErrorIfNotExists = true, true
	db, err := pebble.Open(dir, opts)
	if err != nil {
		return nil, fmt.Errorf("open the checkpoint in %s: %w", dir, err)
	}
	m, err := describe(db)
	if err = errors.Join(err, db.Close()); err != nil {
		return nil, fmt.Errorf("read the checkpoint in %s: %w", dir, err)
	}
	if err := c.s.opts.FS.Remove(c.s.opts.FS.PathJoin(dir, pebbleLock)); err != nil {
		return nil, err
	}
	return m, nil
}

// describe returns the manifest of a database, without files.
func describe(db *pebble.DB) (*snapshotv1.Manifest, error) {
	applied, err := loadApplied(db, nil)
	if err != nil {
		return nil, err
	}
	m := manifestOf(snapshotv1.Kind_KIND_FILES, &applied, uint32(db.FormatMajorVersion()))
	levels, err := db.SSTables(pebble.WithProperties())
	if err != nil {
		return nil, err
	}
	// An estimate: a key that is in several levels counts in each.
	for _, level := range levels {
		for i := range level {
			p := level[i].Properties
			m.Records += p.NumEntries - min(p.NumEntries, p.NumDeletions)
			m.RawBytes += p.RawKeySize + p.RawValueSize
		}
	}
	return m, nil
}
