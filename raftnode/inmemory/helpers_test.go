package inmemory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// table is a Machine: a map. A command is "key=value", or "key" to delete.
type table struct {
	mu      sync.Mutex
	rows    map[string]string
	saves   int
	onSave  func() error
	restore func() error
}

func newTable() *table { return &table{rows: map[string]string{}} }

func (t *table) Apply(entries []raftnode.Entry) ([]raftnode.Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range entries {
		if key, value, put := strings.Cut(string(e.Data), "="); put {
			t.rows[key] = value
		} else if key != "" {
			delete(t.rows, key)
		}
	}
	return make([]raftnode.Result, len(entries)), nil
}

func (t *table) Save(w io.Writer) error {
	t.mu.Lock()
	rows, onSave := maps.Clone(t.rows), t.onSave
	t.saves++
	t.mu.Unlock()
	if onSave != nil {
		if err := onSave(); err != nil {
			return err
		}
	}
	return saveRows(w, rows)
}

// saveRows writes rows in order with their lengths before them.
func saveRows(w io.Writer, rows map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		for _, s := range []string{key, rows[key]} {
			b := binary.LittleEndian.AppendUint32(nil, uint32(len(s)))
			if _, err := w.Write(append(b, s...)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *table) Restore(r io.Reader) error {
	if t.restore != nil {
		return t.restore()
	}
	read := func() (string, error) {
		var b [4]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return "", err
		}
		s := make([]byte, binary.LittleEndian.Uint32(b[:]))
		_, err := io.ReadFull(r, s)
		return string(s), err
	}
	for {
		key, err := read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if t.rows[key], err = read(); err != nil {
			return err
		}
	}
}

func (t *table) dump() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(t.rows)) {
		fmt.Fprintf(&b, "%q=%q\n", key, t.rows[key])
	}
	return b.String()
}

const stateDir = "state"

// open opens a state machine of tables with small files.
func open(tb testing.TB, fsys vfs.FS, staged ...[]byte) *StateMachine[*table] {
	tb.Helper()
	s, err := tryOpen(fsys, staged...)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func tryOpen(fsys vfs.FS, staged ...[]byte) (*StateMachine[*table], error) {
	s, err := New(Options[*table]{New: newTable, FS: fsys, FileBytes: 4 << 10})
	if err != nil {
		return nil, err
	}
	s.KeepStaged(func() [][]byte { return staged })
	if err := durable.MkdirAll(fsys, stateDir); err != nil {
		return nil, err
	}
	_, err = s.Open(stateDir)
	return s, err
}

func (s *StateMachine[M]) index() uint64 {
	l := s.live.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.applied.Index
}

// entry is the entry of an index; what it does depends on the index only, over
// some 5 MB at 1,000 entries that compress a little.
func entry(index uint64) raftnode.Entry {
	rnd := rand.New(rand.NewPCG(index, 1))
	value := make([]byte, 200+rnd.IntN(800))
	for i := range value {
		value[i] = 'a' + byte(rnd.IntN(16))
	}
	data := fmt.Sprintf("key%d=%s", index%37, value)
	if index%5 == 0 {
		data = fmt.Sprintf("key%d", index%37)
	}
	e := raftnode.Entry{Index: index, Term: 1, Clock: int64(index), Data: []byte(data), Last: true}
	if index%10 == 1 {
		e.Membership = fmt.Appendf(nil, "members at %d", index)
	}
	return e
}

func advance(tb testing.TB, s raftnode.StateMachine, from, to uint64) {
	tb.Helper()
	for i := from; i <= to; i++ {
		if _, err := s.Apply([]raftnode.Entry{entry(i)}); err != nil {
			tb.Fatal(err)
		}
	}
}

// imageOf captures an image into a directory of the same file system.
func imageOf(tb testing.TB, s *StateMachine[*table], fsys vfs.FS, dir string) *snapshotv1.Manifest {
	tb.Helper()
	if err := s.Flush(); err != nil {
		tb.Fatal(err)
	}
	c, err := s.Capture(snapshot.Have{}, s.index())
	if err != nil {
		tb.Fatal(err)
	}
	if err := durable.MkdirAll(fsys, dir); err != nil {
		tb.Fatal(err)
	}
	m, err := c.Write(tb.Context(), dir)
	if err := errors.Join(err, c.Close(), durable.SyncDir(fsys, dir)); err != nil {
		tb.Fatal(err)
	}
	m.Image, m.Group = []byte("0123456789abcdef"), 1
	if err := snapshot.ValidateManifest(m); err != nil {
		tb.Fatal(err)
	}
	return m
}

// prepare stages an image and prepares it.
func prepare(tb testing.TB, s *StateMachine[*table], m *snapshotv1.Manifest, dir string) (snapshot.Sink, error) {
	tb.Helper()
	sink, err := s.Stage(m, dir)
	if err != nil {
		return nil, err
	}
	for _, f := range m.Files {
		if err := sink.CheckFile(tb.Context(), f.Name, false); err != nil {
			return sink, err
		}
	}
	return sink, sink.Prepare(tb.Context())
}

// stateNames lists the state directory but for the marker.
func stateNames(tb testing.TB, fsys vfs.FS) []string {
	tb.Helper()
	names, err := fsys.List(stateDir)
	if err != nil {
		tb.Fatal(err)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == markerName })
}
