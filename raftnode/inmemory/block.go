package inmemory

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/streamraft/streamraft/snapshot"
)

// An image is a directory with a record file (record.go) and data files, which
// hold the bytes that Save wrote, cut into blocks. All numbers are
// little-endian. A data file, version 1, is its header and blocks until it ends:
//
//	offset  bytes
//	0       8       "SRSTREAM"
//	8       4       version, 1
//	12      4       number of the file in the image, from 0
//	16      8       salt: random, the same in all files of an image and its record
//	24      8       number of the file's first block in the image, from 0
//	32      4       CRC-32C (Castagnoli) of bytes 0..31
//
// and a block:
//
//	0       4       bytes that it holds, 1 to 1 MiB
//	4       4       bytes that are stored, at most as many
//	8       4       codec: 0 as they are, 1 one zstd frame
//	12      4       CRC-32C of salt (8 bytes), number of the block in the image
//	                (8 bytes), bytes 0..11 of this header, and what is stored
//	16              what is stored
//
// Salt and number in the checksum make a block of another image or place damage.
// Where the stream ends, and how many blocks it has, is in the record.
const (
	dataVersion     = 1
	fileHeaderSize  = 36
	blockHeaderSize = 16

	// maxBlockBytes bounds what a block holds, and with it the memory that reading
	// takes. Larger ones do not compress better with a window of a fast level.
	maxBlockBytes = 1 << 20

	codecNone = 0
	codecZstd = 1
)

func dataMagic() [8]byte { return [8]byte([]byte("SRSTREAM")) }

// fileHeader is the header of a data file.
type fileHeader struct {
	number uint32
	salt   uint64
	first  uint64
}

func (h fileHeader) append(b []byte) []byte {
	magic, begin := dataMagic(), len(b)
	b = append(b, magic[:]...)
	b = binary.LittleEndian.AppendUint32(b, dataVersion)
	b = binary.LittleEndian.AppendUint32(b, h.number)
	b = binary.LittleEndian.AppendUint64(b, h.salt)
	b = binary.LittleEndian.AppendUint64(b, h.first)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[begin:], castagnoli()))
}

// decodeFileHeader reads the header of a data file. The error is ErrNewer or
// snapshot.ErrCorrupt.
func decodeFileHeader(b []byte) (fileHeader, error) {
	if len(b) < fileHeaderSize {
		return fileHeader{}, damagedf("it ends after %d bytes, within its header", len(b))
	}
	if [8]byte(b[:8]) != dataMagic() {
		return fileHeader{}, damagedf("it starts with %q", b[:8])
	}
	if stored, computed := binary.LittleEndian.Uint32(b[32:]), crc32.Checksum(b[:32], castagnoli()); stored != computed {
		return fileHeader{}, damagedf("its header has checksum %08x and %08x is stored", computed, stored)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != dataVersion {
		return fileHeader{}, fmt.Errorf("%w: its files are of version %d, this release reads %d", ErrNewer, v, dataVersion)
	}
	return fileHeader{
		number: binary.LittleEndian.Uint32(b[12:]), salt: binary.LittleEndian.Uint64(b[16:]), first: binary.LittleEndian.Uint64(b[24:]),
	}, nil
}

// blockHeader is the header of a block.
type blockHeader struct {
	raw, stored, codec, sum uint32
}

// decodeBlockHeader reads 16 bytes and refuses lengths that no writer makes,
// before anybody takes memory for them. The error is snapshot.ErrCorrupt.
func decodeBlockHeader(b []byte) (blockHeader, error) {
	h := blockHeader{
		raw: binary.LittleEndian.Uint32(b), stored: binary.LittleEndian.Uint32(b[4:]),
		codec: binary.LittleEndian.Uint32(b[8:]), sum: binary.LittleEndian.Uint32(b[12:]),
	}
	switch {
	case h.raw == 0 || h.raw > maxBlockBytes:
		return h, damagedf("a block holds %d bytes; 1 to %d are allowed", h.raw, maxBlockBytes)
	case h.stored == 0 || h.stored > h.raw:
		return h, damagedf("a block of %d bytes has %d stored", h.raw, h.stored)
	case h.codec > codecZstd, h.codec == codecNone && h.stored != h.raw:
		return h, damagedf("a block of %d bytes has %d stored by codec %d", h.raw, h.stored, h.codec)
	}
	return h, nil
}

// putBlockHeader writes the header of a block into b, of which the data follows
// it.
func putBlockHeader(b []byte, salt, number uint64, raw, codec uint32) {
	binary.LittleEndian.PutUint32(b, raw)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-blockHeaderSize))
	binary.LittleEndian.PutUint32(b[8:], codec)
	binary.LittleEndian.PutUint32(b[12:], blockSum(salt, number, b[:12], b[blockHeaderSize:]))
}

func blockSum(salt, number uint64, header, data []byte) uint32 {
	var place [16]byte
	binary.LittleEndian.PutUint64(place[:], salt)
	binary.LittleEndian.PutUint64(place[8:], number)
	table := castagnoli()
	return crc32.Update(crc32.Update(crc32.Checksum(place[:], table), table, header), table, data)
}

// castagnoli returns the table that package crc32 keeps.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// damagedf returns an error that matches snapshot.ErrCorrupt.
func damagedf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", snapshot.ErrCorrupt, fmt.Sprintf(format, args...))
}
