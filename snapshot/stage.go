package snapshot

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// workItem is what goes from receive to write: one of them.
type workItem struct {
	chunk   *snapshotv1.Chunk
	fileEnd *snapshotv1.FileEnd
	end     *snapshotv1.End
}

// syncItem is what goes from write to sync.
type syncItem struct {
	file uint32
	// A complete file: part is closed, renamed and recorded with its digest.
	part   *part
	digest uint64
	// Progress of an incomplete one, if not nil.
	progress *snapshotv1.StagedProgress
	// written is what the credit is told when the item is durable: all that was
	// written before it.
	written uint64
}

// stage is the disk side of an attempt.
type stage struct {
	a      *attempt
	inbox  *Inbox
	work   chan workItem
	syncs  chan syncItem
	checks chan uint32

	// Of the write goroutine.
	current  *part // the file that is being written
	unpacker unpacker
	digest   *endDigest
	resent   map[uint32]bool // asked for again
	complete map[uint32]bool // handed on
	resume   *snapshotv1.Resume
	wrote    uint64

	// pending are files that are to be made durable or checked.
	pending atomic.Int64
	// failed are parts that sync could not make files of; settle looks after them.
	failed []*part
}

// part is a file that is being written.
type part struct {
	no       uint32
	path     string
	file     vfs.File
	offset   uint64
	recorded uint64 // offset of the last progress handed to sync
	hash     *xxhash.Digest
}

func newStage(a *attempt) *stage {
	s := &stage{
		a: a, inbox: a.inbox,
		// Credit bounds the bytes in it; the number only keeps receive and write
		// apart.
		work:   make(chan workItem, 64),
		syncs:  make(chan syncItem, 64),
		checks: make(chan uint32, len(a.manifest.Files)),
		digest: newEndDigest(), resent: make(map[uint32]bool), complete: make(map[uint32]bool),
		resume: a.inbox.resume(),
	}
	for no, f := range a.inbox.done {
		s.complete[no] = true
		if !f.Checked {
			s.pending.Add(1)
			s.checks <- no
		}
	}
	return s
}

// start starts the goroutines.
func (s *stage) start() {
	s.a.wg.Go(func() {
		defer close(s.syncs)
		s.write()
	})
	s.a.wg.Go(func() {
		defer close(s.checks)
		s.sync()
	})
	var checkers sync.WaitGroup
	for range s.a.r.opts.Checkers {
		checkers.Go(s.check)
	}
	s.a.wg.Go(func() {
		checkers.Wait()
		close(s.a.complete)
	})
}

// write is the write goroutine.
func (s *stage) write() {
	defer s.unpacker.close()
	for item := range s.work {
		if s.a.hasFailed() {
			return
		}
		var err error
		switch {
		case item.chunk != nil:
			err = s.writeChunk(item.chunk)
		case item.fileEnd != nil:
			err = s.endFile(item.fileEnd)
		default:
			if err = s.digest.check(item.end); err == nil && len(s.complete) != len(s.a.manifest.Files) {
				err = fmt.Errorf("%w: the end after %d of %d files", ErrProtocol, len(s.complete), len(s.a.manifest.Files))
			}
			if err == nil {
				close(s.a.ended)
			}
		}
		if err != nil {
			s.a.fail(err)
			return
		}
	}
}

// begin returns the part that a chunk or an end belongs to.
func (s *stage) begin(no uint32) (*part, error) {
	if s.current != nil {
		if s.current.no != no {
			return nil, fmt.Errorf("%w: file %d begins before file %d has ended", ErrProtocol, no, s.current.no)
		}
		return s.current, nil
	}
	if uint64(no) >= uint64(len(s.a.manifest.Files)) || s.complete[no] {
		return nil, fmt.Errorf("%w: file %d is complete or does not exist", ErrProtocol, no)
	}
	p := &part{no: no, path: s.inbox.path(s.a.manifest.Files[no].Name + partSuffix), hash: xxhash.New()}
	if s.resume.GetOffset() > 0 && s.resume.File == no && !s.resent[no] {
		s.inbox.mu.Lock()
		state := s.inbox.progress[no].GetDigestState()
		s.inbox.mu.Unlock()
		if err := p.hash.UnmarshalBinary(state); err != nil {
			return nil, fmt.Errorf("snapshot: resume file %d: %w", no, err)
		}
		p.offset, p.recorded = s.resume.Offset, s.resume.Offset
		if info, err := s.inbox.boxes.fsys.Stat(p.path); err != nil || uint64(info.Size()) < p.offset {
			return nil, fmt.Errorf("%w: %s has not the %d bytes that were written to it", ErrCorrupt, p.path, p.offset)
		}
	}
	file, err := s.inbox.boxes.fsys.OpenReadWrite(p.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fmt.Errorf("snapshot: make %s: %w", p.path, diskError(err))
	}
	p.file = file
	s.current = p
	return p, nil
}

func (s *stage) writeChunk(c *snapshotv1.Chunk) error {
	p, err := s.begin(c.File)
	if err != nil {
		return err
	}
	if c.Offset != p.offset {
		return fmt.Errorf("%w: bytes at %d of file %d, which has %d", ErrProtocol, c.Offset, c.File, p.offset)
	}
	raw, err := s.unpacker.unpack(c)
	if err != nil {
		return err
	}
	// Before it is written: a file system may change what it is given.
	p.hash.Write(raw)
	if _, err := p.file.WriteAt(raw, int64(p.offset)); err != nil {
		return fmt.Errorf("snapshot: write %s: %w", p.path, diskError(err))
	}
	wire := len(c.Data)
	s.a.buffers.put(c.Data)
	p.offset += uint64(len(raw))
	s.wrote += uint64(len(raw))
	s.a.credit.wrote(wire)
	s.a.written.Store(c.Seq)
	s.a.excuse()
	s.a.slot.Progress(len(raw))
	s.a.t.wrote(wire, len(raw))
	s.a.r.opts.Counters.moved(RoleReceiver, wire, len(raw))
	s.a.acknowledge()
	if p.offset-p.recorded >= s.a.r.opts.ProgressBytes && p.offset < s.a.manifest.Files[p.no].Size {
		progress, err := p.progress()
		if err != nil {
			return err
		}
		// It rarely waits: credit is bounded by what is durable, too.
		s.syncs <- syncItem{file: p.no, progress: progress, written: s.a.credit.handOn()}
		p.recorded = p.offset
	}
	return nil
}

func (p *part) progress() (*snapshotv1.StagedProgress, error) {
	state, err := p.hash.MarshalBinary()
	if err != nil {
		return nil, fmt.Errorf("snapshot: keep the digest of %s: %w", p.path, err)
	}
	return &snapshotv1.StagedProgress{File: p.no, Offset: p.offset, DigestState: state}, nil
}

func (s *stage) endFile(e *snapshotv1.FileEnd) error {
	p, err := s.begin(e.GetFile())
	if err != nil {
		return err
	}
	info := s.a.manifest.Files[p.no]
	if e.Size != info.Size || p.offset != info.Size {
		return fmt.Errorf("%w: file %q ends at %d and has %d of %d bytes", ErrProtocol, info.Name, e.Size, p.offset, info.Size)
	}
	s.digest.add(e)
	if sum := p.hash.Sum64(); sum != e.Xxhash64 {
		return s.resend(p, sum, e)
	}
	if info.Verified && info.Digest != e.Xxhash64 {
		return &condemnedError{fmt.Errorf("%w: file %q has digest %016x, and %016x in the manifest", ErrCorrupt, info.Name, e.Xxhash64, info.Digest)}
	}
	s.complete[p.no] = true
	s.current = nil
	s.pending.Add(1)
	s.syncs <- syncItem{file: p.no, part: p, digest: e.Xxhash64, written: s.a.credit.handOn()}
	return nil
}

// resend asks for a file again whose digest is wrong, once.
func (s *stage) resend(p *part, sum uint64, e *snapshotv1.FileEnd) error {
	s.a.r.opts.Counters.add(&s.a.r.opts.Counters.checksums, 1)
	name := s.a.manifest.Files[p.no].Name
	if s.resent[p.no] {
		return &condemnedError{fmt.Errorf("%w: file %q arrived twice with a wrong digest (%016x, and %016x was sent)", ErrCorrupt, name, sum, e.Xxhash64)}
	}
	s.a.d.log.Warn("asking for a file again", "file", name, "digest", sum, "sent", e.Xxhash64)
	s.resent[p.no] = true
	s.current = nil
	if err := p.file.Close(); err != nil {
		return fmt.Errorf("snapshot: close %s: %w", p.path, err)
	}
	s.syncs <- syncItem{file: p.no, progress: &snapshotv1.StagedProgress{File: p.no}, written: s.a.credit.handOn()}
	return s.acknowledgeFile(&snapshotv1.FileAck{File: p.no})
}

func (s *stage) acknowledgeFile(ack *snapshotv1.FileAck) error {
	select {
	case s.a.fileAcks <- ack:
	case <-s.a.failed:
	}
	return nil
}

// sync is the sync goroutine. It goes on after a failure elsewhere, since what
// has arrived should not have to come again.
func (s *stage) sync() {
	broken := false
	for item := range s.syncs {
		batch := []syncItem{item}
		for more := true; more && len(batch) < 64; {
			select {
			case next, open := <-s.syncs:
				if more = open; open {
					batch = append(batch, next)
				}
			default:
				more = false
			}
		}
		if !broken {
			if err := s.publish(batch); err != nil {
				broken = true
				// A renamed file may have no record: opening the inbox anew sorts it out.
				s.inbox.mu.Lock()
				s.inbox.log.broken = true
				s.inbox.mu.Unlock()
				s.a.fail(err)
			}
		}
		if broken {
			for _, item := range batch {
				if item.part != nil {
					s.failed = append(s.failed, item.part)
				}
			}
		}
	}
}

// publish makes a batch durable: the data, then names, then records.
func (s *stage) publish(batch []syncItem) error {
	fsys := s.inbox.boxes.fsys
	var records []*snapshotv1.StagedRecord
	last := make(map[uint32]int)
	for i, item := range batch {
		last[item.file] = i
	}
	for i, item := range batch {
		if item.part == nil && last[item.file] == i {
			if item.progress.Offset > 0 {
				// With a handle of its own: the writer's is in use.
				if err := syncFile(fsys, s.inbox.path(s.a.manifest.Files[item.file].Name+partSuffix)); err != nil {
					return fmt.Errorf("snapshot: sync file %d: %w", item.file, diskError(err))
				}
			}
			records = append(records, progressRecord(item.progress))
		}
	}
	for _, item := range batch {
		if item.part == nil {
			continue
		}
		if err := s.finishPart(item.part); err != nil {
			return err
		}
		records = append(records, fileRecord(&snapshotv1.StagedFile{File: item.file, Size: item.part.offset, Xxhash64: item.digest}))
	}
	// For new names, and for the name of a .part that a record speaks of.
	if err := durable.SyncDir(fsys, s.inbox.FilesDir()); err != nil {
		return diskError(err)
	}
	if err := s.inbox.record(records...); err != nil {
		return err
	}
	s.a.credit.synced(batch[len(batch)-1].written)
	s.a.acknowledge()
	for _, item := range batch {
		if item.part == nil {
			continue
		}
		if err := s.acknowledgeFile(&snapshotv1.FileAck{File: item.file, Ok: true}); err != nil {
			return err
		}
		s.checks <- item.file // it has room for every file
	}
	return nil
}

// finishPart syncs a complete file and gives it its name.
func (s *stage) finishPart(p *part) error {
	if err := p.file.Sync(); err != nil {
		return fmt.Errorf("snapshot: sync %s: %w", p.path, diskError(err))
	}
	file := p.file
	p.file = nil
	if err := file.Close(); err != nil {
		return fmt.Errorf("snapshot: close %s: %w", p.path, diskError(err))
	}
	if err := s.inbox.boxes.fsys.Rename(p.path, s.inbox.path(s.a.manifest.Files[p.no].Name)); err != nil {
		return fmt.Errorf("snapshot: publish %s: %w", p.path, diskError(err))
	}
	return nil
}

// check is one of the check goroutines.
func (s *stage) check() {
	for no := range s.checks {
		if !s.a.hasFailed() {
			if err := checkFile(s.a.ctx, s.inbox, s.a.d.sink, no); err != nil {
				s.a.fail(err)
			}
		}
		s.pending.Add(-1)
	}
}

// settle makes what the attempt has written of an incomplete file count for the
// next, and removes what no record speaks of. All goroutines have ended.
func (s *stage) settle() {
	if p := s.current; p != nil {
		if p.offset > p.recorded && !s.inbox.log.broken {
			if err := s.keep(p); err != nil {
				s.a.d.log.Warn("the end of a file that was received is lost", "file", p.path, "reason", err)
			}
		}
		s.failed = append(s.failed, p)
	}
	for _, p := range s.failed {
		if p.file != nil {
			if err := p.file.Close(); err != nil {
				s.a.d.log.Warn("a file did not close", "file", p.path, "reason", err)
			}
		}
		if s.inbox.progress[p.no] != nil {
			continue
		}
		for _, path := range []string{p.path, s.inbox.path(s.a.manifest.Files[p.no].Name)} {
			if err := s.inbox.boxes.fsys.Remove(path); err != nil && !isGone(err) {
				s.a.d.log.Warn("a part of a file stays until the inbox is opened again", "file", path, "reason", err)
			}
		}
	}
}

func (s *stage) keep(p *part) error {
	progress, err := p.progress()
	if err != nil {
		return err
	}
	if err := p.file.Sync(); err != nil {
		return err
	}
	if err := durable.SyncDir(s.inbox.boxes.fsys, s.inbox.FilesDir()); err != nil {
		return err
	}
	return s.inbox.record(progressRecord(progress))
}

func equalManifests(a, b *snapshotv1.Manifest) bool { return proto.Equal(a, b) }
