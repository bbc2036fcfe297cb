package inmemory

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/snapshot/snapshottest"
)

type conformance struct {
	*StateMachine[*table]
	tb testing.TB
}

func (c *conformance) Apply(index uint64) error {
	advance(c.tb, c.StateMachine, index, index)
	return nil
}
func (c *conformance) Applied() uint64 { return c.index() }
func (c *conformance) Digest() (string, error) {
	l := c.live.Load()
	return fmt.Sprintf("%s%d %d %s", c.Machine().dump(), l.applied.Term, l.applied.Clock, l.applied.Membership), nil
}

func TestConformance(t *testing.T) {
	snapshottest.Run(t, func(tb testing.TB, fsys vfs.FS, dir string, staged [][]byte) snapshottest.State {
		s, err := New(Options[*table]{New: newTable, FS: fsys, FileBytes: 4 << 10})
		if err != nil {
			tb.Fatal(err)
		}
		s.KeepStaged(func() [][]byte { return staged })
		if _, err := s.Open(dir); err != nil {
			tb.Fatal(err)
		}
		return &conformance{s, tb}
	})
}
