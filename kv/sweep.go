package kv

import (
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
)

// sweep removes what nothing refers to from the state directory: states that
// were replaced, images that were staged and are not to be kept, and what a
// crash left half made. An error is not one of Open: the next sweep tries again.
func (s *Store) sweep(dir, live string) {
	fs := s.opts.FS
	names, err := fs.List(dir)
	if err != nil {
		s.log.Warn("listing the state directory failed", "directory", dir, "error", err)
		return
	}
	keep := map[string]bool{live: true}
	for _, id := range s.opts.KeepImages() {
		keep[imageName(id)] = true
	}
	for _, name := range names {
		if keep[name] || strings.HasPrefix(name, markerPrefix) {
			continue
		}
		if err := fs.RemoveAll(fs.PathJoin(dir, name)); err != nil {
			s.log.Warn("removing what nothing refers to failed", "directory", dir, "name", name, "error", err)
			continue
		}
		s.counters.swept.Add(1)
		s.log.Info("removed what nothing refers to", "directory", dir, "name", name)
	}
	if err := s.removeOldMarkers(dir); err != nil {
		s.log.Warn("removing old markers failed", "directory", dir, "error", err)
	}
}

// removeOldMarkers removes markers that a crash left behind a newer one.
func (s *Store) removeOldMarkers(dir string) error {
	marker, _, err := atomicfs.LocateMarker(s.opts.FS, dir, stateMarker)
	if err != nil {
		return err
	}
	if err := marker.RemoveObsolete(); err != nil {
		_ = marker.Close()
		return err
	}
	return marker.Close()
}
