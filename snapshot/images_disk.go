package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// A kept image is a directory named by its id:
//
//	manifest   see manifest.go
//	expiry     record file SREXPIR1, version 2: unix time in milliseconds, and how
//	           long it was to live when that was written, likewise; 8 bytes little
//	           endian each. Version 1 has the first alone.
//	db/        the files
//
// Directories that begin with tmp- are being made or removed; nothing but the
// sweep at open looks at them.
const (
	tempPrefix = "tmp-"
	filesDir   = "db"
	expiryName = "expiry"

	dirPermissions fs.FileMode = 0o700
)

func expiryFormat() durable.Format {
	return durable.Format{Magic: [8]byte([]byte("SREXPIR1")), Version: 2, Limit: 16}
}

// writeExpiry notes that an image lives for a while from now on.
func writeExpiry(fsys vfs.FS, dir string, now time.Time, life time.Duration) error {
	payload := binary.LittleEndian.AppendUint64(nil, uint64(now.Add(life).UnixMilli()))
	payload = binary.LittleEndian.AppendUint64(payload, uint64(life.Milliseconds()))
	return durable.WriteRecord(fsys, fsys.PathJoin(dir, expiryName), expiryFormat(), payload)
}

// readExpiry returns when an image may go, and how long it was to live; 0: not
// known.
func readExpiry(fsys vfs.FS, dir string) (expires time.Time, life time.Duration, err error) {
	payload, version, err := durable.ReadRecord(fsys, fsys.PathJoin(dir, expiryName), expiryFormat())
	if err != nil {
		return time.Time{}, 0, err
	}
	if len(payload) != 8*int(version) {
		return time.Time{}, 0, fmt.Errorf("%w: an expiry of %d bytes", ErrCorrupt, len(payload))
	}
	if version > 1 {
		life = time.Duration(min(binary.LittleEndian.Uint64(payload[8:]), uint64(MaxKeep.Milliseconds()))) * time.Millisecond
	}
	return time.UnixMilli(int64(binary.LittleEndian.Uint64(payload))), life, nil
}

// publishDir renames a directory that is complete, and synced but for its own
// entries, to the name under which others look for it.
func publishDir(fsys vfs.FS, temp, dir string) error {
	if err := durable.SyncDir(fsys, temp); err != nil {
		return err
	}
	if err := fsys.Rename(temp, dir); err != nil {
		return err
	}
	if err := durable.SyncDir(fsys, fsys.PathDir(dir)); err != nil {
		// Whether it is there after a crash is unknown, so it must not be used now.
		return errors.Join(err, fsys.RemoveAll(dir))
	}
	return nil
}

// removeDir removes a directory as if at once: under its name it is whole or
// absent, also after a crash in the middle. It is idempotent.
func removeDir(fsys vfs.FS, dir string) error {
	parent := fsys.PathDir(dir)
	temp := fsys.PathJoin(parent, tempPrefix+fsys.PathBase(dir))
	if err := fsys.RemoveAll(temp); err != nil {
		return err
	}
	if err := fsys.Rename(dir, temp); err != nil && !isGone(err) {
		return err
	}
	// The rename must be durable before the first file goes, else a crash could
	// bring the directory back without it.
	if err := durable.SyncDir(fsys, parent); err != nil {
		return err
	}
	if err := fsys.RemoveAll(temp); err != nil {
		return err
	}
	return durable.SyncDir(fsys, parent)
}

func (s *Images) dir(id string) string { return s.opts.FS.PathJoin(s.opts.Dir, id) }

// load finds the images on disk. It is called before anybody else knows s.
func (s *Images) load() error {
	names, err := s.opts.FS.List(s.opts.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := s.dir(name)
		if strings.HasPrefix(name, tempPrefix) {
			if err := s.opts.FS.RemoveAll(path); err != nil {
				return err
			}
			s.opts.Counters.add(&s.opts.Counters.orphans, 1)
			continue
		}
		e, err := s.loadImage(name, path)
		if err == nil {
			s.images[name] = e
			continue
		}
		s.opts.Logger.Warn("removing an image that cannot be used", "path", path, "reason", err)
		if err := removeDir(s.opts.FS, path); err != nil {
			return err
		}
		s.opts.Counters.add(&s.opts.Counters.orphans, 1)
	}
	return durable.SyncDir(s.opts.FS, s.opts.Dir)
}

// loadImage reads one image. An image can always be made again, so whatever is
// wrong with one ends it.
func (s *Images) loadImage(name, path string) (*entry, error) {
	if _, err := ParseID(name); err != nil {
		return nil, err
	}
	m, err := ReadManifest(s.opts.FS, path)
	if err != nil {
		return nil, err
	}
	if FormatID(m.Image) != name || m.Group != s.opts.Group || string(m.ClusterId) != string(s.opts.ClusterID) || m.HistoryEpoch != s.opts.HistoryEpoch {
		return nil, fmt.Errorf("it is image %s of group %d, history epoch %d", FormatID(m.Image), m.Group, m.HistoryEpoch)
	}
	if err := checkFiles(s.opts.FS, s.opts.FS.PathJoin(path, filesDir), m); err != nil {
		return nil, err
	}
	expires, life, err := readExpiry(s.opts.FS, path)
	if err != nil {
		return nil, err
	}
	info, err := s.opts.FS.Stat(s.opts.FS.PathJoin(path, manifestName))
	if err != nil {
		return nil, err
	}
	// A clock that was set back must not keep an image for years.
	if latest := s.opts.Now().Add(max(s.opts.Expiry, life)); expires.After(latest) {
		expires = latest
	}
	return &entry{manifest: m, created: info.ModTime(), expires: expires}, nil
}

// drop removes an image that nobody holds; s.mu is held.
func (s *Images) drop(e *entry) error {
	if e.holders > 0 {
		return nil
	}
	if err := removeDir(s.opts.FS, s.dir(e.id())); err != nil {
		e.doomed = true // nobody gets it any more; the next Expire tries again
		return fmt.Errorf("snapshot: remove image %s of group %d: %w", e.id(), s.opts.Group, err)
	}
	delete(s.images, e.id())
	s.opts.Logger.Info("image removed", "group", s.opts.Group, "image", e.id(), "index", e.manifest.Index)
	return nil
}

// renew lets an image live for a while from now on; s.mu is held.
func (s *Images) renew(e *entry, now time.Time, life time.Duration) error {
	e.expires = now.Add(life)
	if err := writeExpiry(s.opts.FS, s.dir(e.id()), now, life); err != nil {
		return fmt.Errorf("snapshot: renew image %s of group %d: %w", e.id(), s.opts.Group, diskError(err))
	}
	return nil
}

// Image is a kept image that a transfer holds.
type Image struct {
	images   *Images
	entry    *entry
	released bool // guarded by images.mu
}

// Images give images to the source.
var _ OpenedImage = (*Image)(nil)

// Manifest implements OpenedImage.
func (i *Image) Manifest() *snapshotv1.Manifest { return i.entry.manifest }

// Dir is the directory of the image's files, whole until Release.
func (i *Image) Dir() string {
	return i.images.opts.FS.PathJoin(i.images.dir(i.entry.id()), filesDir)
}

// OpenFile implements OpenedImage.
func (i *Image) OpenFile(name string) (File, error) {
	if err := CheckFileName(name); err != nil {
		return nil, err
	}
	return i.images.opts.FS.Open(i.images.opts.FS.PathJoin(i.Dir(), name), vfs.SequentialReadsOption)
}

// Keep lets the image live for life from now on, at most MaxKeep, unless it does
// longer already. The bounds of number and bytes hold for it as for others. It is
// durable when Keep returns nil.
func (i *Image) Keep(life time.Duration) error {
	s := i.images
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.opts.Now()
	if life = min(life, MaxKeep); !now.Add(life).After(i.entry.expires) {
		return nil
	}
	return s.renew(i.entry, now, life)
}

// Info describes the image as it is kept now.
func (i *Image) Info() ImageInfo {
	i.images.mu.Lock()
	defer i.images.mu.Unlock()
	return i.entry.info()
}

// Condemn implements OpenedImage: the image goes when the last holder lets go.
func (i *Image) Condemn(reason error) {
	s := i.images
	s.opts.Logger.Error("image condemned", "group", s.opts.Group, "image", i.entry.id(), "reason", reason)
	s.mu.Lock()
	defer s.mu.Unlock()
	i.entry.doomed = true
}

// Release ends the hold. The image lives on for its expiry from now. It is
// called once; again does nothing.
func (i *Image) Release() {
	s := i.images
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.released {
		return
	}
	i.released = true
	i.entry.holders--
	if i.entry.holders > 0 {
		return
	}
	var err error
	if i.entry.doomed {
		err = s.drop(i.entry)
	} else if now := s.opts.Now(); i.entry.expires.Sub(now) < s.opts.Expiry/2 {
		err = s.renew(i.entry, now, s.opts.Expiry)
	}
	if err != nil {
		s.opts.Logger.Warn("image not tidied; tried again later", "reason", err)
	}
}
