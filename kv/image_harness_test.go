package kv

import (
	"crypto/rand"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

const (
	imageDir = "images/1"
	inboxDir = "inbox/1/db"
)

// emptyDir makes a directory anew and durable.
func emptyDir(tb testing.TB, fs vfs.FS, dir string) {
	tb.Helper()
	if err := errors.Join(fs.RemoveAll(dir), fs.MkdirAll(dir, 0o755)); err != nil {
		tb.Fatal(err)
	}
	for path := dir; path != "." && path != "/"; path = fs.PathDir(path) {
		if err := syncDir(fs, fs.PathDir(path)); err != nil {
			tb.Fatal(err)
		}
	}
}

// writeImage captures and writes an image in imageDir.
func writeImage(tb testing.TB, s *Store, have snapshot.Have, least uint64) (*snapshotv1.Manifest, error) {
	tb.Helper()
	capture, err := s.Capture(have, least)
	if err != nil {
		return nil, err
	}
	emptyDir(tb, s.opts.FS, imageDir)
	m, err := capture.Write(tb.Context(), imageDir)
	if closeErr := capture.Close(); closeErr != nil {
		tb.Fatal(closeErr)
	}
	if err != nil {
		return nil, err
	}
	m.Image = make([]byte, imageIDBytes)
	if _, err := rand.Read(m.Image); err != nil {
		tb.Fatal(err)
	}
	checkManifest(tb, s.opts.FS, m)
	return m, nil
}

// checkManifest wants the manifest to name exactly the files in imageDir, with
// their sizes and digests.
func checkManifest(tb testing.TB, fs vfs.FS, m *snapshotv1.Manifest) {
	tb.Helper()
	names, err := fs.List(imageDir)
	if err != nil {
		tb.Fatal(err)
	}
	if len(names) != len(m.GetFiles()) {
		tb.Fatalf("files %v, the manifest names %v", names, m.GetFiles())
	}
	sum := uint64(0)
	for _, file := range m.GetFiles() {
		digest, size, err := digestFile(fs, fs.PathJoin(imageDir, file.GetName()), contextPacer(tb.Context()))
		if err != nil {
			tb.Fatal(err)
		}
		if size != file.GetSize() || file.GetVerified() && digest != file.GetDigest() {
			tb.Fatalf("%v has %d bytes and digest %x", file, size, digest)
		}
		sum += size
	}
	if sum != m.GetBytes() {
		tb.Fatalf("%d bytes, the manifest says %d", sum, m.GetBytes())
	}
}

// copyImage copies an image from one file system to inboxDir of another, as a
// receiver leaves it: files and names are durable.
func copyImage(tb testing.TB, m *snapshotv1.Manifest, from, to vfs.FS) {
	tb.Helper()
	emptyDir(tb, to, inboxDir)
	for _, file := range m.GetFiles() {
		source, err := from.Open(from.PathJoin(imageDir, file.GetName()))
		if err != nil {
			tb.Fatal(err)
		}
		content, err := io.ReadAll(source)
		if err := errors.Join(err, source.Close()); err != nil {
			tb.Fatal(err)
		}
		if err := writeFile(to, to.PathJoin(inboxDir, file.GetName()), content); err != nil {
			tb.Fatal(err)
		}
	}
	if err := syncDir(to, inboxDir); err != nil {
		tb.Fatal(err)
	}
}

// prepareImage stages the image in inboxDir and prepares it.
func prepareImage(tb testing.TB, s *Store, m *snapshotv1.Manifest) (snapshot.Sink, error) {
	tb.Helper()
	sink, err := s.Stage(m, inboxDir)
	if err != nil {
		return nil, err
	}
	for _, file := range m.GetFiles() {
		if err := sink.CheckFile(tb.Context(), file.GetName(), false); err != nil {
			return sink, err
		}
	}
	return sink, sink.Prepare(tb.Context())
}

// installImage takes an image from another file system.
func installImage(tb testing.TB, s *Store, m *snapshotv1.Manifest, from vfs.FS) {
	tb.Helper()
	copyImage(tb, m, from, s.opts.FS)
	sink, err := prepareImage(tb, s, m)
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.Install(sink); err != nil {
		tb.Fatal(err)
	}
}

// pass lets virtual time pass; the test runs in a synctest bubble.
func pass(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}
