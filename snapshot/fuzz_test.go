package snapshot

import (
	"bytes"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// FuzzManifest: what decodes is valid, and encodes to something that decodes to
// the same.
func FuzzManifest(f *testing.F) {
	for _, m := range []*snapshotv1.Manifest{scriptManifest(1), scriptManifest(1, 2, 3), {}, {Files: []*snapshotv1.File{{Name: "..", Size: 1 << 63}}}} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeManifest(data)
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if err := CheckFileName(file.Name); err != nil || bytes.ContainsAny([]byte(file.Name), "/\\\x00") {
				t.Fatalf("%q: %v", file.Name, err)
			}
		}
		again, err := encodeManifest(m)
		if err != nil {
			t.Fatal(err)
		}
		if m2, err := decodeManifest(again); err != nil || !proto.Equal(m, m2) {
			t.Fatalf("%v, then %v, %v", m, m2, err)
		}
		fsys := vfs.NewMem()
		if err := WriteManifest(fsys, "", m); err != nil {
			t.Fatal(err)
		}
		if m2, err := ReadManifest(fsys, ""); err != nil || !proto.Equal(m, m2) {
			t.Fatalf("%v, then %v, %v", m, m2, err)
		}
	})
}

// sessionSeed is a log with every kind of record.
func sessionSeed(t testing.TB) []byte {
	m := scriptManifest(100, 200)
	data, err := appendSession([]byte(sessionMagic), 0,
		attemptRecord(3),
		&snapshotv1.StagedRecord{Record: &snapshotv1.StagedRecord_Manifest{Manifest: &snapshotv1.StagedManifest{Transfer: NewID(), Manifest: m, Source: "s1"}}},
		progressRecord(&snapshotv1.StagedProgress{File: 1, Offset: 50, DigestState: []byte("state")}),
		fileRecord(&snapshotv1.StagedFile{File: 0, Size: 100, Xxhash64: 5}),
		fileRecord(&snapshotv1.StagedFile{File: 1, Size: 200, Xxhash64: 6, Checked: true}),
		&snapshotv1.StagedRecord{Record: &snapshotv1.StagedRecord_Ready{Ready: &snapshotv1.StagedReady{Image: m.Image, Index: m.Index, Term: m.Term}}},
	)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// FuzzSessionLog: whatever a session log holds, what is read of it is a prefix
// whose records say the same when they are written again.
func FuzzSessionLog(f *testing.F) {
	seed := sessionSeed(f)
	f.Add(seed)
	f.Add(seed[:len(seed)-3])
	f.Add([]byte{})
	f.Add(append(seed, 0, 0, 0, 0, 0, 0, 0, 0))
	for _, r := range []*snapshotv1.StagedRecord{
		attemptRecord(1 << 63), progressRecord(&snapshotv1.StagedProgress{File: 1, Offset: 7}), fileRecord(&snapshotv1.StagedFile{File: 9, Size: 1 << 60}),
	} {
		payload, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		// Hardly any change keeps the checksum right, so what is no log stands behind
		// a good one as a record.
		if r := new(snapshotv1.StagedRecord); !bytes.HasPrefix(data, []byte(sessionMagic)) && proto.Unmarshal(data, r) == nil {
			more, err := appendSession(nil, int64(len(seed)), r)
			if err != nil {
				t.Fatal(err)
			}
			data = append(bytes.Clone(seed), more...)
		}
		s, whole := decodeSession(data)
		if whole > len(data) {
			t.Fatal(whole)
		}
		if s.manifest != nil {
			for no, file := range s.done {
				if int(no) >= len(s.manifest.Files) || file.Size != s.manifest.Files[no].Size {
					t.Fatalf("file %d: %v", no, file)
				}
			}
			if s.bytes() > s.manifest.Bytes {
				t.Fatal("more than the image")
			}
		}
		compact, err := appendSession([]byte(sessionMagic), 0, s.records()...)
		if err != nil {
			t.Fatal(err)
		}
		again, n := decodeSession(compact)
		if n != len(compact) || again.bytes() != s.bytes() || again.attempt != s.attempt || (again.ready == nil) != (s.ready == nil) || !proto.Equal(again.manifest, s.manifest) {
			t.Fatalf("%+v, then %+v", s, again)
		}
	})
}

// FuzzChunk: a chunk that is let through can be unpacked within its length, and
// lies within its file.
func FuzzChunk(f *testing.F) {
	sum := newChunkSum(make([]byte, idBytes), 1)
	m := scriptManifest(1000, 2000)
	p, err := newPacker()
	if err != nil {
		f.Fatal(err)
	}
	for i := range 2 {
		c := &snapshotv1.Chunk{Seq: 1, File: uint32(i), Offset: 10}
		p.pack(c, make([]byte, 500))
		if i == 0 {
			c.Codec, c.Data = snapshotv1.Codec_CODEC_NONE, make([]byte, 500)
		}
		data, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := new(snapshotv1.Chunk)
		if proto.Unmarshal(data, c) != nil {
			return
		}
		c.Crc32C = sum.of(c) // else hardly any gets beyond
		if sum.checkChunk(c, m, 1024) != nil {
			return
		}
		if size := m.Files[c.File].Size; c.Offset+uint64(c.RawLen) > size {
			t.Fatalf("%d bytes at %d of %d", c.RawLen, c.Offset, size)
		}
		var u unpacker
		defer u.close()
		raw, err := u.unpack(c)
		if err == nil && (len(raw) != int(c.RawLen) || len(raw) > 1024) {
			t.Fatalf("%d bytes for %d", len(raw), c.RawLen)
		}
	})
}

// TestSessionLogFlips: a flipped bit ends the log there and invents nothing.
func TestSessionLogFlips(t *testing.T) {
	seed := sessionSeed(t)
	all, whole := decodeSession(seed)
	if whole != len(seed) || all.ready == nil || len(all.done) != 2 || all.attempt != 3 {
		t.Fatalf("%+v", all)
	}
	for bit := range 8 * len(seed) {
		data := bytes.Clone(seed)
		data[bit/8] ^= 1 << (bit % 8)
		if s, whole := decodeSession(data); whole > bit/8 || s.ready != nil {
			t.Fatalf("bit %d: %d bytes are whole, %+v", bit, whole, s)
		}
	}
}

// FuzzResponse: the decoder for chunks agrees with the generated one.
func FuzzResponse(f *testing.F) {
	for _, m := range []*snapshotv1.FetchResponse{
		{Message: &snapshotv1.FetchResponse_Chunk{Chunk: &snapshotv1.Chunk{Seq: 1, File: 2, Offset: 3, Codec: 1, RawLen: 4, Data: []byte("data"), Crc32C: 5}}},
		{Message: &snapshotv1.FetchResponse_Manifest{Manifest: scriptManifest(1)}},
		{Message: &snapshotv1.FetchResponse_Keepalive{Keepalive: &snapshotv1.Keepalive{Paced: true}}},
		{},
	} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b := newBuffers(1)
		b.put(bytes.Repeat([]byte{0xff}, 100))
		got, err := decodeResponse(data, b)
		want := new(snapshotv1.FetchResponse)
		wantErr := proto.Unmarshal(data, want)
		if err == nil && wantErr != nil {
			t.Fatalf("decoded %v; %v", got, wantErr)
		}
		if err != nil {
			if wantErr == nil && len(want.GetChunk().GetData()) <= MaxChunkBytes {
				t.Fatalf("%v; it is %v", err, want)
			}
			return
		}
		// Unknown fields may be kept or not.
		if c := want.GetChunk(); c != nil && got.GetChunk() != nil {
			for _, m := range []proto.Message{want, c, got, got.GetChunk()} {
				m.ProtoReflect().SetUnknown(nil)
			}
			if !proto.Equal(got, want) {
				t.Fatalf("%v; it is %v", got, want)
			}
		}
	})
}
