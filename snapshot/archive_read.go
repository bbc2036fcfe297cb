package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// Archive describes an archive file.
type Archive struct {
	// Header it begins with.
	Header *snapshotv1.ArchiveHeader
	// Manifests of its images, in their order.
	Manifests []*snapshotv1.Manifest
	// Entries of its index, one for each manifest.
	Entries []*snapshotv1.ArchiveEntry
	// Bytes of the file.
	Bytes uint64
}

// InspectArchive reads header, index and manifests of an archive of size bytes,
// and nothing else: VerifyArchive tells whether it is sound. Errors are
// ErrCorrupt and those of r.
func InspectArchive(r io.ReaderAt, size int64) (*Archive, error) {
	a, err := inspectArchive(r, size)
	if err != nil {
		return nil, fmt.Errorf("snapshot: inspect the archive: %w", err)
	}
	return a, nil
}

func inspectArchive(r io.ReaderAt, size int64) (*Archive, error) {
	var footer [archiveFooter]byte
	if size < int64(len(archiveMagic)+archiveFooter) {
		return nil, fmt.Errorf("%w: %d bytes are no archive", ErrCorrupt, size)
	}
	magic := make([]byte, len(archiveMagic))
	if n, err := r.ReadAt(magic, 0); n < len(magic) {
		return nil, err
	}
	if err := checkMagic(magic); err != nil {
		return nil, err
	}
	if n, err := r.ReadAt(footer[:], size-archiveFooter); n < archiveFooter {
		return nil, err
	}
	at := binary.LittleEndian.Uint64(footer[:])
	if string(footer[16:]) != archiveEndMagic || at > uint64(size-archiveFooter) {
		return nil, fmt.Errorf("%w: it does not end as an archive does; it was cut, or is none", ErrCorrupt)
	}
	// section reads one record of a kind at an offset.
	section := func(offset uint64, kind byte, m proto.Message) error {
		if offset > uint64(size-archiveFooter) {
			return fmt.Errorf("%w: a record at %d of %d bytes", ErrCorrupt, offset, size)
		}
		s := newArchiveReader(io.NewSectionReader(r, int64(offset), size-archiveFooter-int64(offset)))
		got, payload, err := s.next()
		if err == nil && got != kind {
			err = fmt.Errorf("%w: a record of kind %d, and %d should be there", ErrCorrupt, got, kind)
		}
		if err == nil {
			err = decodeRecord(payload, m)
		}
		if err != nil {
			return fmt.Errorf("at byte %d: %w", offset, err)
		}
		return nil
	}
	a := &Archive{Header: new(snapshotv1.ArchiveHeader), Bytes: uint64(size)}
	if err := section(uint64(len(archiveMagic)), recordHeader, a.Header); err != nil {
		return nil, err
	}
	index := new(snapshotv1.ArchiveIndex)
	if err := section(at, recordIndex, index); err != nil {
		return nil, err
	}
	if len(index.Entries) > maxArchiveImages {
		return nil, fmt.Errorf("%w: an index of %d images", ErrCorrupt, len(index.Entries))
	}
	for _, e := range index.Entries {
		m := new(snapshotv1.Manifest)
		if err := section(e.Offset, recordManifest, m); err != nil {
			return nil, err
		}
		if err := ValidateManifest(m); err != nil {
			return nil, err
		}
		if m.Group != e.Group || !bytes.Equal(m.Image, e.Image) {
			return nil, fmt.Errorf("%w: the index has image %s of group %d where image %s of group %d is", ErrCorrupt,
				FormatID(e.Image), e.Group, FormatID(m.Image), m.Group)
		}
		a.Manifests = append(a.Manifests, m)
	}
	a.Entries = index.Entries
	return a, nil
}

// VerifyArchive reads an archive to its end and checks all of it: every
// checksum, every file's digest, and that the index says what is there. Errors
// are ErrCorrupt, ctx's and those of r.
func VerifyArchive(ctx context.Context, r io.Reader) (*Archive, error) {
	a, err := readArchive(ctx, r, nil)
	if err != nil {
		return nil, fmt.Errorf("snapshot: verify the archive: %w", err)
	}
	return a, nil
}

// ExtractArchive verifies an archive and writes its images: dirFor names the
// directory for the files of each, which is made, or "" to leave it out. Files
// and their names are durable when it returns nil; after an error some may be
// there, and the caller removes them.
func ExtractArchive(ctx context.Context, r io.Reader, fsys vfs.FS, dirFor func(*snapshotv1.Manifest) (string, error)) (*Archive, error) {
	x := &extraction{fsys: fsys, dirFor: dirFor}
	a, err := readArchive(ctx, r, x)
	if err = errors.Join(err, x.end()); err != nil {
		return nil, fmt.Errorf("snapshot: extract the archive: %w", diskError(err))
	}
	return a, nil
}

// extraction writes the files of an archive; a nil one writes nothing.
type extraction struct {
	fsys   vfs.FS
	dirFor func(*snapshotv1.Manifest) (string, error)
	dir    string
	file   vfs.File
}

func (x *extraction) image(m *snapshotv1.Manifest) error {
	if x == nil {
		return nil
	}
	var err error
	if x.dir, err = x.dirFor(m); err != nil || x.dir == "" {
		return err
	}
	return durable.MkdirAll(x.fsys, x.dir)
}

func (x *extraction) begin(name string) (err error) {
	if x == nil || x.dir == "" {
		return nil
	}
	x.file, err = x.fsys.Create(x.fsys.PathJoin(x.dir, name), vfs.WriteCategoryUnspecified)
	return err
}

func (x *extraction) write(data []byte) error {
	if x == nil || x.file == nil {
		return nil
	}
	_, err := x.file.Write(data)
	return err
}

func (x *extraction) endFile() error {
	if x == nil || x.file == nil {
		return nil
	}
	err := x.file.Sync()
	return errors.Join(err, x.end())
}

func (x *extraction) endImage() error {
	if x == nil || x.dir == "" {
		return nil
	}
	return durable.SyncDir(x.fsys, x.dir)
}

// end closes a file that is open.
func (x *extraction) end() error {
	if x.file == nil {
		return nil
	}
	err := x.file.Close()
	x.file = nil
	return err
}

// archiveReader reads records.
type archiveReader struct {
	r      io.Reader
	table  *crc32.Table
	hash   *xxhash.Digest
	offset uint64
	record uint64 // offset of the last record
	buffer []byte
}

func newArchiveReader(r io.Reader) *archiveReader {
	return &archiveReader{r: r, table: crc32.MakeTable(crc32.Castagnoli), hash: xxhash.New()}
}

func (a *archiveReader) read(data []byte) error {
	if _, err := io.ReadFull(a.r, data); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%w: the archive ends in the middle", ErrCorrupt)
		}
		return err
	}
	a.hash.Write(data)
	a.offset += uint64(len(data))
	return nil
}

// next reads a record; its payload is valid until the next call.
func (a *archiveReader) next() (kind byte, payload []byte, err error) {
	var head [archiveHead]byte
	a.record = a.offset
	if err := a.read(head[:]); err != nil {
		return 0, nil, err
	}
	length := binary.LittleEndian.Uint32(head[1:])
	if length > maxArchiveRecord {
		return 0, nil, fmt.Errorf("%w: a record of %d bytes", ErrCorrupt, length)
	}
	// In steps, so that a damaged length takes no memory that the file does not
	// fill.
	payload = a.buffer[:0]
	for left := int(length); left > 0; {
		step := min(left, 1<<20)
		payload = append(payload, make([]byte, step)...)
		if err := a.read(payload[len(payload)-step:]); err != nil {
			return 0, nil, err
		}
		left -= step
	}
	a.buffer = payload
	if sum := archiveSum(a.table, head[:5], payload); sum != binary.LittleEndian.Uint32(head[5:]) {
		return 0, nil, fmt.Errorf("%w: the record has checksum %08x, and %08x is written", ErrCorrupt, sum, binary.LittleEndian.Uint32(head[5:]))
	}
	return head[0], payload, nil
}

func decodeRecord(payload []byte, m proto.Message) error {
	if err := proto.Unmarshal(payload, m); err != nil {
		return fmt.Errorf("%w: a record that does not decode: %v", ErrCorrupt, err)
	}
	return nil
}

// checkMagic looks at the first bytes of an archive.
func checkMagic(magic []byte) error {
	switch family := len(archiveMagic) - 1; {
	case string(magic) == archiveMagic:
		return nil
	case string(magic[:family]) == archiveMagic[:family] && magic[family] > archiveMagic[family] && magic[family] <= '9':
		return fmt.Errorf("%w: an archive of version %c, and this release reads version %c; use the release that wrote it", ErrCorrupt, magic[family], archiveMagic[family])
	}
	return fmt.Errorf("%w: it does not begin as an archive does", ErrCorrupt)
}

// readArchive reads an archive from front to back. Errors say where.
func readArchive(ctx context.Context, r io.Reader, x *extraction) (*Archive, error) {
	s := newArchiveReader(r)
	a, err := s.readAll(ctx, x)
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("at byte %d: %w", s.record, err)
	}
	return a, err
}

func (s *archiveReader) readAll(ctx context.Context, x *extraction) (*Archive, error) {
	magic := make([]byte, len(archiveMagic))
	if err := s.read(magic); err != nil {
		return nil, err
	}
	if err := checkMagic(magic); err != nil {
		return nil, err
	}
	a := &Archive{Header: new(snapshotv1.ArchiveHeader)}
	kind, payload, err := s.next()
	if err != nil || kind != recordHeader {
		return nil, errors.Join(fmt.Errorf("%w: it has no header", ErrCorrupt), err)
	}
	if err := decodeRecord(payload, a.Header); err != nil {
		return nil, err
	}
	for {
		at := s.offset
		kind, payload, err := s.next()
		switch {
		case err != nil:
			return nil, err
		case kind == recordIndex:
			return a, a.finish(s, payload, at)
		case kind != recordManifest || len(a.Manifests) >= maxArchiveImages:
			return nil, fmt.Errorf("%w: a record of kind %d where an image begins", ErrCorrupt, kind)
		}
		m := new(snapshotv1.Manifest)
		if err := decodeRecord(payload, m); err != nil {
			return nil, err
		}
		if err := ValidateManifest(m); err != nil {
			return nil, err
		}
		if err := readImage(ctx, s, m, x); err != nil {
			return nil, fmt.Errorf("group %d: %w", m.Group, err)
		}
		a.Manifests = append(a.Manifests, m)
		a.Entries = append(a.Entries, &snapshotv1.ArchiveEntry{Group: m.Group, Image: m.Image, Offset: at, Bytes: s.offset - at})
	}
}

// finish compares index and footer with what was read.
func (a *Archive) finish(s *archiveReader, payload []byte, at uint64) error {
	index := new(snapshotv1.ArchiveIndex)
	if err := decodeRecord(payload, index); err != nil {
		return err
	}
	if !proto.Equal(index, &snapshotv1.ArchiveIndex{Entries: a.Entries}) {
		return fmt.Errorf("%w: the index does not say what is there", ErrCorrupt)
	}
	sum := s.hash.Sum64()
	var footer [archiveFooter]byte
	if err := s.read(footer[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint64(footer[0:]) != at || binary.LittleEndian.Uint64(footer[8:]) != sum || string(footer[16:]) != archiveEndMagic {
		return fmt.Errorf("%w: the footer is not that of these bytes", ErrCorrupt)
	}
	if n, err := s.r.Read(make([]byte, 1)); n > 0 || err != nil && !errors.Is(err, io.EOF) {
		return errors.Join(fmt.Errorf("%w: something follows the footer", ErrCorrupt), err)
	}
	a.Bytes = s.offset
	return nil
}

// readImage reads the files of an image.
func readImage(ctx context.Context, s *archiveReader, m *snapshotv1.Manifest, x *extraction) error {
	if err := x.image(m); err != nil {
		return err
	}
	var u unpacker
	defer u.close()
	for no, info := range m.Files {
		if err := x.begin(info.Name); err != nil {
			return err
		}
		hash, offset := xxhash.New(), uint64(0)
		for done := false; !done; {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			kind, payload, err := s.next()
			if err != nil {
				return err
			}
			switch kind {
			case recordChunk:
				raw, err := archivedChunk(payload, &u, m, uint32(no), offset)
				if err != nil {
					return err
				}
				hash.Write(raw)
				offset += uint64(len(raw))
				if err := x.write(raw); err != nil {
					return err
				}
			case recordFileEnd:
				e := new(snapshotv1.FileEnd)
				if err := decodeRecord(payload, e); err != nil {
					return err
				}
				sum := hash.Sum64()
				if e.File != uint32(no) || e.Size != info.Size || offset != info.Size || e.Xxhash64 != sum || info.Verified && info.Digest != sum {
					return fmt.Errorf("%w: file %q has %d bytes with digest %016x, and should have %d with %016x", ErrCorrupt, info.Name, offset, sum, info.Size, e.Xxhash64)
				}
				done = true
			default:
				return fmt.Errorf("%w: a record of kind %d within file %q", ErrCorrupt, kind, info.Name)
			}
		}
		if err := x.endFile(); err != nil {
			return err
		}
	}
	return x.endImage()
}

// archivedChunk returns the bytes of a chunk that has to be the next of a file.
func archivedChunk(payload []byte, u *unpacker, m *snapshotv1.Manifest, no uint32, offset uint64) ([]byte, error) {
	c := new(snapshotv1.Chunk)
	if err := decodeRecord(payload, c); err != nil {
		return nil, err
	}
	if c.File != no || c.Offset != offset {
		return nil, fmt.Errorf("%w: bytes at %d of file %d, and %d of %d come next", ErrCorrupt, c.Offset, c.File, offset, no)
	}
	// The record had the checksum; this one is for what else can be wrong.
	sum := newChunkSum(nil, 0)
	c.Crc32C = sum.of(c)
	if err := sum.checkChunk(c, m, archiveChunk); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return u.unpack(c)
}
