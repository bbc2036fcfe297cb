package snapshot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// An archive holds images of all groups in one file, version 1, all numbers
// little endian:
//
//	8 bytes   magic SRARCHV1
//	records:
//	  1 byte    kind
//	  4 bytes   length of the payload
//	  4 bytes   CRC-32C of kind, length and payload
//	  payload   a message of streamraft.snapshot.v1
//	24 bytes  offset of the index record (8), xxhash64 of all bytes before this
//	          footer (8), magic SRARCEND
//
// The records are, in this order:
//
//	1 header    ArchiveHeader
//	for each image:
//	2 manifest  Manifest
//	3 chunk     Chunk: file, offset, codec, raw_len, data; files in order, without
//	            gaps; the record has the checksum
//	4 file end  FileEnd, after the chunks of each file
//	5 index     ArchiveIndex
//
// It is written and read from front to back, so it can go through a pipe; with
// the index its contents are told without reading it.
const (
	archiveMagic    = "SRARCHV1"
	archiveEndMagic = "SRARCEND"
	archiveFooter   = 24
	archiveHead     = 9

	recordHeader   = 1
	recordManifest = 2
	recordChunk    = 3
	recordFileEnd  = 4
	recordIndex    = 5

	// maxArchiveRecord holds the largest manifest, chunk or index.
	maxArchiveRecord = MaxWireBytes
	// maxArchiveImages keeps the index within a record.
	maxArchiveImages = 1 << 16

	archiveChunk = 1 << 20
)

// ArchiveWriter writes an archive. One goroutine uses it.
type ArchiveWriter struct {
	w      io.Writer
	table  *crc32.Table
	hash   *xxhash.Digest
	offset uint64
	packer *packer
	index  snapshotv1.ArchiveIndex
	groups map[uint64]bool
	err    error // the first failure; what follows would be no archive
}

// NewArchiveWriter begins an archive. Close it to end it; it does not close w.
func NewArchiveWriter(w io.Writer, header *snapshotv1.ArchiveHeader) (*ArchiveWriter, error) {
	packer, err := newPacker()
	if err != nil {
		return nil, err
	}
	a := &ArchiveWriter{w: w, table: crc32.MakeTable(crc32.Castagnoli), hash: xxhash.New(), packer: packer, groups: make(map[uint64]bool)}
	a.write([]byte(archiveMagic))
	a.record(recordHeader, header)
	return a, a.err
}

// Add writes a full image of a group, one for each group.
func (a *ArchiveWriter) Add(ctx context.Context, image OpenedImage) error {
	m := image.Manifest()
	if a.err == nil && (!isFull(m) || a.groups[m.Group] || len(a.index.Entries) >= maxArchiveImages) {
		return fmt.Errorf("%w: an archive holds one full image of each group, and this is %s of group %d", ErrUnfit, kindName(m.Kind), m.Group)
	}
	begin := a.offset
	if a.err == nil {
		a.err = ValidateManifest(m)
	}
	a.record(recordManifest, m)
	for no := range m.Files {
		if a.err == nil {
			a.err = a.file(ctx, image, uint32(no))
		}
	}
	if a.err != nil {
		return fmt.Errorf("snapshot: archive group %d: %w", m.Group, a.err)
	}
	a.groups[m.Group] = true
	a.index.Entries = append(a.index.Entries, &snapshotv1.ArchiveEntry{Group: m.Group, Image: m.Image, Offset: begin, Bytes: a.offset - begin})
	return nil
}

func (a *ArchiveWriter) file(ctx context.Context, image OpenedImage, no uint32) (err error) {
	info := image.Manifest().Files[no]
	file, err := image.OpenFile(info.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	a.packer.begin()
	hash := xxhash.New()
	buffer := make([]byte, min(archiveChunk, info.Size))
	for offset := uint64(0); offset < info.Size; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		raw := buffer[:min(uint64(len(buffer)), info.Size-offset)]
		if n, err := file.ReadAt(raw, int64(offset)); n < len(raw) {
			return fmt.Errorf("%w: read file %q at %d: %w", ErrCorrupt, info.Name, offset, err)
		}
		hash.Write(raw)
		c := &snapshotv1.Chunk{File: no, Offset: offset}
		a.packer.pack(c, raw)
		a.record(recordChunk, c)
		if a.err != nil {
			return a.err
		}
		offset += uint64(len(raw))
	}
	sum := hash.Sum64()
	if info.Verified && sum != info.Digest {
		return fmt.Errorf("%w: file %q has digest %016x, and had %016x when it was checked", ErrCorrupt, info.Name, sum, info.Digest)
	}
	a.record(recordFileEnd, &snapshotv1.FileEnd{File: no, Size: info.Size, Xxhash64: sum})
	return a.err
}

// Close writes the index and the footer. Without it there is no archive.
func (a *ArchiveWriter) Close() error {
	at := a.offset
	a.record(recordIndex, &a.index)
	footer := binary.LittleEndian.AppendUint64(nil, at)
	footer = binary.LittleEndian.AppendUint64(footer, a.hash.Sum64())
	a.write(append(footer, archiveEndMagic...))
	if a.err != nil {
		return fmt.Errorf("snapshot: end the archive: %w", a.err)
	}
	a.err = ErrClosed
	return nil
}

func (a *ArchiveWriter) record(kind byte, m proto.Message) {
	if a.err != nil {
		return
	}
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err == nil && len(payload) > maxArchiveRecord {
		err = fmt.Errorf("%w: a record of %d bytes, at most %d", ErrCorrupt, len(payload), maxArchiveRecord)
	}
	if err != nil {
		a.err = err
		return
	}
	var head [archiveHead]byte
	head[0] = kind
	binary.LittleEndian.PutUint32(head[1:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(head[5:], archiveSum(a.table, head[:5], payload))
	a.write(head[:])
	a.write(payload)
}

func archiveSum(table *crc32.Table, head, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, table), table, payload)
}

func (a *ArchiveWriter) write(data []byte) {
	if a.err != nil {
		return
	}
	if _, err := a.w.Write(data); err != nil {
		a.err = diskError(err)
		return
	}
	a.hash.Write(data)
	a.offset += uint64(len(data))
}
