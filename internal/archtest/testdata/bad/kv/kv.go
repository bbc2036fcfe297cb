package kv

import (
	_ "testing"

	_ "github.com/cockroachdb/pebble/v2"
	_ "github.com/cockroachdb/pebble/v2/vfs"
	_ "github.com/spf13/cobra"
	_ "github.com/streamraft/streamraft/raftnode/raftnodetest"
	_ "github.com/streamraft/streamraft/raftnode/transport"
	_ "pgregory.net/rapid"
)
