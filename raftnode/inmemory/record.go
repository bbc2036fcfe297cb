package inmemory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/durable"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

const (
	// recordName is the file of an image that says what it is; written last.
	recordName = "image"
	// maxDataFiles and the record are snapshot.MaxFiles.
	maxDataFiles = snapshot.MaxFiles - 1

	recordFixed = 8 + 8 + 8 + 4 + 8 + 8 + 8 + 4 + 4
	recordFile  = 16
	// stateFormat counts the format of images on the wire: files and record.
	stateFormat = 1
)

// recordFormat is that of the file "image": a record of package durable (magic,
// version, length, CRC-32C). Its payload, version 1, little-endian:
//
//	8  index, 8 term, 8 clock   of the applied record
//	4  schema of the stream
//	8  salt of the data files
//	8  bytes that Save wrote
//	8  blocks that they are in
//	4  length of the membership, at most 1 MiB; the membership
//	4  number of data files, at most 65,535; of each:
//	     8 size, 8 xxhash64 of the content
func recordFormat() durable.Format {
	return durable.Format{
		Magic: [8]byte([]byte("SRSTRIMG")), Version: 1,
		Limit: recordFixed + snapshot.MaxMembershipBytes + maxDataFiles*recordFile,
	}
}

// record is what an image is.
type record struct {
	applied raftnode.Applied
	schema  uint32
	salt    uint64
	raw     uint64
	blocks  uint64
	files   []dataFile
}

// dataFile is one data file of an image.
type dataFile struct {
	size   uint64
	digest uint64
}

func dataName(number int) string { return fmt.Sprintf("data-%05d", number) }

func (r *record) encode() []byte {
	b := make([]byte, 0, recordFixed+len(r.applied.Membership)+len(r.files)*recordFile)
	b = binary.LittleEndian.AppendUint64(b, r.applied.Index)
	b = binary.LittleEndian.AppendUint64(b, r.applied.Term)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.applied.Clock))
	b = binary.LittleEndian.AppendUint32(b, r.schema)
	b = binary.LittleEndian.AppendUint64(b, r.salt)
	b = binary.LittleEndian.AppendUint64(b, r.raw)
	b = binary.LittleEndian.AppendUint64(b, r.blocks)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.applied.Membership)))
	b = append(b, r.applied.Membership...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.files)))
	for _, f := range r.files {
		b = binary.LittleEndian.AppendUint64(b, f.size)
		b = binary.LittleEndian.AppendUint64(b, f.digest)
	}
	return b
}

// decodeRecord reads the payload of a record. The error is snapshot.ErrCorrupt.
func decodeRecord(b []byte) (*record, error) {
	if len(b) < recordFixed {
		return nil, damagedf("a record of %d bytes; at least %d are needed", len(b), recordFixed)
	}
	r := &record{
		applied: raftnode.Applied{
			Index: binary.LittleEndian.Uint64(b), Term: binary.LittleEndian.Uint64(b[8:]), Clock: int64(binary.LittleEndian.Uint64(b[16:])),
		},
		schema: binary.LittleEndian.Uint32(b[24:]), salt: binary.LittleEndian.Uint64(b[28:]),
		raw: binary.LittleEndian.Uint64(b[36:]), blocks: binary.LittleEndian.Uint64(b[44:]),
	}
	length := uint64(binary.LittleEndian.Uint32(b[52:]))
	if b = b[56:]; length > snapshot.MaxMembershipBytes || length+4 > uint64(len(b)) {
		return nil, damagedf("a record with a membership of %d bytes, of which %d are there", length, len(b))
	}
	if length > 0 {
		r.applied.Membership = append([]byte(nil), b[:length]...)
	}
	count := uint64(binary.LittleEndian.Uint32(b[length:]))
	if b = b[length+4:]; count > maxDataFiles || count*recordFile != uint64(len(b)) {
		return nil, damagedf("a record of %d files, with %d bytes about them", count, len(b))
	}
	switch {
	case r.applied.Index == 0 || r.applied.Term == 0 || r.schema == 0:
		return nil, damagedf("a record at index %d, term %d, schema %d; all begin at 1", r.applied.Index, r.applied.Term, r.schema)
	case (r.raw == 0) != (r.blocks == 0) || (r.blocks == 0) != (count == 0) || r.blocks < count ||
		r.raw > math.MaxInt64 || r.raw < r.blocks || (r.raw+maxBlockBytes-1)/maxBlockBytes > r.blocks:
		return nil, damagedf("a record of %d bytes in %d blocks and %d files", r.raw, r.blocks, count)
	}
	r.files = make([]dataFile, count)
	for i := range r.files {
		r.files[i] = dataFile{binary.LittleEndian.Uint64(b[i*recordFile:]), binary.LittleEndian.Uint64(b[i*recordFile+8:])}
		if r.files[i].size <= fileHeaderSize || r.files[i].size > snapshot.MaxFileBytes {
			return nil, damagedf("a record with a file of %d bytes", r.files[i].size)
		}
	}
	return r, nil
}

// readRecord reads the record of the image in dir. Errors are ErrNewer,
// snapshot.ErrCorrupt (also where there is none) or the file system's.
func readRecord(fsys vfs.FS, dir string, schema uint32) (*record, error) {
	payload, err := readDurable(fsys, fsys.PathJoin(dir, recordName), recordFormat())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damagedf("%v", err)
	}
	if err != nil {
		return nil, err
	}
	r, err := decodeRecord(payload)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", fsys.PathJoin(dir, recordName), err)
	}
	if r.schema > schema {
		return nil, fmt.Errorf("%w: %s has schema %d, option Schema is %d", ErrNewer, dir, r.schema, schema)
	}
	return r, nil
}

// readDurable reads a record file of package durable in the words of this one.
func readDurable(fsys vfs.FS, path string, format durable.Format) ([]byte, error) {
	payload, _, err := durable.ReadRecord(fsys, path, format)
	var bad *durable.RecordError
	if errors.As(err, &bad) {
		if bad.Newer {
			return nil, fmt.Errorf("%w: %w", ErrNewer, err)
		}
		return nil, fmt.Errorf("%w: %w", snapshot.ErrCorrupt, err)
	}
	return payload, err
}
