package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// scanner reads a segment from front to back at Open.
type scanner struct {
	segment *segment
	buf     []byte // what the file holds from start on
	start   int64
}

const scanBytes = 1 << 20

// window returns n bytes of the file from offset on, fewer where it ends. They
// are valid until the next call.
func (s *scanner) window(offset int64, n int) ([]byte, error) {
	if left := s.segment.size - offset; int64(n) > left {
		n = int(max(left, 0))
	}
	if offset >= s.start && offset+int64(n) <= s.start+int64(len(s.buf)) {
		return s.buf[offset-s.start:][:n], nil
	}
	size := int(min(max(int64(n), scanBytes), s.segment.size-offset))
	if cap(s.buf) < size {
		s.buf = make([]byte, size)
	}
	s.buf, s.start = s.buf[:size], offset
	got, err := s.segment.file.ReadAt(s.buf, offset)
	if got < size && err != nil && !errors.Is(err, io.EOF) {
		s.buf = s.buf[:0]
		return nil, fmt.Errorf("raftlog: read %s at offset %d: %w; check the disk", s.segment.name, offset, err)
	}
	s.buf = s.buf[:got]
	return s.buf[:min(n, got)], nil
}

// batch returns the batch at offset if it is whole: a sound header of this log
// and segment and exactly the records it promises. Else it tells why not. A
// batch is replayed only if it passed here, so never in part.
func (s *scanner) batch(offset int64, salt uint64) (h header, body []byte, reason string, err error) {
	b, err := s.window(offset, headerSize)
	if err != nil {
		return h, nil, "", err
	}
	h, reason = decodeHeader(b)
	switch {
	case reason != "":
		return h, nil, reason, nil
	case h.segment != s.segment.number:
		return h, nil, "the batch belongs to an older segment", nil
	case salt != 0 && h.salt != salt:
		return h, nil, "the batch belongs to another log", nil
	case h.isHead() != (offset == 0):
		return h, nil, "a segment's head stands in the wrong place", nil
	}
	b, err = s.window(offset, headerSize+int(h.bodyBytes))
	if err != nil {
		return h, nil, "", err
	}
	body = b[headerSize:]
	if reason = checkBody(&h, body); reason != "" {
		return h, nil, reason, nil
	}
	return h, body, "", nil
}

// trace is what batch headers behind the first incomplete batch tell.
type trace struct {
	syncedThrough uint64 // the highest claim
	batch         uint64 // the highest number

	headSyncedThrough uint64 // the claim of a head at offset 0, whole or not

	unknown       int64 // 1 + offset of the first header of another version; 0: none
	unknownReason string
}

// traces looks for headers from offset to the end of the file. Batches are whole
// or not there; what makes an incomplete one corruption is a later header that
// says it was synced, and since the length of the broken batch is not known every
// place a header can stand is tried. Headers of the segment's earlier lives name
// another segment, bytes a client wrote do not know the log's salt.
func (s *scanner) traces(offset int64, salt uint64) (t trace, err error) {
	for ; offset < s.segment.size; offset += scanBytes {
		b, err := s.window(offset, scanBytes+headerSize)
		if err != nil {
			return t, err
		}
		for i := 0; i < min(len(b)-headerSize+1, scanBytes); i += batchAlign {
			if binary.LittleEndian.Uint32(b[i:]) != headerMagic {
				continue
			}
			h, reason := decodeHeader(b[i:])
			switch {
			case reason == reasonVersion || reason == reasonFlags:
				// Sound, but not ours: cutting it off would destroy what a
				// newer program wrote.
				if t.unknown == 0 {
					t.unknown, t.unknownReason = offset+int64(i)+1, reason
				}
			case reason != "" || h.segment != s.segment.number || salt != 0 && h.salt != salt:
			default:
				t.syncedThrough = max(t.syncedThrough, h.syncedThrough)
				t.batch = max(t.batch, h.batch)
				if h.isHead() && offset+int64(i) == 0 {
					t.headSyncedThrough = h.syncedThrough
				}
			}
		}
	}
	return t, nil
}

// zero overwrites the segment from offset to its end where it is not zero.
func (s *scanner) zero(offset int64) error {
	zeros := make([]byte, zeroBytes)
	for offset < s.segment.size {
		b, err := s.window(offset, len(zeros))
		if err != nil {
			return err
		}
		if len(b) == 0 {
			return nil
		}
		if !allZero(b) {
			clear(zeros) // a vfs.File may change what it was given to write
			if _, err := s.segment.file.WriteAt(zeros[:len(b)], offset); err != nil {
				return fmt.Errorf("raftlog: zero the torn tail of %s at offset %d: %w; check the disk", s.segment.name, offset, err)
			}
		}
		offset += int64(len(b))
	}
	return nil
}

func allZero(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
