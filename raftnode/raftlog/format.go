package raftlog

import (
	"encoding/binary"
	"hash/crc32"

	"go.etcd.io/raft/v3/raftpb"
)

// The byte layout is specified in DESIGN.md, "Format". All integers are little
// endian and of fixed width: a record is written and read with a few stores and
// loads, and its size is known before it is encoded.
const (
	formatVersion = 1
	headerMagic   = 0x314c5253 // "SRL1"

	headerSize       = 56
	batchAlign       = 8
	recordHeaderSize = 33

	flagHead = 1 // the batch is the head of a segment
)

// kind says what a record holds.
type kind uint8

const (
	kindHead      kind = 1 // first record of a head: first segment still needed
	kindGroup     kind = 2 // in a head: everything of a group but its entries
	kindMarker    kind = 3 // the marker moves
	kindEntry     kind = 4 // an entry; deletes the group's entries from its index on
	kindMoved     kind = 5 // a live entry, written again; deletes nothing
	kindHardState kind = 6
)

const (
	headPayload      = 8
	groupPayload     = 56
	markerPayload    = 17
	entryPayload     = 17 // and the data
	hardStatePayload = 24

	markerReset = 1 // flag of a marker: all entries of the group are dropped
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func align(n int) int { return (n + batchAlign - 1) &^ (batchAlign - 1) }

// header is the fixed part in front of a batch's records.
type header struct {
	flags         uint16
	records       uint32
	salt          uint64
	segment       uint64
	batch         uint64
	syncedThrough uint64
	bodyBytes     uint64
}

// isHead tells that the batch is the head of its segment.
func (h *header) isHead() bool { return h.flags&flagHead != 0 }

// size is the room the batch takes, with padding.
func (h *header) size() int64 { return int64(align(headerSize + int(h.bodyBytes))) }

// put encodes h into the first headerSize bytes of b.
func (h *header) put(b []byte) {
	_ = b[headerSize-1]
	binary.LittleEndian.PutUint32(b[0:], headerMagic)
	binary.LittleEndian.PutUint16(b[8:], formatVersion)
	binary.LittleEndian.PutUint16(b[10:], h.flags)
	binary.LittleEndian.PutUint32(b[12:], h.records)
	binary.LittleEndian.PutUint64(b[16:], h.salt)
	binary.LittleEndian.PutUint64(b[24:], h.segment)
	binary.LittleEndian.PutUint64(b[32:], h.batch)
	binary.LittleEndian.PutUint64(b[40:], h.syncedThrough)
	binary.LittleEndian.PutUint64(b[48:], h.bodyBytes)
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:headerSize], castagnoli))
}

const (
	reasonVersion = "the batch has a format version this program does not know"
	reasonFlags   = "the batch header has flags this program does not know"
)

// decodeHeader reads a header. The reason is empty when it is sound; a header of
// another format version is sound in itself and refused by the reason.
func decodeHeader(b []byte) (h header, reason string) {
	if len(b) < headerSize {
		return h, "the file ends before a whole batch header"
	}
	if binary.LittleEndian.Uint32(b[0:]) != headerMagic {
		return h, "no batch header here"
	}
	if binary.LittleEndian.Uint32(b[4:]) != crc32.Checksum(b[8:headerSize], castagnoli) {
		return h, "the checksum of the batch header does not match"
	}
	h = header{
		flags:         binary.LittleEndian.Uint16(b[10:]),
		records:       binary.LittleEndian.Uint32(b[12:]),
		salt:          binary.LittleEndian.Uint64(b[16:]),
		segment:       binary.LittleEndian.Uint64(b[24:]),
		batch:         binary.LittleEndian.Uint64(b[32:]),
		syncedThrough: binary.LittleEndian.Uint64(b[40:]),
		bodyBytes:     binary.LittleEndian.Uint64(b[48:]),
	}
	switch {
	case binary.LittleEndian.Uint16(b[8:]) != formatVersion:
		return h, reasonVersion
	case h.flags&^flagHead != 0:
		return h, reasonFlags
	case h.bodyBytes > MaxSegmentBytes:
		return h, "the batch is longer than a segment can be"
	case h.syncedThrough >= h.batch:
		return h, "the batch claims a sync that came after it"
	}
	return h, ""
}

// record is one decoded record. payload aliases the input.
type record struct {
	segment uint64
	batch   uint64
	group   uint64
	kind    kind
	payload []byte
}

// putRecord encodes the header of a record around the payload that already
// stands behind it in b, which is exactly the record.
func putRecord(b []byte, segment, batch, group uint64, k kind) {
	_ = b[recordHeaderSize-1]
	length := uint32(len(b) - recordHeaderSize)
	binary.LittleEndian.PutUint32(b[0:], length)
	binary.LittleEndian.PutUint64(b[8:], segment)
	binary.LittleEndian.PutUint64(b[16:], batch)
	binary.LittleEndian.PutUint64(b[24:], group)
	b[32] = byte(k)
	binary.LittleEndian.PutUint32(b[4:], recordCRC(b, length))
}

// recordCRC starts from the length, so that it covers it too.
func recordCRC(b []byte, length uint32) uint32 { return crc32.Update(length, castagnoli, b[8:]) }

// decodeRecord reads the record at the start of b and tells its whole size. The
// reason is empty when it is sound, the length of its payload included.
func decodeRecord(b []byte) (r record, size int, reason string) {
	if len(b) < recordHeaderSize {
		return r, 0, "the batch ends inside a record header"
	}
	length := binary.LittleEndian.Uint32(b[0:])
	if int64(length) > int64(len(b)-recordHeaderSize) {
		return r, 0, "a record is longer than its batch"
	}
	size = recordHeaderSize + int(length)
	b = b[:size]
	if binary.LittleEndian.Uint32(b[4:]) != recordCRC(b, length) {
		return r, 0, "the checksum of a record does not match"
	}
	r = record{
		segment: binary.LittleEndian.Uint64(b[8:]),
		batch:   binary.LittleEndian.Uint64(b[16:]),
		group:   binary.LittleEndian.Uint64(b[24:]),
		kind:    kind(b[32]),
		payload: b[recordHeaderSize:size:size],
	}
	want, exact := 0, true
	switch r.kind {
	case kindHead:
		want = headPayload
	case kindGroup:
		want = groupPayload
	case kindMarker:
		want = markerPayload
	case kindEntry, kindMoved:
		want, exact = entryPayload, false
	case kindHardState:
		want = hardStatePayload
	default:
		return r, 0, "a record has a kind this program does not know"
	}
	if len(r.payload) < want || exact && len(r.payload) != want {
		return r, 0, "a record has a payload of the wrong length"
	}
	return r, size, ""
}

// checkBody tells why the body of a batch is not exactly the records its header
// promises; empty if it is. Only a body that passed is replayed.
func checkBody(h *header, body []byte) (reason string) {
	if uint64(len(body)) < h.bodyBytes {
		return "the file ends inside the batch"
	}
	body = body[:h.bodyBytes]
	var n uint32
	for len(body) > 0 {
		r, size, reason := decodeRecord(body)
		switch {
		case reason != "":
			return reason
		case r.segment != h.segment || r.batch != h.batch:
			return "a record belongs to another batch"
		}
		body = body[size:]
		n++
	}
	if n != h.records {
		return "the batch has another number of records than its header says"
	}
	return ""
}

// groupHead is what a head says about a group: all of it but its entries.
type groupHead struct {
	marker    Marker
	last      uint64
	lastTerm  uint64
	hardState hardState
}

// hardState is raftpb.HardState as a value.
type hardState struct{ term, vote, commit uint64 }

func hardStateOf(hs *raftpb.HardState) hardState {
	return hardState{hs.GetTerm(), hs.GetVote(), hs.GetCommit()}
}

func (hs hardState) message() *raftpb.HardState {
	return &raftpb.HardState{Term: new(hs.term), Vote: new(hs.vote), Commit: new(hs.commit)}
}

func putUint64s(b []byte, values ...uint64) {
	for i, v := range values {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
}

func uint64At(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }

func putGroupHead(b []byte, g *groupHead) {
	putUint64s(b, g.marker.Index, g.marker.Term, g.last, g.lastTerm, g.hardState.term, g.hardState.vote, g.hardState.commit)
}

func decodeGroupHead(b []byte) groupHead {
	return groupHead{
		marker:    Marker{Index: uint64At(b, 0), Term: uint64At(b, 1)},
		last:      uint64At(b, 2),
		lastTerm:  uint64At(b, 3),
		hardState: decodeHardState(b[32:]),
	}
}

func putMarker(b []byte, m Marker, reset bool) {
	b[0] = 0
	if reset {
		b[0] = markerReset
	}
	putUint64s(b[1:], m.Index, m.Term)
}

func decodeMarker(b []byte) (m Marker, reset bool) {
	return Marker{Index: uint64At(b[1:], 0), Term: uint64At(b[1:], 1)}, b[0]&markerReset != 0
}

func putHardState(b []byte, hs hardState) { putUint64s(b, hs.term, hs.vote, hs.commit) }

func decodeHardState(b []byte) hardState {
	return hardState{uint64At(b, 0), uint64At(b, 1), uint64At(b, 2)}
}

func putEntry(b []byte, typ raftpb.EntryType, term, index uint64, data []byte) {
	b[0] = byte(typ)
	binary.LittleEndian.PutUint64(b[1:], term)
	binary.LittleEndian.PutUint64(b[9:], index)
	copy(b[entryPayload:], data)
}

// entryView is a decoded entry whose data aliases the input.
type entryView struct {
	typ   raftpb.EntryType
	term  uint64
	index uint64
	data  []byte
}

func decodeEntry(b []byte) entryView {
	v := entryView{
		typ:   raftpb.EntryType(b[0]),
		term:  binary.LittleEndian.Uint64(b[1:]),
		index: binary.LittleEndian.Uint64(b[9:]),
	}
	if len(b) > entryPayload {
		v.data = b[entryPayload:len(b):len(b)]
	}
	return v
}

// entrySlot is an entry with room for what its pointers point to, so that a slab
// of them is one allocation.
type entrySlot struct {
	entry raftpb.Entry
	term  uint64
	index uint64
	typ   raftpb.EntryType
}

func (s *entrySlot) fill(v entryView) *raftpb.Entry {
	s.term, s.index, s.typ = v.term, v.index, v.typ
	s.entry.Term, s.entry.Index, s.entry.Type, s.entry.Data = &s.term, &s.index, &s.typ, v.data
	return &s.entry
}
