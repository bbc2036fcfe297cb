package inmemory

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/durable"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// writeImage writes an image of content to dir.
func writeImage(tb testing.TB, fsys vfs.FS, dir string, fileBytes int64, content []byte) *record {
	tb.Helper()
	if err := durable.MkdirAll(fsys, dir); err != nil {
		tb.Fatal(err)
	}
	w, err := newStreamWriter(fsys, dir, 0x1122334455667788, fileBytes, func() error { return nil })
	if err != nil {
		tb.Fatal(err)
	}
	_, saveErr := w.Write(content)
	r := &record{applied: raftnode.Applied{Index: 7, Term: 3, Clock: 1_700_000_000_000, Membership: []byte("members")}, schema: 2}
	if err := w.finish(r, saveErr); err != nil {
		tb.Fatal(err)
	}
	return r
}

// readImage reads an image; it never returns more than the record says.
func readImage(fsys vfs.FS, dir string) ([]byte, error) {
	r, err := readRecord(fsys, dir, 2)
	if err != nil {
		return nil, err
	}
	s, err := newStreamReader(fsys, dir, r, func() error { return nil })
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(s)
	return content, errors.Join(err, s.close())
}

// TestFormat: version 1 stays readable as it is, byte by byte. The blocks' content
// is the encoder's and may change with it, so the image is of what does not
// compress but for one block.
func TestFormat(t *testing.T) {
	const golden = "testdata/image_v1.hex"
	fsys := vfs.NewMem()
	want := append([]byte("does not compress"), bytes.Repeat([]byte("a"), 4096)...)
	writeImage(t, fsys, "image", 64<<10, want)
	if *update {
		var b strings.Builder
		for _, name := range []string{recordName, dataName(0)} {
			content, err := durable.ReadFile(fsys, "image/"+name, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s %s\n", name, hex.EncodeToString(content))
		}
		if err := os.WriteFile(golden, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	kept := vfs.NewMem()
	if err := durable.MkdirAll(kept, "image"); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		content, err := hex.DecodeString(digits)
		if err == nil {
			err = durable.WriteFile(kept, "image/"+name, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := readImage(kept, "image")
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the kept image: %d bytes, %v", len(got), err)
	}
	r, err := readRecord(kept, "image", 2)
	if err != nil || r.applied.Index != 7 || r.applied.Term != 3 || r.applied.Clock != 1_700_000_000_000 || string(r.applied.Membership) != "members" || r.schema != 2 || r.raw != uint64(len(want)) {
		t.Errorf("the kept record: %+v, %v", r, err)
	}
	// What does not depend on the encoder is written as before.
	old, err := durable.ReadFile(kept, "image/"+dataName(0), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	now, err := durable.ReadFile(fsys, "image/"+dataName(0), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(old[:fileHeaderSize+4], now[:fileHeaderSize+4]) {
		t.Errorf("the header is written as\n%x and was\n%x", now[:fileHeaderSize], old[:fileHeaderSize])
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

// TestRoundTrip: sizes around the bounds of blocks and files.
func TestRoundTrip(t *testing.T) {
	const block = minFileBytes
	for _, size := range []int{0, 1, block - 1, block, block + 1, 3 * block, 10*block + 5, 3 << 20} {
		content := make([]byte, size)
		for i := range content {
			content[i] = byte(i * i >> 3)
		}
		fsys := vfs.NewMem()
		r := writeImage(t, fsys, "image", minFileBytes, content)
		if got, err := readImage(fsys, "image"); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes: %d came back, %v", size, len(got), err)
		}
		for i, f := range r.files {
			if f.size > 2*minFileBytes+blockHeaderSize+fileHeaderSize {
				t.Errorf("%d bytes: file %d has %d", size, i, f.size)
			}
		}
	}
}

// TestDamage: every flipped bit and every cut of every file is found, and so are
// files of other images and files that changed places.
func TestDamage(t *testing.T) {
	fsys := vfs.NewMem()
	content := make([]byte, 12<<10)
	for i := range content {
		content[i] = byte(i*i>>3) ^ byte(i>>7)
	}
	r := writeImage(t, fsys, "image", minFileBytes, content)
	if len(r.files) < 2 {
		t.Fatalf("only %d files", len(r.files))
	}
	check := func(what string) {
		t.Helper()
		got, err := readImage(fsys, "image")
		if !errors.Is(err, snapshot.ErrCorrupt) {
			t.Errorf("%s: %d bytes, %v", what, len(got), err)
		}
	}
	names := []string{recordName, dataName(0), dataName(1)}
	files := map[string][]byte{}
	for _, name := range names {
		data, err := durable.ReadFile(fsys, "image/"+name, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = data
	}
	put := func(name string, data []byte) {
		t.Helper()
		// The memory file system spoils what it was given.
		if err := durable.WriteFile(fsys, "image/"+name, bytes.Clone(data)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		data := files[name]
		step := max(1, len(data)/300)
		for at := 0; at < len(data); at += step {
			flipped := bytes.Clone(data)
			flipped[at] ^= 1 << (at % 8)
			put(name, flipped)
			check(fmt.Sprintf("%s with a bit flipped at %d", name, at))
			put(name, data[:at])
			check(fmt.Sprintf("%s cut at %d", name, at))
		}
		put(name, append(bytes.Clone(data), 0))
		check(name + " with a byte more")
		if err := fsys.Remove("image/" + name); err != nil {
			t.Fatal(err)
		}
		check("without " + name)
		put(name, data)
	}
	put(dataName(0), files[dataName(1)])
	check("the second file in the place of the first")
	put(dataName(0), files[dataName(0)])
	if got, err := readImage(fsys, "image"); err != nil || !bytes.Equal(got, content) {
		t.Errorf("and undamaged: %v", err)
	}
}

// TestLyingLengths: headers with right checksums whose lengths are absurd are
// refused before memory is taken for them.
func TestLyingLengths(t *testing.T) {
	for what, change := range map[string]func(b []byte){
		"holds 0":              func(b []byte) { binary.LittleEndian.PutUint32(b, 0) },
		"holds 4 GiB":          func(b []byte) { binary.LittleEndian.PutUint32(b, ^uint32(0)) },
		"holds over a block":   func(b []byte) { binary.LittleEndian.PutUint32(b, maxBlockBytes+1) },
		"stores 4 GiB":         func(b []byte) { binary.LittleEndian.PutUint32(b[4:], ^uint32(0)) },
		"stores more than all": func(b []byte) { binary.LittleEndian.PutUint32(b[4:], binary.LittleEndian.Uint32(b)+1) },
		"unknown codec":        func(b []byte) { binary.LittleEndian.PutUint32(b[8:], 2) },
		"stored as it is":      func(b []byte) { binary.LittleEndian.PutUint32(b[8:], codecNone) },
		"holds more":           func(b []byte) { binary.LittleEndian.PutUint32(b, maxBlockBytes) },
	} {
		fsys := vfs.NewMem()
		r := writeImage(t, fsys, "image", 64<<10, bytes.Repeat([]byte("a"), 5000))
		data, err := durable.ReadFile(fsys, "image/"+dataName(0), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		b := data[fileHeaderSize:]
		change(b)
		binary.LittleEndian.PutUint32(b[12:], blockSum(r.salt, 0, b[:12], b[blockHeaderSize:]))
		if err := durable.WriteFile(fsys, "image/"+dataName(0), data); err != nil {
			t.Fatal(err)
		}
		if _, err := readImage(fsys, "image"); !errors.Is(err, snapshot.ErrCorrupt) {
			t.Errorf("a block that %s: %v", what, err)
		}
	}
}

// TestNewer: what a newer release wrote is told from damage.
func TestNewer(t *testing.T) {
	fsys := vfs.NewMem()
	r := writeImage(t, fsys, "image", 64<<10, []byte("content"))
	if _, err := readRecord(fsys, "image", 1); !errors.Is(err, ErrNewer) {
		t.Errorf("a higher schema: %v", err)
	}
	newer := recordFormat()
	newer.Version++
	if err := durable.WriteRecord(fsys, "image/"+recordName, newer, r.encode()); err != nil {
		t.Fatal(err)
	}
	if _, err := readImage(fsys, "image"); !errors.Is(err, ErrNewer) {
		t.Errorf("a newer record: %v", err)
	}
	if err := durable.WriteRecord(fsys, "image/"+recordName, recordFormat(), r.encode()); err != nil {
		t.Fatal(err)
	}
	data, err := durable.ReadFile(fsys, "image/"+dataName(0), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(data[8:], dataVersion+1)
	binary.LittleEndian.PutUint32(data[32:], crc32.Checksum(data[:32], castagnoli()))
	if err := durable.WriteFile(fsys, "image/"+dataName(0), data); err != nil {
		t.Fatal(err)
	}
	if _, err := readImage(fsys, "image"); !errors.Is(err, ErrNewer) {
		t.Errorf("a newer data file: %v", err)
	}
}

// FuzzRecord: what decodes encodes to the same bytes.
func FuzzRecord(f *testing.F) {
	f.Add((&record{applied: raftnode.Applied{Index: 1, Term: 1}, schema: 1}).encode())
	f.Add((&record{
		applied: raftnode.Applied{Index: 9, Term: 2, Clock: -1, Membership: []byte("m")}, schema: 3,
		salt: 5, raw: 100, blocks: 2, files: []dataFile{{60, 1}, {70, 2}},
	}).encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRecord(data)
		if err != nil {
			if !errors.Is(err, snapshot.ErrCorrupt) {
				t.Fatalf("the error is %v", err)
			}
			return
		}
		if again := r.encode(); !bytes.Equal(again, data) {
			t.Fatalf("%x decodes and encodes to %x", data, again)
		}
	})
}

// FuzzData: a data file of any content is refused or read within the bounds of
// its blocks, whatever its checksums say.
func FuzzData(f *testing.F) {
	fsys := vfs.NewMem()
	for _, content := range []string{"a", strings.Repeat("a", 5000), "does not compress"} {
		writeImage(f, fsys, "image", 64<<10, []byte(content))
		data, err := durable.ReadFile(fsys, "image/"+dataName(0), 1<<20)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fsys := vfs.NewMem()
		r := &record{salt: 0x1122334455667788, files: []dataFile{{size: uint64(len(data))}}}
		if len(data) >= fileHeaderSize {
			binary.LittleEndian.PutUint32(data[32:], crc32.Checksum(data[:32], castagnoli()))
		}
		// With right checksums, or no input would get further.
		for at, n := fileHeaderSize, uint64(0); at+blockHeaderSize <= len(data); n++ {
			b := data[at:]
			stored := uint64(binary.LittleEndian.Uint32(b[4:]))
			if stored > uint64(len(b)-blockHeaderSize) {
				break
			}
			binary.LittleEndian.PutUint32(b[12:], blockSum(r.salt, n, b[:12], b[blockHeaderSize:blockHeaderSize+int(stored)]))
			at += blockHeaderSize + int(stored)
		}
		if err := durable.WriteFile(fsys, dataName(0), data); err != nil {
			t.Fatal(err)
		}
		s, err := newStreamReader(fsys, "", r, func() error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		read, err := io.Copy(io.Discard, onlyReader{s})
		if limit := int64(len(data)) / (blockHeaderSize + 1) * maxBlockBytes; read > limit {
			t.Errorf("%d bytes out of %d", read, len(data))
		}
		if err != nil && !errors.Is(err, snapshot.ErrCorrupt) && !errors.Is(err, ErrNewer) {
			t.Errorf("the error is %v", err)
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
	})
}
