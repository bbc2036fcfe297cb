package snapshottest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// toy is the smallest state machine with images and deltas: a map that is
// written whole. Its faults are what the suite must catch.
type toy struct {
	fsys  vfs.FS
	dir   string
	fault string

	state   toyState
	changed map[uint64][]string // index -> keys
}

type toyState struct {
	Index uint64
	Keys  map[string]uint64
}

func openToy(fault string) Open {
	return func(tb testing.TB, fsys vfs.FS, dir string, _ [][]byte) State {
		s := &toy{fsys: fsys, dir: dir, fault: fault, state: toyState{Keys: map[string]uint64{}}, changed: map[uint64][]string{}}
		data, err := durable.ReadFile(fsys, s.path(), 1<<20)
		if err == nil {
			err = json.Unmarshal(data, &s.state)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			tb.Fatal(err)
		}
		return s
	}
}

func (s *toy) path() string { return s.fsys.PathJoin(s.dir, "state") }

func (s *toy) Apply(index uint64) error {
	s.state.Index = index
	key := fmt.Sprint("k", index%17)
	if index%5 == 0 {
		delete(s.state.Keys, key)
	} else {
		s.state.Keys[key] = index
	}
	s.changed[index] = []string{key}
	return nil
}

func (s *toy) Flush() error { return s.write(s.state) }

func (s *toy) write(state toyState) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return durable.WriteFile(s.fsys, s.path(), data)
}

func (s *toy) Applied() uint64 { return s.state.Index }

func (s *toy) Digest() (string, error) {
	data, err := json.Marshal(s.state.Keys)
	return string(data), err
}

func (s *toy) Close() error { return nil }

// toyCapture is a pinned state.
type toyCapture struct {
	s     *toy
	from  uint64
	delta map[string]*uint64
	state toyState
}

func (s *toy) Capture(have snapshot.Have, minIndex uint64) (snapshot.Capture, error) {
	if s.state.Index < minIndex {
		return nil, snapshot.ErrTooOld
	}
	c := &toyCapture{s: s, from: have.Index, state: toyState{s.state.Index, maps.Clone(s.state.Keys)}}
	if s.fault == "late" {
		c.state.Keys = s.state.Keys
	}
	if have.Index == 0 {
		return c, nil
	}
	c.delta = map[string]*uint64{}
	for i := have.Index + 1; i <= s.state.Index; i++ {
		for _, key := range s.changed[i] {
			if v, ok := s.state.Keys[key]; ok {
				c.delta[key] = &v
			} else if s.fault != "deletes" {
				c.delta[key] = nil
			}
		}
	}
	return c, nil
}

func (c *toyCapture) Write(_ context.Context, dir string) (*snapshotv1.Manifest, error) {
	m := &snapshotv1.Manifest{Kind: snapshotv1.Kind_KIND_FILES, Index: c.state.Index, Term: 1, Schema: 1}
	var content any = c.state.Keys
	if c.delta != nil {
		m.Kind, m.FromIndex, m.FromTerm = snapshotv1.Kind_KIND_RECORDS, c.from, 1
		content = c.delta
	}
	data, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	m.Files, m.Bytes = []*snapshotv1.File{{Name: "content", Size: uint64(len(data))}}, uint64(len(data))
	return m, durable.WriteFile(c.s.fsys, c.s.fsys.PathJoin(dir, "content"), data)
}

func (c *toyCapture) Close() error { return nil }

// toySink is an image being staged.
type toySink struct {
	s    *toy
	m    *snapshotv1.Manifest
	dir  string
	next toyState
}

func (s *toy) Stage(m *snapshotv1.Manifest, dir string) (snapshot.Sink, error) {
	if m.Kind == snapshotv1.Kind_KIND_RECORDS && s.fault != "legality" &&
		(m.Schema != 1 || m.FromTerm != 1 || s.state.Index < m.FromIndex || s.state.Index > m.Index) {
		return nil, fmt.Errorf("%w: a delta from %d of term %d", snapshot.ErrUnfit, m.FromIndex, m.FromTerm)
	}
	return &toySink{s: s, m: m, dir: dir}, nil
}

func (k *toySink) CheckFile(context.Context, string, bool) error { return nil }

func (k *toySink) Prepare(context.Context) error {
	data, err := durable.ReadFile(k.s.fsys, k.s.fsys.PathJoin(k.dir, "content"), 1<<20)
	if err != nil {
		return err
	}
	k.next = toyState{k.m.Index, map[string]uint64{}}
	if k.m.Kind != snapshotv1.Kind_KIND_RECORDS {
		err := json.Unmarshal(data, &k.next.Keys)
		if k.s.fault == "prepare" {
			k.s.state = k.next
		}
		return err
	}
	var delta map[string]*uint64
	if err := json.Unmarshal(data, &delta); err != nil {
		return err
	}
	maps.Copy(k.next.Keys, k.s.state.Keys)
	for key, v := range delta {
		if v == nil {
			delete(k.next.Keys, key)
		} else {
			k.next.Keys[key] = *v
		}
	}
	return nil
}

func (k *toySink) Discard() error {
	if k.s.fault == "discard" {
		k.s.state = k.next
	}
	return nil
}

func (s *toy) Install(sink snapshot.Sink) error {
	next := sink.(*toySink).next
	switch s.fault {
	case "torn":
		// The index before the content.
		if err := s.write(toyState{next.Index, s.state.Keys}); err != nil {
			return err
		}
	case "volatile":
		s.state = next
		return nil
	}
	if err := s.write(next); err != nil {
		return err
	}
	s.state = next
	return nil
}

func TestSuite(t *testing.T) { Run(t, openToy("")) }

// failures records what a check says.
type failures struct {
	testing.TB
	failed bool
}

func (f *failures) Error(...any)          { f.failed = true }
func (f *failures) Errorf(string, ...any) { f.failed = true }
func (f *failures) Fatal(...any)          { f.failed = true; panic(f) }
func (f *failures) Fatalf(string, ...any) { f.failed = true; panic(f) }

// TestSuiteCatches: each fault is found by the check it is for.
func TestSuiteCatches(t *testing.T) {
	for fault, check := range map[string]func(testing.TB, Open){
		"late": OneIndex, "deletes": Delta, "legality": DeltaLegality, "prepare": PrepareAfterRestart,
		"discard": Discard, "torn": InstallCrash, "volatile": RoundTrip,
	} {
		t.Run(fault, func(t *testing.T) {
			f := &failures{TB: t}
			func() {
				defer func() {
					if r := recover(); r != nil && r != any(f) {
						panic(r)
					}
				}()
				check(f, openToy(fault))
			}()
			if !f.failed {
				t.Error("not caught")
			}
		})
	}
}
