package durable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A record file is, all numbers little-endian:
//
//	offset  bytes
//	0       8       magic number, the format's Magic
//	8       4       version of the payload, 1..
//	12      4       length of the payload in bytes
//	16      4       CRC-32C (Castagnoli) of bytes 0..15 and of the payload
//	20      length  payload
//
// Nothing follows. The checksum covers the header too, so that a flipped bit in
// the version or the length is damage and not another version.
const (
	magicSize      = 8
	versionOffset  = 8
	lengthOffset   = 12
	checksumOffset = 16
	headerSize     = 20
)

// hintDamaged is the way out of damage that cannot be repaired in place. What
// the file meant is known only to its owner, who may add to it.
const hintDamaged = "restore the file from a copy of this directory, or replace the node; do not delete the file alone"

// Format is what a kind of record file has in common.
type Format struct {
	// Magic tells this kind of file from every other; 8 bytes, printable so
	// that a hex dump says what it is.
	Magic [magicSize]byte
	// Version is the one written, and the newest that is understood; from 1.
	Version uint32
	// Limit is the largest payload in bytes, both ways. It bounds the memory
	// that reading a damaged or foreign file can take.
	Limit int
}

// RecordError tells that a record file exists but cannot be used. Nothing was
// changed.
type RecordError struct {
	Path   string // of the file
	Offset int64  // of the first byte that is wrong, as far as that is known
	Reason string // what is wrong
	Hint   string // what to do about it
	Newer  bool   // the file is sound, but of a version this program does not know
}

// Error returns all of it in one line.
func (e *RecordError) Error() string {
	return fmt.Sprintf("%s: offset %d: %s; %s", e.Path, e.Offset, e.Reason, e.Hint)
}

// WriteRecord replaces the record in path, or creates it, with the format's
// current version. Durability is that of WriteFile. A payload above the
// format's limit is refused with ErrTooLarge and nothing is written.
func WriteRecord(fsys vfs.FS, path string, format Format, payload []byte) error {
	if len(payload) > format.Limit {
		return fmt.Errorf("durable: writing %s: %w: %d bytes where at most %d are allowed",
			path, ErrTooLarge, len(payload), format.Limit)
	}
	return WriteFile(fsys, path, encodeRecord(format, payload))
}

// ReadRecord returns the payload of the record in path and the version it was
// written with, 1 to format.Version. A file that is not a whole record of this
// format, or one of a newer version, is a *RecordError; an absent one is
// fs.ErrNotExist; other errors are the file system's.
func ReadRecord(fsys vfs.FS, path string, format Format) (payload []byte, version uint32, err error) {
	data, err := ReadFile(fsys, path, headerSize+format.Limit)
	if errors.Is(err, ErrTooLarge) {
		return nil, 0, &RecordError{
			Path: path, Offset: int64(headerSize + format.Limit),
			Reason: fmt.Sprintf("more than the %d bytes a %q file can have", headerSize+format.Limit, format.Magic),
			Hint:   hintDamaged,
		}
	}
	if err != nil {
		return nil, 0, err
	}
	payload, version, bad := decodeRecord(format, data)
	if bad != nil {
		bad.Path = path
		return nil, 0, bad
	}
	return payload, version, nil
}

func encodeRecord(format Format, payload []byte) []byte {
	data := make([]byte, headerSize, headerSize+len(payload))
	copy(data, format.Magic[:])
	binary.LittleEndian.PutUint32(data[versionOffset:], format.Version)
	binary.LittleEndian.PutUint32(data[lengthOffset:], uint32(len(payload)))
	data = append(data, payload...)
	binary.LittleEndian.PutUint32(data[checksumOffset:], recordChecksum(data))
	return data
}

// decodeRecord returns the payload, which aliases data, or what is wrong. The
// checksum is looked at before the version: only a whole record may claim to be
// of a newer one.
func decodeRecord(format Format, data []byte) (payload []byte, version uint32, bad *RecordError) {
	if len(data) < headerSize {
		return nil, 0, &RecordError{
			Offset: int64(len(data)),
			Reason: fmt.Sprintf("ends after %d bytes, within the header of %d", len(data), headerSize),
			Hint:   hintDamaged,
		}
	}
	if [magicSize]byte(data[:magicSize]) != format.Magic {
		return nil, 0, &RecordError{
			Reason: fmt.Sprintf("starts with %q and not with %q", data[:magicSize], format.Magic),
			Hint:   "check that this is the right directory; " + hintDamaged,
		}
	}
	length := binary.LittleEndian.Uint32(data[lengthOffset:])
	if have := len(data) - headerSize; uint64(length) != uint64(have) {
		return nil, 0, &RecordError{
			Offset: lengthOffset,
			Reason: fmt.Sprintf("the header says %d bytes follow, but %d do", length, have),
			Hint:   hintDamaged,
		}
	}
	stored := binary.LittleEndian.Uint32(data[checksumOffset:])
	if computed := recordChecksum(data); stored != computed {
		return nil, 0, &RecordError{
			Offset: checksumOffset,
			Reason: fmt.Sprintf("the checksum is %08x and the content has %08x", stored, computed),
			Hint:   hintDamaged,
		}
	}
	version = binary.LittleEndian.Uint32(data[versionOffset:])
	if version == 0 || version > format.Version {
		return nil, 0, &RecordError{
			Offset: versionOffset,
			Reason: fmt.Sprintf("version %d, and this program knows 1 to %d", version, format.Version),
			Hint:   "use the release that wrote the file, or a newer one",
			Newer:  version > format.Version,
		}
	}
	return data[headerSize:], version, nil
}

// recordChecksum leaves out only the checksum itself. data is at least a header.
func recordChecksum(data []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(data[:checksumOffset], table), table, data[headerSize:])
}
