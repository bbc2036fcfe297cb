package kv

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// Applied record (key a), written in the batch of the data it speaks of:
//
//	byte     version, 1
//	uvarint  schema version of the whole state, 1
//	8B BE    index
//	8B BE    term
//	8B BE    clock, milliseconds since the Unix epoch, two's complement
//	byte     feed mode: FeedMode of the journal from here on
//	8B BE    journal_low: journal rows above it are all there
//	uvarint  length of the membership, then its bytes
//	4B BE    CRC-32C of all bytes before
//
// The checksum is there because an image is only legal with an intact applied
// record, and that check must not depend on where the bytes travelled.
const (
	appliedVersion = 1
	schemaVersion  = 1
	// maxMembership bounds what is allocated for a stored membership.
	maxMembership = 16 << 20
	appliedFixed  = 8 + 8 + 8 + 1 + 8
)

// appliedRecord is the decoded applied record.
type appliedRecord struct {
	raftnode.Applied
	schema     uint64
	feedMode   kvv1.FeedMode
	journalLow uint64
}

// newAppliedRecord returns the record of a state that applied nothing.
func newAppliedRecord() appliedRecord {
	return appliedRecord{schema: schemaVersion, feedMode: kvv1.FeedMode_FEED_MODE_KEYS}
}

// appendApplied appends the encoded applied record.
func appendApplied(dst []byte, r *appliedRecord) []byte {
	begin := len(dst)
	dst = append(dst, appliedVersion)
	dst = binary.AppendUvarint(dst, r.schema)
	dst = binary.BigEndian.AppendUint64(dst, r.Index)
	dst = binary.BigEndian.AppendUint64(dst, r.Term)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.Clock))
	dst = append(dst, byte(r.feedMode))
	dst = binary.BigEndian.AppendUint64(dst, r.journalLow)
	dst = binary.AppendUvarint(dst, uint64(len(r.Membership)))
	dst = append(dst, r.Membership...)
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[begin:], castagnoli()))
}

// decodeApplied decodes an applied record; it keeps nothing of b.
func decodeApplied(b []byte) (appliedRecord, error) {
	var r appliedRecord
	if len(b) < 1+1+appliedFixed+1+4 {
		return r, corruptf("an applied record of %d bytes", len(b))
	}
	if b[0] > appliedVersion {
		return r, fmt.Errorf("%w: applied record version %d, this release knows %d", ErrSchemaTooNew, b[0], appliedVersion)
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if got := crc32.Checksum(body, castagnoli()); got != sum || b[0] != appliedVersion {
		return r, corruptf("applied record version %d with checksum %08x, computed %08x", b[0], sum, got)
	}
	body = body[1:]
	schema, n := binary.Uvarint(body)
	if n <= 0 || len(body)-n < appliedFixed {
		return r, corruptf("the applied record is cut short")
	}
	if schema > schemaVersion {
		return r, fmt.Errorf("%w: schema version %d, this release knows %d", ErrSchemaTooNew, schema, schemaVersion)
	}
	body = body[n:]
	r.schema = schema
	r.Index = binary.BigEndian.Uint64(body)
	r.Term = binary.BigEndian.Uint64(body[8:])
	r.Clock = int64(binary.BigEndian.Uint64(body[16:]))
	r.feedMode = kvv1.FeedMode(body[24])
	r.journalLow = binary.BigEndian.Uint64(body[25:])
	body = body[appliedFixed:]
	size, n := binary.Uvarint(body)
	if n <= 0 || size > maxMembership || size != uint64(len(body)-n) {
		return r, corruptf("the applied record's membership has a wrong length")
	}
	if size > 0 {
		r.Membership = append([]byte(nil), body[n:]...)
	}
	return r, nil
}

// Term row (key t/<term>): byte version, 1; 8B BE first index of the term.
const termVersion = 1

// appendTermRow appends the value of a term row.
func appendTermRow(dst []byte, first uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, termVersion), first)
}

// decodeTermRow returns the first index of a term.
func decodeTermRow(b []byte) (uint64, error) {
	if len(b) != 9 || b[0] != termVersion {
		return 0, corruptf("a term row of %d bytes", len(b))
	}
	return binary.BigEndian.Uint64(b[1:]), nil
}

// castagnoli returns the CRC-32C table; the standard library makes it once.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }
