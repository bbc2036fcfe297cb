package kv

import (
	"encoding/binary"
	"math"

	"github.com/klauspost/compress/zstd"
)

// Journal row (key j/<index>), one per applied index, empty where the index
// changed nothing:
//
//	byte     version, 1
//	byte     codec of the rest: 0 as it is, 1 zstd
//	uvarint  with codec 1 only: length of the operations before compression
//	...      operations
//
// Operation, over raw storage keys, in the order they were applied:
//
//	byte     kind: 1 PUT, 2 DEL, 3 RANGE, 4 PUT with value, 5 BARRIER
//	uvarint  ordinal of the command in its log entry
//	bytes    PUT, DEL: key; RANGE: first key; BARRIER: empty
//	bytes    RANGE: first key behind; PUT with value: the user's value
//	byte     BARRIER: reason: 1 bulk load, 2 format migration
//
// where bytes is a uvarint length and that many bytes. No delta crosses a
// barrier: what happened there is not in the journal. Values are kept for s/
// only, in feed mode VALUES. See spec/snapshot.md section 6.
const (
	journalVersion = 1

	journalRaw  = 0
	journalZstd = 1

	opPut      = 1
	opDelete   = 2
	opRange    = 3
	opPutValue = 4
	opBarrier  = 5

	barrierBulkLoad  = 1
	barrierMigration = 2

	// journalCompressAbove is the size from which a row is compressed.
	journalCompressAbove = 1 << 10
	// maxJournalRow bounds what is allocated for a row: far above what a log
	// entry can cause.
	maxJournalRow = 256 << 20
)

// journalOp is one decoded operation; its slices alias the decoded row.
type journalOp struct {
	kind    byte
	ordinal uint16
	key     []byte
	end     []byte
	value   []byte
	reason  byte
}

// appendJournalOp appends one operation to the operations of a row.
func appendJournalOp(dst []byte, op journalOp) []byte {
	dst = binary.AppendUvarint(append(dst, op.kind), uint64(op.ordinal))
	dst = binary.AppendUvarint(dst, uint64(len(op.key)))
	dst = append(dst, op.key...)
	switch op.kind {
	case opRange:
		dst = binary.AppendUvarint(dst, uint64(len(op.end)))
		dst = append(dst, op.end...)
	case opPutValue:
		dst = binary.AppendUvarint(dst, uint64(len(op.value)))
		dst = append(dst, op.value...)
	case opBarrier:
		dst = append(dst, op.reason)
	}
	return dst
}

// appendJournalPut appends PUT of prefix+key, with value where withValue; it is
// appendJournalOp without building the key.
func appendJournalPut(dst []byte, ordinal uint16, prefix string, key, value []byte, withValue bool) []byte {
	kind := byte(opPut)
	if withValue {
		kind = opPutValue
	}
	dst = binary.AppendUvarint(append(dst, kind), uint64(ordinal))
	dst = binary.AppendUvarint(dst, uint64(len(prefix)+len(key)))
	dst = append(append(dst, prefix...), key...)
	if withValue {
		dst = binary.AppendUvarint(dst, uint64(len(value)))
		dst = append(dst, value...)
	}
	return dst
}

// appendJournalRow appends the row that holds ops, compressed where that pays.
func appendJournalRow(dst, ops []byte, encoder *zstd.Encoder) []byte {
	begin := len(dst)
	if len(ops) > journalCompressAbove {
		dst = append(dst, journalVersion, journalZstd)
		dst = binary.AppendUvarint(dst, uint64(len(ops)))
		dst = encoder.EncodeAll(ops, dst)
		if len(dst)-begin < 2+len(ops) {
			return dst
		}
		dst = dst[:begin]
	}
	return append(append(dst, journalVersion, journalRaw), ops...)
}

// decodeJournalRow returns the operations of a row.
func decodeJournalRow(row []byte, decoder *zstd.Decoder) ([]journalOp, error) {
	if len(row) < 2 || row[0] != journalVersion {
		return nil, corruptf("a journal row of %d bytes, or of a version this release does not know", len(row))
	}
	ops := row[2:]
	switch row[1] {
	case journalRaw:
	case journalZstd:
		size, n := binary.Uvarint(ops)
		if n <= 0 || size > maxJournalRow {
			return nil, corruptf("a journal row that says it holds %d bytes", size)
		}
		var header zstd.Header
		if err := header.Decode(ops[n:]); err != nil || !header.HasFCS || header.FrameContentSize != size {
			return nil, corruptf("a journal row whose zstd frame does not hold the %d bytes it says", size)
		}
		raw, err := decoder.DecodeAll(ops[n:], nil)
		if err != nil || uint64(len(raw)) != size {
			return nil, corruptf("a journal row of %d bytes: zstd: %v", size, err)
		}
		ops = raw
	default:
		return nil, corruptf("journal codec %d", row[1])
	}
	var list []journalOp
	for len(ops) > 0 {
		op, rest, err := decodeJournalOp(ops)
		if err != nil {
			return nil, err
		}
		list, ops = append(list, op), rest
	}
	return list, nil
}

// decodeJournalOp decodes the first operation of ops and returns the rest.
func decodeJournalOp(ops []byte) (op journalOp, rest []byte, err error) {
	op.kind = ops[0]
	if op.kind < opPut || op.kind > opBarrier {
		return op, nil, corruptf("journal operation of kind %d", op.kind)
	}
	ordinal, n := binary.Uvarint(ops[1:])
	if n <= 0 || ordinal > math.MaxUint16 {
		return op, nil, corruptf("journal operation with ordinal %d", ordinal)
	}
	op.ordinal, rest = uint16(ordinal), ops[1+n:]
	if op.key, rest, err = journalBytes(rest); err != nil {
		return op, nil, err
	}
	switch op.kind {
	case opRange:
		op.end, rest, err = journalBytes(rest)
	case opPutValue:
		op.value, rest, err = journalBytes(rest)
	case opBarrier:
		if len(rest) == 0 || rest[0] < barrierBulkLoad || rest[0] > barrierMigration || len(op.key) > 0 {
			return op, nil, corruptf("a journal barrier without a known reason")
		}
		op.reason, rest = rest[0], rest[1:]
	}
	return op, rest, err
}

// journalBytes reads a uvarint length and that many bytes.
func journalBytes(b []byte) (value, rest []byte, err error) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, nil, corruptf("a journal operation is cut short")
	}
	return b[n : n+int(size) : n+int(size)], b[n+int(size):], nil
}
