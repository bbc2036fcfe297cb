package raftlog

import (
	"bytes"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
)

func seedSegment(t testing.TB) []byte {
	mem := vfs.NewMem()
	l := mustOpen(t, testOptions(mem))
	mustAppend(t, l, true, goldenUpdates()...)
	mustClose(t, l)
	return contents(t, mem, l.active().name)[:l.active().offset]
}

// FuzzHeader: a header that decodes is encoded to the same bytes.
func FuzzHeader(f *testing.F) {
	b := seedSegment(f)
	f.Add(b[:headerSize])
	f.Add(b[104:][:headerSize])
	f.Add([]byte("SRL1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, reason := decodeHeader(b)
		if reason != "" {
			return
		}
		var again [headerSize]byte
		h.put(again[:])
		if !bytes.Equal(again[:], b[:headerSize]) {
			t.Fatalf("%x is encoded as %x", b[:headerSize], again)
		}
	})
}

// FuzzRecord: a record that decodes is encoded to the same bytes, and its payload
// can be decoded.
func FuzzRecord(f *testing.F) {
	for b := seedSegment(f)[160+headerSize:]; ; {
		_, size, reason := decodeRecord(b)
		if reason != "" {
			break
		}
		f.Add(b[:size])
		b = b[size:]
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, size, reason := decodeRecord(b)
		if reason != "" {
			// Once more with a checksum that holds, to get behind it.
			if len(b) < recordHeaderSize {
				return
			}
			b = bytes.Clone(b)
			putRecord(b, 1, 2, 3, kind(b[32]))
			if r, size, reason = decodeRecord(b); reason != "" {
				return
			}
		}
		switch r.kind {
		case kindGroup:
			decodeGroupHead(r.payload)
		case kindMarker:
			decodeMarker(r.payload)
		case kindHardState:
			decodeHardState(r.payload)
		case kindEntry, kindMoved:
			v := decodeEntry(r.payload)
			again := make([]byte, len(r.payload))
			putEntry(again, v.typ, v.term, v.index, v.data)
			if !bytes.Equal(again, r.payload) {
				t.Fatalf("payload %x is encoded as %x", r.payload, again)
			}
			new(entrySlot).fill(v)
		}
		again := bytes.Clone(b[:size])
		putRecord(again, r.segment, r.batch, r.group, r.kind)
		if !bytes.Equal(again, b[:size]) {
			t.Fatalf("%x is encoded as %x", b[:size], again)
		}
	})
}

// FuzzBatch: a batch that passes has exactly the records its header says.
func FuzzBatch(f *testing.F) {
	b := seedSegment(f)
	f.Add(b)
	f.Add(b[104:])
	f.Add(b[160:])
	f.Fuzz(func(t *testing.T, b []byte) {
		h, reason := decodeHeader(b)
		if reason != "" || checkBody(&h, b[headerSize:]) != "" {
			return
		}
		n := uint32(0)
		for body := b[headerSize:][:h.bodyBytes]; len(body) > 0; n++ {
			_, size, reason := decodeRecord(body)
			if reason != "" {
				t.Fatal(reason)
			}
			body = body[size:]
		}
		if n != h.records {
			t.Fatalf("%d records, the header says %d", n, h.records)
		}
	})
}

// FuzzSegment opens any bytes as a segment: it opens or says why not, and what
// opened can be appended to and opened again. Checksums are made to hold, so that
// what lies behind them is reached.
func FuzzSegment(f *testing.F) {
	f.Add(seedSegment(f), false)
	f.Add(seedSegment(f), true)
	var s rawSegment
	s.head(1, 1, 0, map[uint64]groupHead{5: {Marker{7, 2}, 8, 3, hardState{4, 1, 7}}})
	s.batch(0, 1, 2, 1, recordHeaderSize+entryPayload, func(e *encoder) {
		putEntry(e.record(entryPayload), raftpb.EntryNormal, 3, 8, nil)
		e.seal(5, kindMoved, entryPayload)
	})
	f.Add(s.buf, true)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if len(b) > 4096 {
			return
		}
		if fix {
			b = fixChecksums(bytes.Clone(b))
		}
		fs := vfs.NewMem()
		if err := fs.MkdirAll(testDir, 0o755); err != nil {
			t.Fatal(err)
		}
		overwrite(t, fs, fs.PathJoin(testDir, segmentName(1)), 0, append(bytes.Clone(b), make([]byte, 512)...))
		l, err := Open(testOptions(fs))
		if err != nil {
			if isCorrupt(err) == nil && !bytes.Contains([]byte(err.Error()), []byte("larger value")) {
				t.Fatal(err)
			}
			return
		}
		m := state(t, l)
		mustClose(t, l)
		l = mustOpen(t, testOptions(fs))
		checkState(t, l, m)
		mustClose(t, l)
	})
}

// fixChecksums walks b as batches and makes their checksums hold, as far as the
// lengths let it.
func fixChecksums(b []byte) []byte {
	for at := 0; at+headerSize <= len(b); {
		h := header{
			flags: uint16(b[at+10]) & flagHead, segment: 1, salt: 7,
			batch:         uint64At(b[at:], 4),
			syncedThrough: uint64At(b[at:], 5),
			bodyBytes:     uint64At(b[at:], 6) % uint64(len(b)),
		}
		end := min(at+headerSize+int(h.bodyBytes), len(b))
		for r := at + headerSize; r+recordHeaderSize <= end; h.records++ {
			length := int(b[r]) | int(b[r+1])<<8
			stop := min(r+recordHeaderSize+length, end)
			group := uint64(b[r+24])
			putRecord(b[r:stop:stop], 1, h.batch, group, kind(b[r+32]))
			r = stop
		}
		h.put(b[at:])
		at += int(h.size())
	}
	return b
}
