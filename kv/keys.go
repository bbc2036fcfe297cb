package kv

import "encoding/binary"

// Storage keys. The first bytes name the space; every space but j/, t/ and a is
// replicated: journaled, digested and equal on all replicas.
//
//	a                         applied record (applied.go)
//	b/...                     checkpoint state; written by later releases
//	j/<index 8B BE>           change journal (journal.go)
//	r/<key>                   registry records (record.go)
//	s/<key>                   records (record.go)
//	t/<term 8B BE>            first index of a term (applied.go)
//	x/<id 8B BE>              client session (session_row.go)
//	x/<id 8B BE><seq 8B BE>   recorded reply of a client session (session_row.go)
//
// Numbers in keys are big endian so that key order is numeric order.
const (
	spaceApplied  = "a"
	spaceBlobs    = "b/"
	spaceJournal  = "j/"
	spaceRegistry = "r/"
	spaceRecords  = "s/"
	spaceTerms    = "t/"
	spaceSessions = "x/"

	// prefixLen is the length of all space prefixes but the applied record's.
	prefixLen = 2
)

// replicatedSpaces returns the journaled and digested spaces in key order.
func replicatedSpaces() [4]string {
	return [4]string{spaceBlobs, spaceRegistry, spaceRecords, spaceSessions}
}

// spaceEnd returns the first key behind a space: '0' follows '/'.
func spaceEnd(space string) []byte { return []byte{space[0], '/' + 1} }

// spaceKey appends the storage key of a user key in a space.
func spaceKey(dst []byte, space string, key []byte) []byte {
	return append(append(dst, space...), key...)
}

// journalKey appends the key of the journal row of an index.
func journalKey(dst []byte, index uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, spaceJournal...), index)
}

// termKey appends the key of the first index of a term.
func termKey(dst []byte, term uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, spaceTerms...), term)
}

// sessionKey appends the key of a client session.
func sessionKey(dst []byte, id uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, spaceSessions...), id)
}

// replyKey appends the key of a recorded reply of a client session.
func replyKey(dst []byte, id, sequence uint64) []byte {
	return binary.BigEndian.AppendUint64(sessionKey(dst, id), sequence)
}

// sessionSpan returns the span that holds a client session and its replies.
func sessionSpan(id uint64) (start, end []byte) {
	start = sessionKey(nil, id)
	if id == ^uint64(0) {
		return start, spaceEnd(spaceSessions)
	}
	return start, sessionKey(nil, id+1)
}

// spaceSpan returns the storage span of the user span [start, end) of a space;
// an empty end means no upper bound. ok is false for a span that holds nothing.
func spaceSpan(space string, start, end []byte) (lower, upper []byte, ok bool) {
	lower = spaceKey(make([]byte, 0, prefixLen+len(start)), space, start)
	if len(end) == 0 {
		return lower, spaceEnd(space), true
	}
	upper = spaceKey(make([]byte, 0, prefixLen+len(end)), space, end)
	return lower, upper, string(lower) < string(upper)
}
