package snapshot

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// SpaceOptions say how much of a disk an incoming image leaves free.
type SpaceOptions struct {
	// Factor of the image's bytes that must be free. Default 1.1: the store
	// writes a little itself before the old state goes.
	Factor float64
	// ReservePercent of the disk, at most ReserveBytes, must stay free. Defaults
	// 10 and 1 GiB. A negative ReserveBytes means none.
	ReservePercent int
	ReserveBytes   int64
}

// EnsureDefaults puts the defaults in place of zero values.
func (o *SpaceOptions) EnsureDefaults() {
	setDefault(&o.Factor, 1.1)
	setDefault(&o.ReservePercent, 10)
	setDefault(&o.ReserveBytes, 1<<30)
}

// Validate tells the first field that is out of range.
func (o *SpaceOptions) Validate() error {
	if !(o.Factor >= 1) || o.ReservePercent < 0 || o.ReservePercent > 100 {
		return fmt.Errorf("snapshot: space: Factor %v must be at least 1, ReservePercent %d from 0 to 100", o.Factor, o.ReservePercent)
	}
	return nil
}

// CheckSpace tells whether the disk of dir has room for bytes more. It is
// ErrNoSpace if not. A file system that cannot tell has room.
func (o SpaceOptions) CheckSpace(fsys vfs.FS, dir string, bytes uint64) error {
	usage, err := fsys.GetDiskUsage(dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("snapshot: ask for the free space of %s: %w", dir, err)
	}
	reserve := max(0, min(usage.TotalBytes/100*uint64(o.ReservePercent), uint64(max(0, o.ReserveBytes))))
	need := float64(bytes)*o.Factor + float64(reserve)
	if float64(usage.AvailBytes) < need {
		return fmt.Errorf("%w: %s has %d bytes free; an image of which %d bytes are missing needs %.0f; free some or add a disk",
			ErrNoSpace, dir, usage.AvailBytes, bytes, need)
	}
	return nil
}

// freeSpace returns what dir's disk has free, 0 if that is unknown.
func freeSpace(fsys vfs.FS, dir string) uint64 {
	usage, err := fsys.GetDiskUsage(dir)
	if err != nil {
		return 0
	}
	return usage.AvailBytes
}
