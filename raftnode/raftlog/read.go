package raftlog

import (
	"errors"
	"fmt"
	"io"

	"go.etcd.io/raft/v3/raftpb"
)

// readBytes bounds one read of entries that lie one behind the other, unless a
// single one is larger.
const readBytes = 1 << 20

// readCold reads the entries of one group that are not cached, in as few reads
// as their places allow, and puts them into entries. Their segments are pinned.
func (l *Log) readCold(group uint64, cold []coldEntry, entries []*raftpb.Entry) error {
	// Close waits for readers with this lock before it closes files.
	l.filesMu.RLock()
	defer l.filesMu.RUnlock()
	if l.filesClosed {
		return ErrClosed
	}
	slots := make([]entrySlot, len(cold))
	for len(cold) > 0 {
		n := readTogether(cold)
		first, last := &cold[0].ref, &cold[n-1].ref
		s := first.segment
		// The entries keep the buffer: it holds them and little else.
		buf := make([]byte, int(last.offset+last.bytes-first.offset))
		if err := readFull(s, buf, int64(first.offset)); err != nil {
			return err
		}
		for i := range cold[:n] {
			c := &cold[i]
			b := buf[c.ref.offset-first.offset:][:c.ref.bytes]
			v, err := checkEntry(b, group, c.index, &c.ref)
			if err != nil {
				return err
			}
			entries[c.position] = slots[i].fill(v)
		}
		cold, slots = cold[n:], slots[n:]
	}
	return nil
}

// readTogether returns how many of the entries one read should fetch: those that
// follow in the same segment with little between them (other groups' records).
func readTogether(cold []coldEntry) int {
	first := &cold[0].ref
	for n := 1; n < len(cold); n++ {
		prev, r := &cold[n-1].ref, &cold[n].ref
		end := prev.offset + prev.bytes
		if r.segment != first.segment || r.offset < end || r.offset-end > 4096 ||
			r.offset+r.bytes-first.offset > readBytes {
			return n
		}
	}
	return len(cold)
}

// checkEntry decodes the record b, which must be the entry the index says. A
// record is checked each time it is read, not only at Open: what was sound then
// may have rotted since.
func checkEntry(b []byte, group, i uint64, r *ref) (entryView, error) {
	rec, size, reason := decodeRecord(b)
	var v entryView
	if reason == "" {
		switch {
		case rec.kind != kindEntry && rec.kind != kindMoved || size != int(r.bytes):
			reason = "the record is not the entry the index points to"
		case rec.segment != r.segment.number || rec.group != group:
			reason = "the record belongs to another segment or group"
		default:
			v = decodeEntry(rec.payload)
			if v.index != i || v.term != r.term {
				reason = fmt.Sprintf("the record holds entry %d of term %d in place of entry %d of term %d", v.index, v.term, i, r.term)
			}
		}
	}
	if reason != "" {
		return v, &CorruptError{File: r.segment.name, Offset: int64(r.offset), Group: group, Reason: reason, Hint: hintReplace}
	}
	return v, nil
}

// readFull reads len(b) bytes at offset. A file that ends before is corrupt.
func readFull(s *segment, b []byte, offset int64) error {
	n, err := s.file.ReadAt(b, offset)
	switch {
	case n == len(b):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return &CorruptError{File: s.name, Offset: offset, Reason: "the file ends before the record", Hint: hintReplace}
	}
	return fmt.Errorf("raftlog: read %d bytes at offset %d of %s: %w; check the disk", len(b), offset, s.name, err)
}
