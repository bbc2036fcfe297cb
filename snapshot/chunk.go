package snapshot

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/cespare/xxhash/v2"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// chunkSum computes Chunk.crc32c: CRC-32C (Castagnoli) over, in this order,
//
//	transfer id (16 bytes), attempt (8), seq (8), file (4), offset (8),
//	codec (4), raw_len (4), data
//
// with all numbers little endian. Transfer and attempt are in no chunk; having
// them in the sum makes a chunk of another attempt damage.
type chunkSum struct {
	table  *crc32.Table
	prefix uint32 // of transfer and attempt
}

func newChunkSum(transfer []byte, attempt uint64) chunkSum {
	table := crc32.MakeTable(crc32.Castagnoli)
	prefix := crc32.Checksum(transfer, table)
	return chunkSum{table, crc32.Update(prefix, table, binary.LittleEndian.AppendUint64(nil, attempt))}
}

func (s chunkSum) of(c *snapshotv1.Chunk) uint32 {
	var head [28]byte
	binary.LittleEndian.PutUint64(head[0:], c.Seq)
	binary.LittleEndian.PutUint32(head[8:], c.File)
	binary.LittleEndian.PutUint64(head[12:], c.Offset)
	binary.LittleEndian.PutUint32(head[20:], uint32(c.Codec))
	binary.LittleEndian.PutUint32(head[24:], c.RawLen)
	return crc32.Update(crc32.Update(s.prefix, s.table, head[:]), s.table, c.Data)
}

// checkChunk tells whether a chunk is one that this attempt's source may send at
// all: undamaged, and within the image. It needs no state but the manifest. The
// error is ErrCorrupt for a wrong checksum and ErrProtocol for the rest.
func (s chunkSum) checkChunk(c *snapshotv1.Chunk, m *snapshotv1.Manifest, chunkMax uint32) error {
	if c == nil {
		return fmt.Errorf("%w: an empty chunk", ErrProtocol)
	}
	if sum := s.of(c); sum != c.Crc32C {
		return fmt.Errorf("%w: chunk %d of file %d at %d: checksum %08x, and %08x was sent with it", ErrCorrupt, c.Seq, c.File, c.Offset, sum, c.Crc32C)
	}
	if uint64(c.File) >= uint64(len(m.Files)) {
		return fmt.Errorf("%w: a chunk of file %d, and the image has %d", ErrProtocol, c.File, len(m.Files))
	}
	if c.RawLen == 0 || c.RawLen > chunkMax || len(c.Data) == 0 || len(c.Data) > int(chunkMax) {
		return fmt.Errorf("%w: chunk %d has %d bytes for %d; 1 to %d are allowed", ErrProtocol, c.Seq, len(c.Data), c.RawLen, chunkMax)
	}
	size := m.Files[c.File].Size
	if c.Offset > size || uint64(c.RawLen) > size-c.Offset {
		return fmt.Errorf("%w: chunk %d is bytes %d to %d of file %q, which has %d", ErrProtocol, c.Seq, c.Offset, c.Offset+uint64(c.RawLen), m.Files[c.File].Name, size)
	}
	switch c.Codec {
	case snapshotv1.Codec_CODEC_NONE:
		if uint64(len(c.Data)) != uint64(c.RawLen) {
			return fmt.Errorf("%w: chunk %d has %d bytes and says %d", ErrProtocol, c.Seq, len(c.Data), c.RawLen)
		}
	case snapshotv1.Codec_CODEC_ZSTD:
	default:
		return fmt.Errorf("%w: chunk %d has codec %d, which this release does not know", ErrProtocol, c.Seq, c.Codec)
	}
	return nil
}

// sequence is the order of chunks in one attempt.
type sequence struct{ last uint64 }

// next tells whether a chunk is the next one, or was there before: then it is
// acknowledged again and not written. A gap is ErrProtocol.
func (s *sequence) next(seq uint64) (fresh bool, err error) {
	switch {
	case seq == 0 || s.last == math.MaxUint64:
		return false, fmt.Errorf("%w: chunks count from 1", ErrProtocol)
	case seq <= s.last:
		return false, nil
	case seq > s.last+1:
		return false, fmt.Errorf("%w: chunk %d after %d; those between are lost", ErrProtocol, seq, s.last)
	}
	s.last = seq
	return true, nil
}

// endDigest sums up the FileEnds of an attempt; see End.digest.
type endDigest struct {
	files uint32
	bytes uint64
	hash  *xxhash.Digest
}

func newEndDigest() *endDigest { return &endDigest{hash: xxhash.New()} }

func (d *endDigest) add(e *snapshotv1.FileEnd) {
	var row [24]byte
	binary.LittleEndian.PutUint64(row[0:], uint64(e.File))
	binary.LittleEndian.PutUint64(row[8:], e.Size)
	binary.LittleEndian.PutUint64(row[16:], e.Xxhash64)
	d.hash.Write(row[:])
	d.files++
	d.bytes += e.Size
}

func (d *endDigest) end() *snapshotv1.End {
	return &snapshotv1.End{Files: d.files, Bytes: d.bytes, Digest: d.hash.Sum64()}
}

// check compares an End with the FileEnds that came before it.
func (d *endDigest) check(e *snapshotv1.End) error {
	if want := d.end(); e.GetFiles() != want.Files || e.GetBytes() != want.Bytes || e.GetDigest() != want.Digest {
		return fmt.Errorf("%w: the end says %d files, %d bytes, digest %016x; %d, %d, %016x came",
			ErrCorrupt, e.GetFiles(), e.GetBytes(), e.GetDigest(), want.Files, want.Bytes, want.Digest)
	}
	return nil
}
