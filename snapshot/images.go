package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// ImagesOptions configures the kept images of one group.
type ImagesOptions struct {
	// FS and Dir are where the images are, <dir>/groups/<gid>/images; the
	// directory is made if needed and belongs to Images alone. Captures that
	// hard-link need it on the state machine's file system. Required.
	FS  vfs.FS
	Dir string

	// ClusterID, HistoryEpoch and Group become part of every manifest; a request
	// for others is refused, an image of others found at Open is removed. Group is
	// required.
	ClusterID    []byte
	HistoryEpoch uint64
	Group        uint64

	// Expiry is how long an image lives after its last use. Default 10 minutes,
	// the time a transfer may rest before the log is no longer kept for it.
	Expiry time.Duration

	// Keep is how many of the newest full images outlive their expiry. Default 0:
	// a kept image keeps the disk space of everything deleted since.
	Keep int

	// MaxImages and MaxBytes bound what is kept, in number (default 8) and in
	// bytes of files (default 0: unbounded). The oldest that no transfer holds go
	// first, expired or not. Images that are held may exceed the bounds, and so may
	// the newest: a transfer that was cut off goes on with it.
	MaxImages int
	MaxBytes  uint64

	// Now is the clock expiry goes by; default time.Now. It may jump: an image
	// then goes too early, and a transfer starts again, or too late.
	Now func() time.Time

	// Counters take what happens; default: counters of its own.
	Counters *Counters

	// Logger takes captures and removals. Default: nothing is logged.
	Logger *slog.Logger
}

// EnsureDefaults puts the defaults in place of zero values.
func (o *ImagesOptions) EnsureDefaults() {
	setDefault(&o.Expiry, 10*time.Minute)
	setDefault(&o.MaxImages, 8)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Counters == nil {
		o.Counters = new(Counters)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate tells the first field that is out of range. Call it after
// EnsureDefaults.
func (o *ImagesOptions) Validate() error {
	switch {
	case o.FS == nil || o.Dir == "":
		return errors.New("snapshot: options FS and Dir of the images are required")
	case o.Group == 0:
		return errors.New("snapshot: option Group of the images is required")
	case o.Expiry <= 0 || o.Keep < 0 || o.MaxImages < 1 || o.Keep > o.MaxImages:
		return fmt.Errorf("snapshot: options of the images: Expiry %v must be above 0, MaxImages %d at least 1, Keep %d from 0 to MaxImages",
			o.Expiry, o.MaxImages, o.Keep)
	}
	return nil
}

// Images are the kept images of one group, shared by all transfers. All methods
// may be called from any goroutine; they block on the file system.
type Images struct {
	opts ImagesOptions
	// capturing is held while an image is captured for a transfer, so that those
	// who wait take what another just made.
	capturing chan struct{}

	mu     sync.Mutex
	images map[string]*entry // by FormatID
	closed bool
}

// entry is an image on disk. Its fields are guarded by Images.mu, but for the
// manifest, which nobody changes.
type entry struct {
	manifest *snapshotv1.Manifest
	created  time.Time
	expires  time.Time
	holders  int
	// doomed: remove it when the last holder lets go.
	doomed bool
}

func (e *entry) id() string { return FormatID(e.manifest.Image) }

func (e *entry) info() ImageInfo {
	return ImageInfo{Manifest: e.manifest, Created: e.created, Expires: e.expires, Holders: e.holders}
}

// ImageInfo describes a kept image.
type ImageInfo struct {
	// Manifest of the image; not to be changed.
	Manifest *snapshotv1.Manifest
	// Created is when it was published, Expires when it may go.
	Created, Expires time.Time
	// Holders are the transfers that hold it now.
	Holders int
}

// OpenImages opens the kept images of a group and removes what a crash left
// half made, half removed or damaged, and what has expired.
func OpenImages(opts ImagesOptions) (*Images, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if err := durable.MkdirAll(opts.FS, opts.Dir); err != nil {
		return nil, fmt.Errorf("snapshot: open the kept images: %w", err)
	}
	s := &Images{opts: opts, capturing: make(chan struct{}, 1), images: make(map[string]*entry)}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("snapshot: open the kept images in %s: %w", opts.Dir, err)
	}
	return s, s.Expire()
}

// Create captures an image: it lets the capture write into a new directory,
// adds identity and id to the manifest, and publishes it. The image is durable
// when Create returns it, and held until its Release. The capture is closed in
// every case. Errors are those of Capture.Write; ErrNoSpace; ErrCorrupt if the
// manifest does not fit the files; ErrClosed. Nothing stays behind after one.
func (s *Images) Create(ctx context.Context, c Capture) (*Image, error) {
	begin := s.opts.Now()
	m, err := s.create(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("snapshot: make an image of group %d: %w", s.opts.Group, diskError(err))
	}
	s.opts.Counters.stage(StageCapture, s.opts.Now().Sub(begin))
	s.opts.Logger.Info("image made", "group", m.Group, "image", FormatID(m.Image), "kind", m.Kind,
		"from", m.FromIndex, "index", m.Index, "files", len(m.Files), "bytes", m.Bytes)

	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.opts.Now()
	e := &entry{manifest: m, created: now, expires: now.Add(s.opts.Expiry), holders: 1, doomed: s.closed}
	s.images[e.id()] = e
	if err := s.retain(); err != nil {
		s.opts.Logger.Warn("old images not removed; tried again later", "group", s.opts.Group, "reason", err)
	}
	return &Image{images: s, entry: e}, nil
}

func (s *Images) create(ctx context.Context, c Capture) (m *snapshotv1.Manifest, err error) {
	closed := false
	defer func() {
		if !closed {
			err = errors.Join(err, c.Close())
		}
	}()
	s.mu.Lock()
	isClosed := s.closed
	s.mu.Unlock()
	if isClosed {
		return nil, ErrClosed
	}
	id := NewID()
	temp := s.opts.FS.PathJoin(s.opts.Dir, tempPrefix+FormatID(id))
	files := s.opts.FS.PathJoin(temp, filesDir)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.opts.FS.RemoveAll(temp))
		}
	}()
	if err := s.opts.FS.MkdirAll(files, dirPermissions); err != nil {
		return nil, err
	}
	if m, err = c.Write(ctx, files); err != nil {
		return nil, err
	}
	// The pin holds back compaction and the journal; what follows needs it no
	// more.
	closed = true
	if err := c.Close(); err != nil {
		return nil, err
	}
	m.Image, m.ClusterId, m.HistoryEpoch, m.Group = id, s.opts.ClusterID, s.opts.HistoryEpoch, s.opts.Group
	if err := ValidateManifest(m); err != nil {
		return nil, err
	}
	if err := checkFiles(s.opts.FS, files, m); err != nil {
		return nil, err
	}
	if err := durable.SyncDir(s.opts.FS, files); err != nil {
		return nil, err
	}
	if err := WriteManifest(s.opts.FS, temp, m); err != nil {
		return nil, err
	}
	if err := writeExpiry(s.opts.FS, temp, s.opts.Now(), s.opts.Expiry); err != nil {
		return nil, err
	}
	return m, publishDir(s.opts.FS, temp, s.dir(FormatID(id)))
}

// Open holds a kept image for a transfer. ErrImageGone if there is none of this
// id.
func (s *Images) Open(id []byte) (*Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.images[FormatID(id)]
	if !ok || e.doomed {
		return nil, fmt.Errorf("%w: image %s of group %d", ErrImageGone, FormatID(id), s.opts.Group)
	}
	return s.hold(e), nil
}

// hold takes an entry for a transfer; s.mu is held.
func (s *Images) hold(e *entry) *Image {
	e.holders++
	return &Image{images: s, entry: e}
}

// newest holds the newest kept image that fits.
func (s *Images) newest(fits func(*snapshotv1.Manifest) bool) *Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.ordered() {
		if !e.doomed && fits(e.manifest) {
			return s.hold(e)
		}
	}
	return nil
}

// ordered returns the images, newest first; s.mu is held.
func (s *Images) ordered() []*entry {
	all := make([]*entry, 0, len(s.images))
	for _, e := range s.images {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(b.manifest.Index, a.manifest.Index), b.created.Compare(a.created), cmp.Compare(a.id(), b.id()))
	})
	return all
}

// Kept lists the images, the newest first.
func (s *Images) Kept() []ImageInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	infos := make([]ImageInfo, 0, len(s.images))
	for _, e := range s.ordered() {
		if !e.doomed {
			infos = append(infos, e.info())
		}
	}
	return infos
}

// Remove removes an image now, or when the last transfer that holds it lets go;
// it is not given to others meanwhile. Removing what is gone is no error.
func (s *Images) Remove(id []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.images[FormatID(id)]
	if !ok {
		return nil
	}
	e.doomed = true
	return s.drop(e)
}

// Expire removes the images whose time is over and that nobody holds, and
// renews those that are held. Call it every minute or so.
func (s *Images) Expire() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.opts.Now()
	var errs []error
	full := 0
	for _, e := range s.ordered() {
		if e.manifest.Kind != snapshotv1.Kind_KIND_RECORDS {
			full++
		}
		kept := e.manifest.Kind != snapshotv1.Kind_KIND_RECORDS && full <= s.opts.Keep
		switch {
		case e.holders > 0:
			// A crash must not find a transfer of hours with an image of ten minutes.
			if e.expires.Sub(now) < s.opts.Expiry/2 {
				errs = append(errs, s.renew(e, now, s.opts.Expiry))
			}
		case e.doomed, !kept && !now.Before(e.expires):
			errs = append(errs, s.drop(e))
		}
	}
	return errors.Join(append(errs, s.retain())...)
}

// retain enforces MaxImages and MaxBytes; s.mu is held.
func (s *Images) retain() error {
	var errs []error
	count, bytes := len(s.images), uint64(0)
	for _, e := range s.images {
		bytes += e.manifest.Bytes
	}
	oldest := s.ordered()
	slices.Reverse(oldest)
	for _, e := range oldest[:max(len(oldest)-1, 0)] {
		if count <= s.opts.MaxImages && (s.opts.MaxBytes == 0 || bytes <= s.opts.MaxBytes) {
			break
		}
		if e.holders == 0 {
			count--
			bytes -= e.manifest.Bytes
			errs = append(errs, s.drop(e))
		}
	}
	return errors.Join(errs...)
}

// Close lets go of the images; they stay on disk. Images that are held must be
// released before.
func (s *Images) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, e := range s.images {
		if e.holders > 0 {
			return fmt.Errorf("snapshot: close the images of group %d: image %s is held; end its transfers first", s.opts.Group, e.id())
		}
	}
	return nil
}
