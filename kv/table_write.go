package kv

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// tableWriter writes rows that come in key order as tables that do not overlap.
type tableWriter struct {
	fs          vfs.FS
	dir, prefix string
	opts        sstable.WriterOptions
	target      int
	budget      *deltaBudget

	w    *sstable.Writer
	file *hashedFile
	size int
	// deleting is where the part of an open range delete that is not in a
	// finished table begins.
	deleting []byte
	files    []*snapshotv1.File
	records  uint64
	raw      uint64
}

// deltaBudget stops a delta that costs too much.
type deltaBudget struct {
	spent atomic.Int64
	limit int64
}

// spend takes n bytes; snapshot.ErrNoDelta tells that they are not there.
func (b *deltaBudget) spend(n int) error {
	if b.limit > 0 && b.spent.Add(int64(n)) > b.limit {
		return fmt.Errorf("%w: more than half of a full image changed", snapshot.ErrNoDelta)
	}
	return nil
}

// set writes a row.
func (t *tableWriter) set(key, value []byte) error {
	if err := t.row(key, len(value)); err != nil {
		return err
	}
	return t.w.Set(key, value)
}

// delete writes the tombstone of a row.
func (t *tableWriter) delete(key []byte) error {
	if err := t.row(key, 0); err != nil {
		return err
	}
	return t.w.Delete(key)
}

// row makes sure that there is a table with room for a row.
func (t *tableWriter) row(key []byte, size int) error {
	t.records++
	t.raw += uint64(len(key) + size)
	if t.w != nil && t.size >= t.target {
		if err := t.cut(key); err != nil {
			return err
		}
	}
	t.size += len(key) + size
	if err := t.budget.spend(len(key) + size); err != nil {
		return err
	}
	return t.begin()
}

// beginDelete begins a range delete; rows inside it may follow.
func (t *tableWriter) beginDelete(start []byte) error {
	t.deleting = bytes.Clone(start)
	return t.begin()
}

// endDelete ends the range delete.
func (t *tableWriter) endDelete(end []byte) error {
	start := t.deleting
	t.deleting = nil
	t.records++
	return t.w.DeleteRange(start, end)
}

// begin starts a table if there is none.
func (t *tableWriter) begin() error {
	if t.w != nil {
		return nil
	}
	name := fmt.Sprintf("%s-%06d%s", t.prefix, len(t.files)+1, tableSuffix)
	file, err := t.fs.Create(t.fs.PathJoin(t.dir, name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	t.file = &hashedFile{file: file, hash: xxhash.New()}
	t.w, t.size = sstable.NewWriter(t.file, t.opts), 0
	t.files = append(t.files, &snapshotv1.File{Name: name, Verified: true})
	return nil
}

// cut ends the table before key: an open range delete is split there.
func (t *tableWriter) cut(key []byte) error {
	if t.deleting != nil && !bytes.Equal(t.deleting, key) {
		if err := t.w.DeleteRange(t.deleting, key); err != nil {
			return err
		}
		t.deleting = bytes.Clone(key)
	}
	return t.finish()
}

// finish ends the last table: it is durable but for its name.
func (t *tableWriter) finish() error {
	if t.w == nil {
		return nil
	}
	w := t.w
	t.w = nil
	if err := w.Close(); err != nil {
		return err
	}
	last := t.files[len(t.files)-1]
	last.Size, last.Digest = t.file.size, t.file.hash.Sum64()
	return nil
}

// abandon closes what is open after an error.
func (t *tableWriter) abandon() error {
	if t.w == nil {
		return nil
	}
	w := t.w
	t.w = nil
	return t.file.abandonTable(w)
}

// hashedFile is where a table goes. Its digest is of the bytes that were
// written and not of what a disk gives back, so it finds a fault of the disk.
type hashedFile struct {
	file vfs.File
	hash *xxhash.Digest
	size uint64
	// abandoned: nothing that comes now is written.
	abandoned atomic.Bool
}

var errTableAbandoned = errors.New("kv: the table is abandoned")

// abandonTable ends a table that is of no use. Its writer has a goroutine that
// writes blocks, so the file is closed only when Close has waited for that.
func (f *hashedFile) abandonTable(w *sstable.Writer) error {
	f.abandoned.Store(true)
	if err := w.Close(); err != nil && !errors.Is(err, errTableAbandoned) {
		return errors.Join(err, f.abandon())
	}
	return f.abandon()
}

// Write writes and hashes.
func (f *hashedFile) Write(p []byte) error {
	if f.abandoned.Load() {
		return errTableAbandoned
	}
	// A Digest of xxhash never returns an error from Write. It comes first: a
	// file may change p.
	_, _ = f.hash.Write(p)
	f.size += uint64(len(p))
	_, err := f.file.Write(p)
	return err
}

// Finish syncs and closes.
func (f *hashedFile) Finish() error {
	file := f.file
	f.file = nil
	return errors.Join(file.Sync(), file.Close())
}

// Abort closes; the file is of no use.
func (f *hashedFile) Abort() { _ = f.abandon() }

func (f *hashedFile) abandon() error {
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	return file.Close()
}
