package raftnode

import (
	_ "go.etcd.io/raft/v3"

	_ "github.com/cockroachdb/pebble/v2/vfs"

	_ "github.com/cockroachdb/pebble/v2"

	_ "github.com/streamraft/streamraft/kv"
	_ "github.com/streamraft/streamraft/raftnode/transport"
)
