package inmemory

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/durable"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// blob is a machine whose Save and Restore cost next to nothing, so that what is
// measured is the adapter. Half of it does not compress.
type blob struct{ data []byte }

func newBlob(size int) *blob {
	rnd := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, size)
	for i := 0; i+16 <= size; i += 16 {
		binary.LittleEndian.PutUint64(data[i:], rnd.Uint64())
		copy(data[i+8:], "repeated")
	}
	return &blob{data}
}

func (b *blob) Apply(entries []raftnode.Entry) ([]raftnode.Result, error) {
	return make([]raftnode.Result, len(entries)), nil
}

func (b *blob) Save(w io.Writer) error {
	_, err := w.Write(b.data)
	return err
}

func (b *blob) Restore(r io.Reader) error {
	_, err := io.ReadFull(r, b.data)
	return err
}

// openBlob opens a state of 128 MiB on the disk.
func openBlob(b *testing.B, dir string, newMachine func(size int) *blob) *StateMachine[*blob] {
	b.Helper()
	const size = 128 << 20
	s, err := New(Options[*blob]{New: func() *blob { return newMachine(size) }})
	if err == nil {
		err = durable.MkdirAll(vfs.Default, dir)
	}
	if err == nil {
		_, err = s.Open(dir)
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	b.SetBytes(size)
	return s
}

// BenchmarkSave saves, compresses and syncs; MB/s of what Save wrote.
func BenchmarkSave(b *testing.B) {
	s := openBlob(b, b.TempDir()+"/state", newBlob)
	stored := uint64(0)
	for index := uint64(1); b.Loop(); index++ {
		_, err := s.Apply([]raftnode.Entry{{Index: index, Term: 1, Last: true}})
		if err := errors.Join(err, s.Flush()); err != nil {
			b.Fatal(err)
		}
		stored = 0
		for _, f := range s.kept.record.files {
			stored += f.size
		}
	}
	b.ReportMetric(float64(stored)/(128<<20), "stored/raw")
}

// BenchmarkTake stages an image, restores it and installs it; MB/s of what Save
// wrote. The files are there already, as a transfer leaves them.
func BenchmarkTake(b *testing.B) {
	dir := b.TempDir()
	source := openBlob(b, dir+"/source", newBlob)
	_, err := source.Apply([]raftnode.Entry{{Index: 1, Term: 1, Last: true}})
	if err := errors.Join(err, source.Flush()); err != nil {
		b.Fatal(err)
	}
	s := openBlob(b, dir+"/state", func(size int) *blob { return &blob{make([]byte, size)} })
	for b.Loop() {
		b.StopTimer()
		c, err := source.Capture(snapshot.Have{}, 1)
		if err == nil {
			err = durable.MkdirAll(vfs.Default, dir+"/inbox/files")
		}
		if err != nil {
			b.Fatal(err)
		}
		m, err := c.Write(b.Context(), dir+"/inbox/files")
		if err := errors.Join(err, c.Close()); err != nil {
			b.Fatal(err)
		}
		m.Image = snapshot.NewID()
		b.StartTimer()
		sink, err := s.Stage(m, dir+"/inbox/files")
		if err == nil {
			err = sink.Prepare(b.Context())
		}
		if err == nil {
			err = s.Install(sink)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
