package inmemory

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/compress/zstd"

	"github.com/streamraft/streamraft/internal/durable"
)

// writeBuffers are the blocks between Save, which fills them, and the goroutine
// that compresses and writes them: what a save has in memory.
const writeBuffers = 4

// streamWriter is the io.Writer that Save gets. It makes the data files of an
// image. One goroutine calls Write and finish; another, which finish waits for,
// compresses and writes.
type streamWriter struct {
	fsys      vfs.FS
	dir       string
	salt      uint64
	fileBytes int64
	// stop ends the stream with its error, looked at for every block.
	stop func() error

	buffer []byte      // being filled
	full   chan []byte // to be written
	free   chan []byte
	done   chan struct{}
	failed atomic.Pointer[error]

	// The rest belongs to the goroutine that writes, and to finish after it.
	encoder *zstd.Encoder
	block   []byte
	file    vfs.File
	hash    *xxhash.Digest
	size    int64
	files   []dataFile
	raw     uint64
	blocks  uint64
}

// newStreamWriter starts writing into dir, which exists and is empty. finish must
// follow.
func newStreamWriter(fsys vfs.FS, dir string, salt uint64, fileBytes int64, stop func() error) (*streamWriter, error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("make a zstd encoder: %w", err)
	}
	w := &streamWriter{
		fsys: fsys, dir: dir, salt: salt, fileBytes: fileBytes, stop: stop, encoder: encoder,
		full: make(chan []byte, writeBuffers), free: make(chan []byte, writeBuffers), done: make(chan struct{}),
	}
	blockBytes := min(maxBlockBytes, fileBytes)
	for range writeBuffers {
		w.free <- make([]byte, 0, blockBytes)
	}
	go func() {
		defer close(w.done)
		w.run()
	}()
	return w, nil
}

// Write takes the next bytes of the stream. It blocks while all buffers wait to
// be written, and returns the error of any earlier block.
func (w *streamWriter) Write(p []byte) (int, error) {
	taken := 0
	for taken < len(p) {
		if w.buffer == nil {
			if err := w.err(); err != nil {
				return taken, err
			}
			w.buffer = <-w.free
		}
		n := copy(w.buffer[len(w.buffer):cap(w.buffer)], p[taken:])
		w.buffer = w.buffer[:len(w.buffer)+n]
		if taken += n; len(w.buffer) == cap(w.buffer) {
			w.full <- w.buffer
			w.buffer = nil
		}
	}
	return taken, nil
}

func (w *streamWriter) err() error {
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (w *streamWriter) run() {
	for raw := range w.full {
		if w.err() == nil {
			err := w.stop()
			if err == nil {
				err = w.writeBlock(raw)
			}
			if err != nil {
				w.failed.Store(&err)
			}
		}
		w.free <- raw[:0]
	}
}

// writeBlock compresses where that saves anything, and appends to the file.
func (w *streamWriter) writeBlock(raw []byte) error {
	if w.file != nil && w.size >= w.fileBytes {
		if err := w.endFile(); err != nil {
			return err
		}
	}
	if w.file == nil {
		if err := w.beginFile(); err != nil {
			return err
		}
	}
	codec := uint32(codecZstd)
	w.block = append(w.block[:0], make([]byte, blockHeaderSize)...)
	w.block = w.encoder.EncodeAll(raw, w.block)
	if len(w.block)-blockHeaderSize >= len(raw) {
		codec = codecNone
		w.block = append(w.block[:blockHeaderSize], raw...)
	}
	putBlockHeader(w.block, w.salt, w.blocks, uint32(len(raw)), codec)
	w.blocks++
	w.raw += uint64(len(raw))
	return w.append(w.block)
}

func (w *streamWriter) append(b []byte) error {
	// Before it is written: a file system may change what it is given.
	w.hash.Write(b)
	if _, err := w.file.Write(b); err != nil {
		return fmt.Errorf("write %s: %w", dataName(len(w.files)), err)
	}
	w.size += int64(len(b))
	return nil
}

func (w *streamWriter) beginFile() error {
	if len(w.files) == maxDataFiles {
		return fmt.Errorf("%w: %d of %d bytes", ErrTooBig, len(w.files), w.fileBytes)
	}
	file, err := w.fsys.Create(w.fsys.PathJoin(w.dir, dataName(len(w.files))), vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("make %s: %w", dataName(len(w.files)), err)
	}
	w.file, w.hash, w.size = file, xxhash.New(), 0
	header := fileHeader{number: uint32(len(w.files)), salt: w.salt, first: w.blocks}
	return w.append(header.append(nil))
}

// endFile syncs here, file by file, so that the end of a save has little left.
func (w *streamWriter) endFile() error {
	file := w.file
	w.file = nil
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dataName(len(w.files)), err)
	}
	w.files = append(w.files, dataFile{uint64(w.size), w.hash.Sum64()})
	return nil
}

// finish ends the stream after Save returned saveErr, and writes the record: the
// image is durable, but for the entry of its directory, when it returns without
// an error.
func (w *streamWriter) finish(r *record, saveErr error) error {
	if len(w.buffer) > 0 && saveErr == nil {
		w.full <- w.buffer
	}
	w.buffer = nil
	close(w.full)
	<-w.done
	err := w.err()
	if err == nil {
		err = saveErr
	}
	if err == nil && w.file != nil {
		err = w.endFile()
	}
	if w.file != nil {
		err = errors.Join(err, w.file.Close())
	}
	err = errors.Join(err, w.encoder.Close())
	if err != nil {
		return err
	}
	r.salt, r.raw, r.blocks, r.files = w.salt, w.raw, w.blocks, w.files
	return durable.WriteRecord(w.fsys, w.fsys.PathJoin(w.dir, recordName), recordFormat(), r.encode())
}
