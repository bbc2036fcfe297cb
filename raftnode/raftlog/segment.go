package raftlog

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// segment is one segment file. All fields but pins belong to the append
// goroutine; number, file, name and size do not change while it is in use.
type segment struct {
	number uint64
	file   vfs.File
	name   string // path
	size   int64

	offset int64  // where the next batch goes; the end of the last one
	head   uint64 // number of its head batch

	live      int64  // bytes of records of live entries
	lastDeath uint64 // last batch that made an entry in it dead

	sparseSince uint64 // active segment when less than a quarter was found alive; 0: not yet
	unmovable   bool   // an entry to be moved cannot be read

	// pins counts reads that use the file. A pin is taken under the lock of a
	// group with a live entry here, so none comes once live is 0.
	pins atomic.Int64
}

const (
	segmentSuffix = ".seg"
	sparePrefix   = "spare-"
)

func segmentName(number uint64) string { return fmt.Sprintf("%012d%s", number, segmentSuffix) }

func spareName(number uint64) string { return fmt.Sprintf("%s%d", sparePrefix, number) }

// parseSegmentName returns the number of a segment's file name.
func parseSegmentName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil && n > 0 && name == segmentName(n)
}
