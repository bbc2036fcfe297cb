package inmemory

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/compress/zstd"
)

// readBuffer is how much is read from a file at once.
const readBuffer = 256 << 10

// fileReader reads the blocks of one data file.
type fileReader struct {
	file   vfs.File
	reader *bufio.Reader
	header fileHeader
	size   uint64
	offset uint64
	block  uint64 // number of the next
	stored []byte
}

// openDataFile opens a data file that must have size bytes and be of the given
// number. Errors are ErrNewer, snapshot.ErrCorrupt (also where it is missing) or
// the file system's.
func openDataFile(fsys vfs.FS, dir string, number int, size uint64) (*fileReader, error) {
	name := dataName(number)
	file, err := fsys.Open(fsys.PathJoin(dir, name), vfs.SequentialReadsOption)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damagedf("%v", err)
	}
	if err != nil {
		return nil, err
	}
	f := &fileReader{file: file, reader: bufio.NewReaderSize(file, readBuffer), size: size}
	if err := f.begin(number); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", fsys.PathJoin(dir, name), err), file.Close())
	}
	return f, nil
}

func (f *fileReader) begin(number int) error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() || uint64(info.Size()) != f.size {
		return damagedf("it has %d bytes and should have %d", info.Size(), f.size)
	}
	var b [fileHeaderSize]byte
	if err := f.read(b[:]); err != nil {
		return err
	}
	if f.header, err = decodeFileHeader(b[:]); err != nil {
		return err
	}
	if f.header.number != uint32(number) {
		return damagedf("it is file %d of its image", f.header.number)
	}
	f.block = f.header.first
	return nil
}

func (f *fileReader) read(b []byte) error {
	_, err := io.ReadFull(f.reader, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return damagedf("it ends at offset %d, in the middle of what is there", f.offset)
	}
	f.offset += uint64(len(b))
	return err
}

// next returns the next block as it is stored, valid until the next call, or
// io.EOF. Its checksum is right.
func (f *fileReader) next() (blockHeader, []byte, error) {
	if f.offset == f.size {
		return blockHeader{}, nil, io.EOF
	}
	at := f.offset
	var b [blockHeaderSize]byte
	if err := f.read(b[:]); err != nil {
		return blockHeader{}, nil, err
	}
	h, err := decodeBlockHeader(b[:])
	if err != nil {
		return h, nil, fmt.Errorf("at offset %d: %w", at, err)
	}
	if uint64(h.stored) > f.size-f.offset {
		return h, nil, damagedf("at offset %d: a block of %d bytes is stored in the %d that are left", at, h.stored, f.size-f.offset)
	}
	if cap(f.stored) < int(h.stored) {
		f.stored = make([]byte, h.stored)
	}
	data := f.stored[:h.stored]
	if err := f.read(data); err != nil {
		return h, nil, err
	}
	if sum := blockSum(f.header.salt, f.block, b[:12], data); sum != h.sum {
		return h, nil, damagedf("at offset %d: block %d has checksum %08x and %08x is stored", at, f.block, sum, h.sum)
	}
	f.block++
	return h, data, nil
}

func (f *fileReader) close() error { return f.file.Close() }

// streamReader is the io.Reader that Restore gets: the blocks of all files in
// order, checked. One goroutine uses it.
type streamReader struct {
	fsys   vfs.FS
	dir    string
	record *record
	// stop ends the stream with its error, looked at for every block.
	stop func() error

	decoder *zstd.Decoder
	file    *fileReader
	files   int // opened
	rest    []byte
	raw     []byte // memory of a block
	blocks  uint64
	bytes   uint64
	err     error // sticky; io.EOF at the end
}

func newStreamReader(fsys vfs.FS, dir string, r *record, stop func() error) (*streamReader, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBlockBytes))
	if err != nil {
		return nil, fmt.Errorf("make a zstd decoder: %w", err)
	}
	return &streamReader{fsys: fsys, dir: dir, record: r, stop: stop, decoder: decoder}, nil
}

// Read returns the next bytes of the stream.
func (s *streamReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(s.rest) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		s.rest, s.err = s.next()
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// next returns the bytes of the next block.
func (s *streamReader) next() ([]byte, error) {
	if err := s.stop(); err != nil {
		return nil, err
	}
	for {
		if s.file == nil {
			if s.files == len(s.record.files) {
				if s.blocks != s.record.blocks || s.bytes != s.record.raw {
					return nil, damagedf("%s has %d bytes in %d blocks, its record says %d in %d", s.dir, s.bytes, s.blocks, s.record.raw, s.record.blocks)
				}
				return nil, io.EOF
			}
			file, err := openDataFile(s.fsys, s.dir, s.files, s.record.files[s.files].size)
			if err != nil {
				return nil, err
			}
			s.file = file
			s.files++
			if file.header.salt != s.record.salt || file.header.first != s.blocks {
				return nil, damagedf("%s: %s is of another image", s.dir, dataName(s.files-1))
			}
		}
		h, data, err := s.file.next()
		if errors.Is(err, io.EOF) {
			file := s.file
			s.file = nil
			if err := file.close(); err != nil {
				return nil, err
			}
			continue
		}
		if err == nil {
			data, err = s.unpack(h, data)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.fsys.PathJoin(s.dir, dataName(s.files-1)), err)
		}
		s.blocks++
		s.bytes += uint64(len(data))
		return data, nil
	}
}

func (s *streamReader) unpack(h blockHeader, data []byte) ([]byte, error) {
	if h.codec == codecNone {
		return data, nil
	}
	if cap(s.raw) < int(h.raw) {
		s.raw = make([]byte, 0, h.raw)
	}
	raw, err := s.decoder.DecodeAll(data, s.raw[:0])
	if err != nil {
		return nil, damagedf("block %d does not unpack: %v", s.blocks, err)
	}
	if uint64(len(raw)) != uint64(h.raw) {
		return nil, damagedf("block %d unpacks to %d bytes, its header says %d", s.blocks, len(raw), h.raw)
	}
	s.raw = raw
	return raw, nil
}

func (s *streamReader) close() error {
	s.decoder.Close()
	if s.file == nil {
		return nil
	}
	return s.file.close()
}

// fileDigest reads a whole file and returns its size and xxhash64.
func fileDigest(fsys vfs.FS, path string, stop func() error) (uint64, uint64, error) {
	file, err := fsys.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return 0, 0, err
	}
	hash, buffer, size := xxhash.New(), make([]byte, readBuffer), uint64(0)
	for {
		err := stop()
		n := 0
		if err == nil {
			n, err = file.Read(buffer)
		}
		hash.Write(buffer[:n])
		size += uint64(n)
		if errors.Is(err, io.EOF) {
			return size, hash.Sum64(), file.Close()
		}
		if err != nil {
			return 0, 0, errors.Join(err, file.Close())
		}
	}
}
