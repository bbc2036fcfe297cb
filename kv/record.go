package kv

import "encoding/binary"

// Record value (spaces s/ and r/):
//
//	byte   version, 1
//	8B BE  mod_revision: revision of the write that set the value
//	...    value, to the end
//
// The revision has a fixed width so that a put is encoded in place without
// measuring first.
const (
	recordVersion = 1
	recordHeader  = 1 + 8
)

// putRecordHeader writes the header of a record value to dst, which has at
// least recordHeader bytes.
func putRecordHeader(dst []byte, revision uint64) {
	dst[0] = recordVersion
	binary.BigEndian.PutUint64(dst[1:recordHeader], revision)
}

// appendRecord appends a record value.
func appendRecord(dst []byte, revision uint64, value []byte) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, recordVersion), revision)
	return append(dst, value...)
}

// decodeRecord returns the parts of a record value; value aliases b.
func decodeRecord(b []byte) (revision uint64, value []byte, err error) {
	if len(b) < recordHeader {
		return 0, nil, corruptf("a record value of %d bytes", len(b))
	}
	if b[0] != recordVersion {
		return 0, nil, corruptf("record version %d, this release knows %d", b[0], recordVersion)
	}
	return binary.BigEndian.Uint64(b[1:recordHeader]), b[recordHeader:], nil
}
