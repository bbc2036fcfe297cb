package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/snapshot"
)

// tableSuffix ends the name of every table, Pebble's and a delta's.
const tableSuffix = ".sst"

// isTable tells whether a file of an image is a table.
func isTable(name string) bool { return strings.HasSuffix(name, tableSuffix) }

// pacer is asked before every read of a check; an error ends it.
type pacer func(bytes int) error

// pacedFile is a file whose reads are paced.
type pacedFile struct {
	vfs.File
	pace pacer
}

// ReadAt reads once the pacer allows it.
func (f pacedFile) ReadAt(p []byte, offset int64) (int, error) {
	if err := f.pace(len(p)); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, offset)
}

// Read reads once the pacer allows it.
func (f pacedFile) Read(p []byte) (int, error) {
	if err := f.pace(len(p)); err != nil {
		return 0, err
	}
	return f.File.Read(p)
}

// contextPacer paces nothing and ends with ctx.
func contextPacer(ctx context.Context) pacer { return func(int) error { return ctx.Err() } }

// openTable opens a table beside any database. It reads past the block cache:
// what is checked once is not what is read next.
func openTable(fs vfs.FS, path string, opts *pebble.Options, pace pacer) (*sstable.Reader, error) {
	file, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	readable, err := sstable.NewSimpleReadable(pacedFile{file, pace})
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return newTableReader(readable, opts)
}

// newTableReader opens a table and turns what Pebble panics on into an error:
// the bytes may have come over the wire.
func newTableReader(readable objstorage.Readable, opts *pebble.Options) (reader *sstable.Reader, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", snapshot.ErrCorrupt, r)
		}
		if err != nil {
			err = errors.Join(err, readable.Close())
		}
	}()
	return sstable.NewReader(context.Background(), readable, opts.MakeReaderOptions())
}

// checkTable reads a table and checks the checksum of each block.
func checkTable(fs vfs.FS, path string, opts *pebble.Options, pace pacer) (err error) {
	reader, err := openTable(fs, path, opts, pace)
	if err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", snapshot.ErrCorrupt, r)
		}
		if closeErr := reader.Close(); err == nil {
			err = closeErr
		}
	}()
	return reader.ValidateBlockChecksums()
}

// tableSpan is the first key of a table and the first behind its last; with
// inclusive, end is the last key itself.
type tableSpan struct {
	start, end []byte
	inclusive  bool
}

// before tells whether all of a lies before all of b.
func (a *tableSpan) before(b *tableSpan) bool {
	c := bytes.Compare(a.end, b.start)
	return c < 0 || c == 0 && !a.inclusive
}

// spanOf returns what a table covers, range deletes included. With full it
// reads all keys and wants them to rise: an ingest looks only at the first and
// the last one.
func spanOf(reader *sstable.Reader, full bool) (span tableSpan, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", snapshot.ErrCorrupt, r)
		}
	}()
	points, err := reader.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		return span, err
	}
	if kv := points.First(); kv != nil {
		span.start = bytes.Clone(kv.K.UserKey)
		last := bytes.Clone(span.start)
		for kv = points.Next(); full && kv != nil; kv = points.Next() {
			if bytes.Compare(last, kv.K.UserKey) >= 0 {
				err = fmt.Errorf("%w: key %q does not rise", snapshot.ErrCorrupt, kv.K.UserKey)
				break
			}
			last = append(last[:0], kv.K.UserKey...)
		}
		if !full {
			if kv := points.Last(); kv != nil {
				last = bytes.Clone(kv.K.UserKey)
			}
		}
		span.end, span.inclusive = last, true
	}
	if err = errors.Join(err, points.Error(), points.Close()); err != nil {
		return span, err
	}
	ranges, err := reader.NewRawRangeDelIter(context.Background(), sstable.NoFragmentTransforms, sstable.NoReadEnv)
	if err != nil || ranges == nil {
		return span, err
	}
	defer ranges.Close()
	for s, err := ranges.First(); s != nil || err != nil; s, err = ranges.Next() {
		if err != nil {
			return span, err
		}
		if span.start == nil || bytes.Compare(s.Start, span.start) < 0 {
			span.start = bytes.Clone(s.Start)
		}
		if span.end == nil || bytes.Compare(s.End, span.end) > 0 {
			span.end, span.inclusive = bytes.Clone(s.End), false
		}
	}
	return span, nil
}

// digestFile returns the xxhash64 and the size of a file.
func digestFile(fs vfs.FS, path string, pace pacer) (digest, size uint64, err error) {
	file, err := fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return 0, 0, err
	}
	hash, buffer := xxhash.New(), make([]byte, 256<<10)
	paced := pacedFile{file, pace}
	for {
		n, err := paced.Read(buffer)
		size += uint64(n)
		// A Digest of xxhash never returns an error from Write.
		_, _ = hash.Write(buffer[:n])
		if errors.Is(err, io.EOF) {
			return hash.Sum64(), size, file.Close()
		}
		if err != nil {
			return 0, 0, errors.Join(err, file.Close())
		}
	}
}
