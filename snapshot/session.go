package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// session.log, version 1, all numbers little endian:
//
//	8 bytes   magic SRSTAGE1
//	records:
//	  4 bytes   length of the payload
//	  4 bytes   CRC-32C of the record's offset in the file (8 bytes), the length
//	            (4 bytes) and the payload
//	  payload   an encoded streamraft.snapshot.v1.StagedRecord
//
// It is append-only. Reading ends at the first record that is not whole; what
// follows was not synced, so nobody relies on it. The offset in the checksum and
// the rewriting of a file with such a tail keep a record of that tail from
// coming back behind a new one.
const (
	sessionName       = "session.log"
	sessionMagic      = "SRSTAGE1"
	sessionHeader     = 8
	sessionRecordHead = 8

	// maxSessionRecord holds a manifest and what wraps it.
	maxSessionRecord = MaxManifestBytes + 4096

	// maxSessionBytes bounds the whole log: a manifest, two records for each of
	// MaxFiles, and one for every 4 MiB of a PiB would be more, but a log is
	// rewritten without old records at each open and when it has grown so far.
	maxSessionBytes = 64 << 20
)

// staged is what a session.log says.
type staged struct {
	transfer []byte
	source   string
	attempt  uint64
	manifest *snapshotv1.Manifest
	done     map[uint32]*snapshotv1.StagedFile
	progress map[uint32]*snapshotv1.StagedProgress
	ready    *snapshotv1.StagedReady
}

func newStaged() *staged {
	return &staged{done: make(map[uint32]*snapshotv1.StagedFile), progress: make(map[uint32]*snapshotv1.StagedProgress)}
}

// apply takes a record; it is an error if it does not fit those before it.
func (s *staged) apply(r *snapshotv1.StagedRecord) error {
	file := func(no uint32, size uint64) error {
		if s.manifest == nil || uint64(no) >= uint64(len(s.manifest.Files)) || size > s.manifest.Files[no].Size {
			return fmt.Errorf("%w: session log: %d bytes of file %d, which the image has not", ErrCorrupt, size, no)
		}
		return nil
	}
	switch r := r.Record.(type) {
	case *snapshotv1.StagedRecord_Attempt:
		s.attempt = max(s.attempt, r.Attempt.GetAttempt())
	case *snapshotv1.StagedRecord_Manifest:
		if err := ValidateManifest(r.Manifest.GetManifest()); err != nil {
			return err
		}
		attempt := s.attempt
		*s = *newStaged()
		s.attempt, s.transfer, s.source, s.manifest = attempt, r.Manifest.Transfer, r.Manifest.Source, r.Manifest.Manifest
	case *snapshotv1.StagedRecord_File:
		if err := file(r.File.GetFile(), r.File.GetSize()); err != nil {
			return err
		}
		if r.File.Size != s.manifest.Files[r.File.File].Size {
			return fmt.Errorf("%w: session log: file %d is complete with %d bytes", ErrCorrupt, r.File.File, r.File.Size)
		}
		s.done[r.File.File] = r.File
		delete(s.progress, r.File.File)
	case *snapshotv1.StagedRecord_Progress:
		if err := file(r.Progress.GetFile(), r.Progress.GetOffset()); err != nil {
			return err
		}
		if r.Progress.Offset == 0 {
			delete(s.progress, r.Progress.File)
		} else if s.done[r.Progress.File] == nil {
			s.progress[r.Progress.File] = r.Progress
		}
	case *snapshotv1.StagedRecord_Ready:
		if s.manifest == nil || string(r.Ready.GetImage()) != string(s.manifest.Image) || r.Ready.Index != s.manifest.Index || r.Ready.Term != s.manifest.Term {
			return fmt.Errorf("%w: session log: ready for another image", ErrCorrupt)
		}
		s.ready = r.Ready
	default:
		return fmt.Errorf("%w: session log: a record of a kind this release does not know", ErrCorrupt)
	}
	return nil
}

// records returns the shortest log that says the same.
func (s *staged) records() []*snapshotv1.StagedRecord {
	var out []*snapshotv1.StagedRecord
	if s.attempt > 0 {
		out = append(out, attemptRecord(s.attempt))
	}
	if s.manifest == nil {
		return out
	}
	out = append(out, &snapshotv1.StagedRecord{Record: &snapshotv1.StagedRecord_Manifest{Manifest: &snapshotv1.StagedManifest{
		Transfer: s.transfer, Manifest: s.manifest, Source: s.source,
	}}})
	for no := range uint32(len(s.manifest.Files)) {
		if f := s.done[no]; f != nil {
			out = append(out, fileRecord(f))
		}
		if p := s.progress[no]; p != nil {
			out = append(out, progressRecord(p))
		}
	}
	if s.ready != nil {
		out = append(out, &snapshotv1.StagedRecord{Record: &snapshotv1.StagedRecord_Ready{Ready: s.ready}})
	}
	return out
}

func attemptRecord(attempt uint64) *snapshotv1.StagedRecord {
	return &snapshotv1.StagedRecord{Record: &snapshotv1.StagedRecord_Attempt{Attempt: &snapshotv1.StagedAttempt{Attempt: attempt}}}
}

func fileRecord(f *snapshotv1.StagedFile) *snapshotv1.StagedRecord {
	return &snapshotv1.StagedRecord{Record: &snapshotv1.StagedRecord_File{File: f}}
}

func progressRecord(p *snapshotv1.StagedProgress) *snapshotv1.StagedRecord {
	return &snapshotv1.StagedRecord{Record: &snapshotv1.StagedRecord_Progress{Progress: p}}
}

// bytes returns how much of the image is staged.
func (s *staged) bytes() uint64 {
	var n uint64
	for _, f := range s.done {
		n += f.Size
	}
	for _, p := range s.progress {
		n += p.Offset
	}
	return n
}

// complete tells whether all files are there.
func (s *staged) complete() bool { return s.manifest != nil && len(s.done) == len(s.manifest.Files) }

// appendSession appends records to the encoded log dst.
func appendSession(dst []byte, base int64, records ...*snapshotv1.StagedRecord) ([]byte, error) {
	table := crc32.MakeTable(crc32.Castagnoli)
	for _, r := range records {
		payload, err := proto.Marshal(r)
		if err != nil {
			return nil, fmt.Errorf("snapshot: encode a session record: %w", err)
		}
		if len(payload) > maxSessionRecord {
			return nil, fmt.Errorf("%w: a session record of %d bytes, at most %d", ErrCorrupt, len(payload), maxSessionRecord)
		}
		offset := base + int64(len(dst))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(payload)))
		dst = binary.LittleEndian.AppendUint32(dst, sessionSum(table, offset, payload))
		dst = append(dst, payload...)
	}
	return dst, nil
}

func sessionSum(table *crc32.Table, offset int64, payload []byte) uint32 {
	head := binary.LittleEndian.AppendUint64(make([]byte, 0, 12), uint64(offset))
	head = binary.LittleEndian.AppendUint32(head, uint32(len(payload)))
	return crc32.Update(crc32.Checksum(head, table), table, payload)
}

// decodeSession reads a log. whole is where the first record ends that is not
// whole or does not fit; it is the length of data if all do.
func decodeSession(data []byte) (s *staged, whole int) {
	s = newStaged()
	if len(data) < sessionHeader || string(data[:sessionHeader]) != sessionMagic {
		return s, 0
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	for at := sessionHeader; ; {
		whole = at
		if len(data)-at < sessionRecordHead {
			return s, whole
		}
		length := int64(binary.LittleEndian.Uint32(data[at:]))
		sum := binary.LittleEndian.Uint32(data[at+4:])
		if length > maxSessionRecord || length > int64(len(data)-at-sessionRecordHead) {
			return s, whole
		}
		payload := data[at+sessionRecordHead : at+sessionRecordHead+int(length)]
		if sessionSum(table, int64(at), payload) != sum {
			return s, whole
		}
		r := new(snapshotv1.StagedRecord)
		if proto.Unmarshal(payload, r) != nil || s.apply(r) != nil {
			return s, whole
		}
		at += sessionRecordHead + int(length)
	}
}

// sessionLog is an open session.log. One goroutine uses it at a time.
type sessionLog struct {
	fsys vfs.FS
	path string
	file vfs.File
	size int64
	// broken: an append or a sync failed, so what the file holds is unknown; it is
	// used again only after it was opened anew.
	broken bool
}

// openSession reads the log, rewrites it where it must or should be, and opens
// it for appending. It creates an absent one.
func openSession(fsys vfs.FS, path string) (*sessionLog, *staged, error) {
	data, err := durable.ReadFile(fsys, path, maxSessionBytes+maxSessionRecord)
	if err != nil && !isGone(err) {
		return nil, nil, err
	}
	s, whole := decodeSession(data)
	compact, err := appendSession([]byte(sessionMagic), 0, s.records()...)
	if err != nil {
		return nil, nil, err
	}
	// A tail that is not whole must go, since it can't be cut off; much that is
	// outdated may.
	if whole < len(data) || whole == 0 || len(data) > 2*len(compact)+64<<10 {
		if err := durable.WriteFile(fsys, path, compact); err != nil {
			return nil, nil, err
		}
		data = compact
	} else if err := syncFile(fsys, path); err != nil {
		// What was read may have been written and not synced before a kill.
		return nil, nil, err
	}
	file, err := fsys.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, nil, err
	}
	return &sessionLog{fsys: fsys, path: path, file: file, size: int64(len(data))}, s, nil
}

// append makes records durable.
func (l *sessionLog) append(records ...*snapshotv1.StagedRecord) error {
	if l.broken {
		return fmt.Errorf("snapshot: %s failed before; it must be opened anew", l.path)
	}
	data, err := appendSession(nil, l.size, records...)
	if err != nil {
		return err
	}
	l.broken = true
	if _, err := l.file.WriteAt(data, l.size); err != nil {
		return fmt.Errorf("snapshot: write %s: %w", l.path, diskError(err))
	}
	if err := l.file.SyncData(); err != nil {
		return fmt.Errorf("snapshot: sync %s: %w", l.path, diskError(err))
	}
	l.broken = false
	l.size += int64(len(data))
	return nil
}

// close closes the log; again does nothing. It can be used no more.
func (l *sessionLog) close() error {
	if l.file == nil {
		return nil
	}
	file := l.file
	l.file, l.broken = nil, true
	return file.Close()
}

// syncFile makes a file's content durable.
func syncFile(fsys vfs.FS, path string) error {
	file, err := fsys.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
