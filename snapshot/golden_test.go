package snapshot

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares bytes with a golden file, and returns what that holds.
func golden(t *testing.T, name string, got []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		var text strings.Builder
		for line := range slices.Chunk(got, 32) {
			text.WriteString(hex.EncodeToString(line) + "\n")
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (run with -update only for a new format version):\n%x\nwant\n%x", path, got, want)
	}
	return want
}

// goldenManifest has every field that is not empty by rule.
func goldenManifest() *snapshotv1.Manifest {
	return &snapshotv1.Manifest{
		Image: bytes.Repeat([]byte{1}, idBytes), Kind: snapshotv1.Kind_KIND_RECORDS, ClusterId: bytes.Repeat([]byte{2}, 16), HistoryEpoch: 3,
		Group: 4, FromIndex: 50, FromTerm: 5, Index: 60, Term: 6, Membership: []byte("members"),
		Files: []*snapshotv1.File{{Name: "000001.sst", Size: 100, Digest: 7, Verified: true}, {Name: "000002.sst", Size: 1}},
		Bytes: 101, RawBytes: 300, Records: 8, Schema: 9, StateFormat: 10, Clock: 11,
	}
}

// TestGoldenSessionLog pins every kind of record of a session.log, and that old
// bytes say the same.
func TestGoldenSessionLog(t *testing.T) {
	m := goldenManifest()
	data, err := appendSession([]byte(sessionMagic), 0,
		attemptRecord(3),
		&snapshotv1.StagedRecord{Record: &snapshotv1.StagedRecord_Manifest{Manifest: &snapshotv1.StagedManifest{
			Transfer: bytes.Repeat([]byte{13}, idBytes), Manifest: m, Source: "s1",
		}}},
		fileRecord(&snapshotv1.StagedFile{File: 1, Size: 1, Xxhash64: 6, Checked: true}),
		progressRecord(&snapshotv1.StagedProgress{File: 0, Offset: 50, DigestState: []byte("state")}),
		&snapshotv1.StagedRecord{Record: &snapshotv1.StagedRecord_Ready{Ready: &snapshotv1.StagedReady{Image: m.Image, Index: m.Index, Term: m.Term}}},
	)
	if err != nil {
		t.Fatal(err)
	}
	old := golden(t, "session", data)
	s, whole := decodeSession(old)
	if whole != len(old) || s.attempt != 3 || s.source != "s1" || !proto.Equal(s.manifest, m) || s.done[1].GetXxhash64() != 6 ||
		s.progress[0].GetOffset() != 50 || string(s.progress[0].GetDigestState()) != "state" || s.ready.GetIndex() != 60 || s.bytes() != 51 {
		t.Errorf("old bytes say %+v, whole are %d of %d", s, whole, len(old))
	}
}

// TestGoldenImage pins the files manifest and expiry of a kept image, and that
// old bytes are read.
func TestGoldenImage(t *testing.T) {
	mem := vfs.NewMem()
	if err := WriteManifest(mem, "", goldenManifest()); err != nil {
		t.Fatal(err)
	}
	if err := writeExpiry(mem, "", time.UnixMilli(1_700_000_000_000), 90*time.Second); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{manifestName, expiryName} {
		data, err := readTestFile(mem, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := writeTestFile(mem, name, golden(t, name, data)); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := ReadManifest(mem, ""); err != nil || !proto.Equal(m, goldenManifest()) {
		t.Errorf("the old manifest says %v, %v", m, err)
	}
	expires, life, err := readExpiry(mem, "")
	if want := time.UnixMilli(1_700_000_090_000); err != nil || !expires.Equal(want) || life != 90*time.Second {
		t.Errorf("the old expiry says %v, %v, %v; want %v", expires, life, err, want)
	}
}

// TestGoldenArchive pins an archive, and that an old one is read. Its content
// does not compress: the codec may get better.
func TestGoldenArchive(t *testing.T) {
	m := goldenManifest()
	m.Kind, m.FromIndex, m.FromTerm = snapshotv1.Kind_KIND_FILES, 0, 0
	c := content{"000001.sst": nil, "000002.sst": []byte{1}}
	for i := range 100 {
		c["000001.sst"] = append(c["000001.sst"], byte(i*i*7+i*31))
	}
	m.Files[0].Verified = false
	data := testArchive(t, &contentImage{m, c})
	old := golden(t, "archive", data)
	mem := vfs.NewMem()
	a, err := ExtractArchive(t.Context(), bytes.NewReader(old), mem, func(*snapshotv1.Manifest) (string, error) { return "out", nil })
	if err != nil || len(a.Manifests) != 1 || !proto.Equal(a.Manifests[0], m) || a.Header.HistoryEpoch != 3 {
		t.Fatalf("the old archive: %+v, %v", a, err)
	}
	for name, want := range c {
		if got, err := readTestFile(mem, "out/"+name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("file %s of the old archive: %x, %v; want %x", name, got, err, want)
		}
	}
}
