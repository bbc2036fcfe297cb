package kv

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"
)

// TestAbandonedTable: a table that is given up while its writer still has blocks
// on their way to the file. The writer's goroutine is gone before the file is.
func TestAbandonedTable(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, Options{FS: fs})
	before := goleak.IgnoreCurrent()
	for i := range 50 {
		w := &tableWriter{
			fs: fs, prefix: fmt.Sprint("t", i), target: 1 << 30, budget: &deltaBudget{limit: 1 << 20},
			opts: s.current.Load().pebbleOptions().MakeWriterOptions(0, s.current.Load().db.TableFormat()),
		}
		var err error
		for row := 0; err == nil; row++ {
			err = w.set(fmt.Appendf(nil, "s/%06d", row), make([]byte, 8<<10))
		}
		if err := w.abandon(); err != nil {
			t.Fatal(err)
		}
	}
	goleak.VerifyNone(t, before)
}
