package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// contentImage is an image that is only a content.
type contentImage struct {
	manifest *snapshotv1.Manifest
	content  content
}

func (i *contentImage) Manifest() *snapshotv1.Manifest { return i.manifest }
func (i *contentImage) Condemn(error)                  {}
func (i *contentImage) Release()                       {}
func (i *contentImage) OpenFile(name string) (File, error) {
	return vfs.NewMemFile(i.content[name]), nil
}

func archiveImage(t testing.TB, group uint64, sizes ...int) *contentImage {
	c := &fakeCapture{fsys: vfs.NewMem(), content: randomContent(group, sizes...), verified: group%2 == 0}
	c.content["text"] = make([]byte, 2000)
	m, err := c.Write(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	m.Image, m.Group = bytes.Repeat([]byte{byte(group)}, idBytes), group
	return &contentImage{m, c.content}
}

func testArchive(t testing.TB, images ...*contentImage) []byte {
	var out bytes.Buffer
	w, err := NewArchiveWriter(&out, &snapshotv1.ArchiveHeader{ClusterId: []byte("cluster"), HistoryEpoch: 3, CreatedUnixMs: 5, Release: "test"})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range images {
		if err := w.Add(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestArchive(t *testing.T) {
	images := []*contentImage{archiveImage(t, 1, 3<<20, 0, 10), archiveImage(t, 2), archiveImage(t, 5, 100)}
	data := testArchive(t, images...)
	inspected, err := InspectArchive(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	verified, err := VerifyArchive(t.Context(), bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	mem := vfs.NewCrashableMem()
	extracted, err := ExtractArchive(t.Context(), bytes.NewReader(data), mem, func(m *snapshotv1.Manifest) (string, error) {
		if m.Group == 2 {
			return "", nil
		}
		return FormatID(m.Image), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []*Archive{inspected, verified, extracted} {
		if a.Header.HistoryEpoch != 3 || len(a.Manifests) != 3 || len(a.Entries) != 3 || a.Bytes != uint64(len(data)) {
			t.Errorf("%+v", a)
		}
		for n, i := range images {
			if !proto.Equal(a.Manifests[n], i.manifest) || !proto.Equal(a.Entries[n], inspected.Entries[n]) {
				t.Errorf("image %d: %v", n, a.Manifests[n])
			}
		}
	}
	after := mem.CrashClone(vfs.CrashCloneCfg{})
	for _, i := range []*contentImage{images[0], images[2]} {
		for name, want := range i.content {
			if got, err := readTestFile(after, FormatID(i.manifest.Image)+"/"+name); err != nil || !bytes.Equal(got, want) {
				t.Errorf("group %d, file %q: %d bytes, %v", i.manifest.Group, name, len(got), err)
			}
		}
	}
	if names, err := after.List(""); err != nil || len(names) != 2 {
		t.Error(names, err)
	}
}

// TestArchiveDamage: any flipped bit, cut or addition is noticed.
func TestArchiveDamage(t *testing.T) {
	data := testArchive(t, archiveImage(t, 1, 50), archiveImage(t, 2, 5))
	for bit := range 8 * len(data) {
		bad := bytes.Clone(data)
		bad[bit/8] ^= 1 << (bit % 8)
		if _, err := VerifyArchive(t.Context(), bytes.NewReader(bad)); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("bit %d: %v", bit, err)
		}
	}
	for n := range data {
		if _, err := VerifyArchive(t.Context(), bytes.NewReader(data[:n])); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d: %v", n, err)
		}
		if _, err := InspectArchive(bytes.NewReader(data[:n]), int64(n)); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d: %v", n, err)
		}
	}
	if _, err := VerifyArchive(t.Context(), bytes.NewReader(append(bytes.Clone(data), 0))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("longer: %v", err)
	}
}

// TestArchiveErrorsSayWhere: a person learns where the file is damaged, and that a
// newer release wrote it.
func TestArchiveErrorsSayWhere(t *testing.T) {
	data := testArchive(t, archiveImage(t, 1, 3<<20), archiveImage(t, 2, 100))
	inspected, err := InspectArchive(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	second := inspected.Entries[1].Offset
	bad := bytes.Clone(data)
	bad[second+20] ^= 1
	where := fmt.Sprintf("at byte %d: ", second)
	if _, err := VerifyArchive(t.Context(), bytes.NewReader(bad)); err == nil || !strings.Contains(err.Error(), where) {
		t.Errorf("verify: %v", err)
	}
	if _, err := InspectArchive(bytes.NewReader(bad), int64(len(bad))); err == nil || !strings.Contains(err.Error(), where) {
		t.Errorf("inspect: %v", err)
	}
	bad = bytes.Clone(data)
	bad[len(archiveMagic)-1]++
	_, inspectErr := InspectArchive(bytes.NewReader(bad), int64(len(bad)))
	_, verifyErr := VerifyArchive(t.Context(), bytes.NewReader(bad))
	for _, err := range []error{inspectErr, verifyErr} {
		if err == nil || !strings.Contains(err.Error(), "version 2, and this release reads version 1") {
			t.Errorf("a newer version: %v", err)
		}
	}
}

func TestArchiveRefuses(t *testing.T) {
	var out bytes.Buffer
	w, err := NewArchiveWriter(&out, &snapshotv1.ArchiveHeader{})
	if err != nil {
		t.Fatal(err)
	}
	i := archiveImage(t, 1, 10)
	if err := w.Add(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	if err := w.Add(t.Context(), i); !errors.Is(err, ErrUnfit) {
		t.Errorf("the same group twice: %v", err)
	}
	delta := archiveImage(t, 2, 10)
	delta.manifest.Kind = snapshotv1.Kind_KIND_RECORDS
	if err := w.Add(t.Context(), delta); !errors.Is(err, ErrUnfit) {
		t.Errorf("a delta: %v", err)
	}
	rotten := archiveImage(t, 4, 10)
	rotten.content["000000.sst"][3]++
	if err := w.Add(t.Context(), rotten); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a file that changed: %v", err)
	}
	if err := w.Close(); err == nil {
		t.Error("an archive that failed was closed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := VerifyArchive(ctx, bytes.NewReader(testArchive(t, i))); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// FuzzArchive: what is verified can be inspected, and says the same.
func FuzzArchive(f *testing.F) {
	f.Add(testArchive(f, archiveImage(f, 1, 50)))
	f.Add(testArchive(f))
	f.Add([]byte(archiveMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		inspected, inspectErr := InspectArchive(bytes.NewReader(data), int64(len(data)))
		verified, err := VerifyArchive(t.Context(), bytes.NewReader(data))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if inspectErr != nil || len(inspected.Manifests) != len(verified.Manifests) {
			t.Fatalf("%v: %+v and %+v", inspectErr, inspected, verified)
		}
	})
}
