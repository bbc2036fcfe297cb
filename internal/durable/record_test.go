package durable

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func testFormat() Format {
	return Format{Magic: [8]byte([]byte("SRTEST01")), Version: 3, Limit: 64}
}

func TestRecordOnDisk(t *testing.T) {
	// On the real file system too, with its own errors and directory syncs.
	dir := filepath.Join(t.TempDir(), "x", "y")
	if err := MkdirAll(vfs.Default, dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	path := filepath.Join(dir, "RECORD")
	if _, _, err := ReadRecord(vfs.Default, path, testFormat()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	for _, payload := range []string{"first", "", strings.Repeat("x", 64)} {
		if err := WriteRecord(vfs.Default, path, testFormat(), []byte(payload)); err != nil {
			t.Fatal(err)
		}
		got, version, err := ReadRecord(vfs.Default, path, testFormat())
		if err != nil || version != 3 || string(got) != payload {
			t.Errorf("%q: got %q, version %d, %v", payload, got, version, err)
		}
	}
	if err := MkdirAll(vfs.Default, filepath.Join(path, "below")); err == nil {
		t.Error("a directory below a file was made")
	}
	if err := MkdirAll(vfs.Default, path); err == nil || !strings.Contains(err.Error(), "is a file") {
		t.Errorf("a directory in place of a file: %v", err)
	}
}

func TestRecordLimits(t *testing.T) {
	mem := vfs.NewMem()
	if err := WriteRecord(mem, "r", testFormat(), make([]byte, 65)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("writing 65 bytes: %v", err)
	}
	if _, err := mem.Stat("r"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused payload was written: %v", err)
	}
	if err := WriteFile(mem, "r", make([]byte, headerSize+65)); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(mem, "r", headerSize+64); !errors.Is(err, ErrTooLarge) {
		t.Errorf("reading: %v", err)
	}
	var bad *RecordError
	if _, _, err := ReadRecord(mem, "r", testFormat()); !errors.As(err, &bad) || bad.Path != "r" {
		t.Errorf("reading a record: %v", err)
	}
}

// TestGoldenRecord pins the bytes: a change here needs a new version of the
// format, since files in the field have the old ones.
func TestGoldenRecord(t *testing.T) {
	want := "SRTEST01\x03\x00\x00\x00\x05\x00\x00\x00\x2b\x94\xbc\x56hello"
	if got := encodeRecord(testFormat(), []byte("hello")); string(got) != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestEveryFlippedBit damages each bit of a record in turn.
func TestEveryFlippedBit(t *testing.T) {
	good := encodeRecord(testFormat(), []byte("hello"))
	for bit := range len(good) * 8 {
		data := bytes.Clone(good)
		data[bit/8] ^= 1 << (bit % 8)
		if payload, _, bad := decodeRecord(testFormat(), data); bad == nil {
			t.Errorf("bit %d flipped: accepted as %q", bit, payload)
		}
	}
	for length := range good {
		if _, _, bad := decodeRecord(testFormat(), good[:length]); bad == nil {
			t.Errorf("cut to %d bytes: accepted", length)
		}
	}
	if _, _, bad := decodeRecord(testFormat(), append(bytes.Clone(good), 0)); bad == nil {
		t.Error("a byte too many: accepted")
	}
}

func TestRecordErrorSaysWhatToDo(t *testing.T) {
	newer := testFormat()
	newer.Version = 4
	other := testFormat()
	other.Magic = [8]byte([]byte("SROTHER1"))
	flipped := encodeRecord(testFormat(), []byte("hello"))
	flipped[len(flipped)-1]++
	for _, c := range []struct {
		name   string
		data   []byte
		offset int64
		says   []string
	}{
		{"empty", nil, 0, []string{"ends after 0 bytes", "restore the file"}},
		{"other kind", encodeRecord(other, nil), 0, []string{`"SROTHER1"`, `"SRTEST01"`, "right directory"}},
		{"damaged", flipped, checksumOffset, []string{"checksum", "restore the file"}},
		{"newer", encodeRecord(newer, nil), versionOffset, []string{"version 4", "1 to 3", "use the release"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := vfs.NewMem()
			if err := WriteFile(mem, "dir-less", c.data); err != nil {
				t.Fatal(err)
			}
			_, _, err := ReadRecord(mem, "dir-less", testFormat())
			var bad *RecordError
			if !errors.As(err, &bad) {
				t.Fatalf("not a *RecordError: %v", err)
			}
			if bad.Path != "dir-less" || bad.Offset != c.offset || bad.Newer != (c.name == "newer") {
				t.Errorf("path %q, offset %d, newer %t", bad.Path, bad.Offset, bad.Newer)
			}
			for _, part := range append(c.says, "dir-less") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in: %v", part, err)
				}
			}
		})
	}
}

// FuzzReadRecord looks for input that is accepted and then is not exactly what
// would be written.
func FuzzReadRecord(f *testing.F) {
	f.Add([]byte{})
	f.Add(encodeRecord(testFormat(), nil))
	f.Add(encodeRecord(testFormat(), []byte("hello")))
	f.Add(encodeRecord(Format{Magic: testFormat().Magic, Version: 9}, []byte("newer")))
	f.Add(append(encodeRecord(testFormat(), []byte("hello")), 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		payload, version, bad := decodeRecord(testFormat(), data)
		if bad != nil {
			if payload != nil || bad.Reason == "" || bad.Hint == "" || bad.Offset > int64(len(data)) {
				t.Errorf("%q, %+v", payload, bad)
			}
			return
		}
		format := testFormat()
		format.Version = version
		if again := encodeRecord(format, payload); !bytes.Equal(again, data) {
			t.Errorf("read %q as version %d, written again %q", data, version, again)
		}
	})
}
