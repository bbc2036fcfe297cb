package kv

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot/snapshottest"
)

type conformance struct {
	*Store
	tb testing.TB
}

func (c *conformance) Apply(index uint64) error {
	cmd := put(fmt.Sprint("k", index%17), fmt.Sprint("v", index))
	if index%5 == 0 {
		cmd = del(fmt.Sprint("k", index%17))
	}
	_, err := c.Store.Apply([]raftnode.Entry{{Index: index, Term: 1, Clock: int64(index), Data: cmd, Last: true}})
	return err
}
func (c *conformance) Applied() uint64         { return c.AppliedIndex() }
func (c *conformance) Digest() (string, error) { return dump(c.tb, c.Store), nil }

func TestConformance(t *testing.T) {
	snapshottest.Run(t, func(tb testing.TB, fsys vfs.FS, dir string, staged [][]byte) snapshottest.State {
		s := newStore(tb, Options{FS: fsys})
		s.KeepStaged(func() [][]byte { return staged })
		if _, err := s.Open(dir); err != nil {
			tb.Fatal(err)
		}
		return &conformance{s, tb}
	})
}
