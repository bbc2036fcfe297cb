package kv

import "encoding/binary"

// Client session row (key x/<id>):
//
//	byte     version, 1
//	uvarint  time to live in milliseconds
//	varint   clock of the last command that named it, milliseconds
//	uvarint  revision of that command
//	uvarint  low-water mark: highest mark seen
//
// Recorded reply row (key x/<id><sequence>):
//
//	byte     version, 1
//	uvarint  revision of the command that was applied
//	...      its result as Apply returned it (result.go), to the end
//
// Everything a replica needs to answer, expire and evict alike is in these
// rows; the table in memory is only an index over them.
const sessionVersion = 1

// sessionRow is a decoded client session row.
type sessionRow struct {
	ttlMillis    uint64
	lastClock    int64
	lastRevision uint64
	mark         uint64
}

// appendSessionRow appends the value of a client session row.
func appendSessionRow(dst []byte, r sessionRow) []byte {
	dst = append(dst, sessionVersion)
	dst = binary.AppendUvarint(dst, r.ttlMillis)
	dst = binary.AppendVarint(dst, r.lastClock)
	dst = binary.AppendUvarint(dst, r.lastRevision)
	return binary.AppendUvarint(dst, r.mark)
}

// decodeSessionRow decodes a client session row.
func decodeSessionRow(b []byte) (sessionRow, error) {
	var r sessionRow
	if len(b) == 0 || b[0] != sessionVersion {
		return r, corruptf("a client session row of %d bytes", len(b))
	}
	b = b[1:]
	var n [4]int
	r.ttlMillis, n[0] = binary.Uvarint(b)
	if n[0] > 0 {
		b = b[n[0]:]
		r.lastClock, n[1] = binary.Varint(b)
	}
	if n[1] > 0 {
		b = b[n[1]:]
		r.lastRevision, n[2] = binary.Uvarint(b)
	}
	if n[2] > 0 {
		b = b[n[2]:]
		r.mark, n[3] = binary.Uvarint(b)
	}
	if n[3] <= 0 || n[3] != len(b) {
		return sessionRow{}, corruptf("a client session row with a wrong length")
	}
	return r, nil
}

// appendReplyRow appends the value of a recorded reply row.
func appendReplyRow(dst []byte, revision uint64, result []byte) []byte {
	dst = binary.AppendUvarint(append(dst, sessionVersion), revision)
	return append(dst, result...)
}

// decodeReplyRow decodes a recorded reply row; result aliases b and is nil for
// a plain success.
func decodeReplyRow(b []byte) (revision uint64, result []byte, err error) {
	if len(b) < 2 || b[0] != sessionVersion {
		return 0, nil, corruptf("a recorded reply row of %d bytes", len(b))
	}
	revision, n := binary.Uvarint(b[1:])
	if n <= 0 {
		return 0, nil, corruptf("a recorded reply row without a revision")
	}
	if rest := b[1+n:]; len(rest) > 0 {
		result = rest
	}
	return revision, result, nil
}
