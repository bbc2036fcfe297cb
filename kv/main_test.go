package kv

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain wants no goroutine left. Those of databases that failed, or failed to
// open, are left by design: what is ignored is exactly their loops. A store that
// a test forgot shows when its shared resources are closed.
func TestMain(m *testing.M) {
	const pebble = "github.com/cockroachdb/pebble/v2"
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction(pebble+".(*cleanupManager).mainLoop"),
		goleak.IgnoreAnyFunction(pebble+".(*ConcurrencyLimitScheduler).periodicGranter"),
		goleak.IgnoreAnyFunction(pebble+"/internal/genericcache.(*shard[...]).releaseLoop"),
		goleak.IgnoreAnyFunction(pebble+".Open"),
		goleak.IgnoreAnyFunction(pebble+"/record.(*LogWriter).flushLoop"),
	)
}
