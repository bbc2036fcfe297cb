package snapshot

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// Inboxes are the incoming transfers of one group on disk,
// <dir>/groups/<gid>/inbox. Its methods may be called from any goroutine.
type Inboxes struct {
	fsys     vfs.FS
	dir      string
	counters *Counters

	mu   sync.Mutex
	open map[string]bool
}

// OpenInboxes opens the inboxes of a group, makes the directory if needed, and
// sweeps what was being removed.
func OpenInboxes(fsys vfs.FS, dir string, counters *Counters) (*Inboxes, error) {
	if counters == nil {
		counters = new(Counters)
	}
	if err := durable.MkdirAll(fsys, dir); err != nil {
		return nil, fmt.Errorf("snapshot: open the inboxes: %w", err)
	}
	names, err := fsys.List(dir)
	if err != nil {
		return nil, fmt.Errorf("snapshot: open the inboxes: %w", err)
	}
	for _, name := range names {
		if _, err := ParseID(name); err == nil {
			continue
		}
		if err := fsys.RemoveAll(fsys.PathJoin(dir, name)); err != nil {
			return nil, fmt.Errorf("snapshot: sweep the inboxes: %w", err)
		}
		counters.add(&counters.orphans, 1)
	}
	if err := durable.SyncDir(fsys, dir); err != nil {
		return nil, err
	}
	return &Inboxes{fsys: fsys, dir: dir, counters: counters, open: make(map[string]bool)}, nil
}

// InboxInfo describes an incoming transfer on disk.
type InboxInfo struct {
	// Transfer it belongs to.
	Transfer []byte
	// Manifest of the image; nil if none had arrived. Not to be changed.
	Manifest *snapshotv1.Manifest
	// Source it came from.
	Source string
	// Bytes of the image that are staged.
	Bytes uint64
	// Ready: everything fallible is done.
	Ready bool
}

// List reads what is there, from disk. Those that are open are told as of their
// last record.
func (x *Inboxes) List() ([]InboxInfo, error) {
	names, err := x.fsys.List(x.dir)
	if err != nil {
		return nil, fmt.Errorf("snapshot: list the inboxes: %w", err)
	}
	var infos []InboxInfo
	for _, name := range names {
		id, err := ParseID(name)
		if err != nil {
			continue
		}
		data, err := durable.ReadFile(x.fsys, x.fsys.PathJoin(x.dir, name, sessionName), maxSessionBytes+maxSessionRecord)
		if err != nil && !isGone(err) {
			return nil, fmt.Errorf("snapshot: list the inboxes: %w", err)
		}
		s, _ := decodeSession(data)
		infos = append(infos, InboxInfo{Transfer: id, Manifest: s.manifest, Source: s.source, Bytes: s.bytes(), Ready: s.ready != nil})
	}
	return infos, nil
}

// Remove removes the inbox of a transfer that is not open; again is no error.
func (x *Inboxes) Remove(transfer []byte) error {
	name := FormatID(transfer)
	if err := x.take(name); err != nil {
		return err
	}
	defer x.leave(name)
	return x.remove(name)
}

func (x *Inboxes) remove(name string) error {
	if err := removeDir(x.fsys, x.fsys.PathJoin(x.dir, name)); err != nil {
		return fmt.Errorf("snapshot: remove inbox %s: %w", name, err)
	}
	return nil
}

func (x *Inboxes) take(name string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open[name] {
		return fmt.Errorf("%w: inbox %s is in use", ErrBusy, name)
	}
	x.open[name] = true
	return nil
}

func (x *Inboxes) leave(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.open, name)
}

// Inbox is an incoming transfer on disk, open for one user. Its methods are
// called by one goroutine at a time; but record by several.
type Inbox struct {
	boxes *Inboxes
	name  string
	dir   string
	log   *sessionLog

	mu sync.Mutex // for record
	*staged
}

// Open opens the inbox of a transfer, or makes it. What its log does not name is
// removed. ErrBusy if it is open.
func (x *Inboxes) Open(transfer []byte) (*Inbox, error) {
	if len(transfer) != idBytes {
		return nil, fmt.Errorf("%w: a transfer id of %d bytes", ErrProtocol, len(transfer))
	}
	name := FormatID(transfer)
	if err := x.take(name); err != nil {
		return nil, err
	}
	i := &Inbox{boxes: x, name: name, dir: x.fsys.PathJoin(x.dir, name)}
	if err := i.load(); err != nil {
		// Made just now and empty: it must not stay.
		if _, statErr := x.fsys.Stat(x.fsys.PathJoin(i.dir, sessionName)); isGone(statErr) {
			err = errors.Join(err, x.fsys.RemoveAll(i.dir))
		}
		x.leave(name)
		return nil, fmt.Errorf("snapshot: open inbox %s: %w", name, diskError(err))
	}
	return i, nil
}

func (i *Inbox) load() (err error) {
	if err := durable.MkdirAll(i.boxes.fsys, i.FilesDir()); err != nil {
		return err
	}
	log, s, err := openSession(i.boxes.fsys, i.boxes.fsys.PathJoin(i.dir, sessionName))
	if err != nil {
		return err
	}
	i.log, i.staged = log, s
	if err := i.sweep(); err != nil {
		return errors.Join(err, log.close())
	}
	return nil
}

// FilesDir is where the files of the image arrive.
func (i *Inbox) FilesDir() string { return i.boxes.fsys.PathJoin(i.dir, filesDir) }

func (i *Inbox) path(name string) string { return i.boxes.fsys.PathJoin(i.FilesDir(), name) }

// Manifest of the image; nil if there is none yet.
func (i *Inbox) Manifest() *snapshotv1.Manifest { return i.manifest }

// Ready tells that everything fallible was done.
func (i *Inbox) Ready() bool { return i.ready != nil }

// sweep compares the files with the log, and makes them agree.
func (i *Inbox) sweep() error {
	fsys := i.boxes.fsys
	names, err := fsys.List(i.FilesDir())
	if err != nil {
		return err
	}
	keep := make(map[string]bool)
	// With all files recorded, Sink.Prepare may have moved them: what is absent
	// then is the sink's to find.
	complete := i.complete()
	for no, f := range i.done {
		keep[i.manifest.Files[no].Name] = true
		if complete {
			continue
		}
		info, err := fsys.Stat(i.path(i.manifest.Files[no].Name))
		if err != nil && !isGone(err) {
			return err
		}
		if err != nil || uint64(info.Size()) != f.Size {
			return i.reset(no)
		}
	}
	for no, p := range i.progress {
		part := i.manifest.Files[no].Name + partSuffix
		keep[part] = true
		info, err := fsys.Stat(i.path(part))
		if err != nil && !isGone(err) {
			return err
		}
		if err != nil || uint64(info.Size()) < p.Offset || new(xxhash.Digest).UnmarshalBinary(p.DigestState) != nil {
			return i.reset(no)
		}
	}
	for _, name := range names {
		// What Prepare makes beside the files is the sink's.
		if !keep[name] && !complete {
			if err := fsys.RemoveAll(i.path(name)); err != nil {
				return err
			}
			i.boxes.counters.add(&i.boxes.counters.orphans, 1)
		}
	}
	names, err = fsys.List(i.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, durable.TempSuffix) {
			if err := fsys.RemoveAll(fsys.PathJoin(i.dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// reset forgets a file that the disk does not hold as the log says, which only a
// damaged disk does, and sweeps again.
func (i *Inbox) reset(no uint32) error {
	delete(i.done, no)
	delete(i.progress, no)
	i.ready = nil
	if err := i.rewrite(); err != nil {
		return err
	}
	return i.sweep()
}

// rewrite replaces the log by what is known.
func (i *Inbox) rewrite() error {
	data, err := appendSession([]byte(sessionMagic), 0, i.records()...)
	if err != nil {
		return err
	}
	if err := i.log.close(); err != nil {
		return err
	}
	if err := durable.WriteFile(i.boxes.fsys, i.log.path, data); err != nil {
		return err
	}
	log, s, err := openSession(i.boxes.fsys, i.log.path)
	if err != nil {
		return err
	}
	i.log, i.staged = log, s
	return nil
}

// record appends to the log and, once that is durable, to what is known.
func (i *Inbox) record(records ...*snapshotv1.StagedRecord) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.log.append(records...); err != nil {
		return err
	}
	for _, r := range records {
		if err := i.apply(r); err != nil {
			return err
		}
	}
	return nil
}

// begin starts the next attempt and returns its number.
func (i *Inbox) begin() (uint64, error) {
	attempt := i.attempt + 1
	return attempt, i.record(attemptRecord(attempt))
}

// adopt takes an image in the place of the one before, if any. Files that are
// staged and have the name, size and digest of a file of the new one, whose
// digest its source vouches for, count again; reused is their size.
func (i *Inbox) adopt(transfer []byte, source string, m *snapshotv1.Manifest) (reused uint64, err error) {
	old := make(map[string]*snapshotv1.StagedFile)
	for no, f := range i.done {
		old[i.manifest.Files[no].Name] = f
	}
	records := []*snapshotv1.StagedRecord{{Record: &snapshotv1.StagedRecord_Manifest{Manifest: &snapshotv1.StagedManifest{
		Transfer: transfer, Manifest: m, Source: source,
	}}}}
	for no, f := range m.Files {
		if have := old[f.Name]; have != nil && f.Verified && have.Size == f.Size && have.Xxhash64 == f.Digest {
			records = append(records, fileRecord(&snapshotv1.StagedFile{File: uint32(no), Size: f.Size, Xxhash64: f.Digest}))
			reused += f.Size
		}
	}
	if err := i.record(records...); err != nil {
		return 0, err
	}
	return reused, i.sweep()
}

// restart forgets the image and all of its files; the number of the attempt
// stays.
func (i *Inbox) restart() error {
	attempt := i.attempt
	i.staged = newStaged()
	i.attempt = attempt
	if err := i.rewrite(); err != nil {
		return err
	}
	if err := i.boxes.fsys.RemoveAll(i.FilesDir()); err != nil {
		return err
	}
	return durable.MkdirAll(i.boxes.fsys, i.FilesDir())
}

// resume says what of the image is staged.
func (i *Inbox) resume() *snapshotv1.Resume {
	if i.manifest == nil {
		return nil
	}
	r := &snapshotv1.Resume{Image: i.manifest.Image}
	for no := range uint32(len(i.manifest.Files)) {
		if i.done[no] != nil {
			r.Done = append(r.Done, no)
		} else if p := i.progress[no]; p != nil && r.Offset == 0 {
			r.File, r.Offset = no, p.Offset
		}
	}
	return r
}

// setReady records that everything fallible is done.
func (i *Inbox) setReady() error {
	return i.record(&snapshotv1.StagedRecord{Record: &snapshotv1.StagedRecord_Ready{Ready: &snapshotv1.StagedReady{
		Image: i.manifest.Image, Index: i.manifest.Index, Term: i.manifest.Term,
	}}})
}

// Close leaves the inbox as it is on disk.
func (i *Inbox) Close() error {
	defer i.boxes.leave(i.name)
	return i.log.close()
}

// Remove closes the inbox and removes it.
func (i *Inbox) Remove() error {
	defer i.boxes.leave(i.name)
	return errors.Join(i.log.close(), i.boxes.remove(i.name))
}
