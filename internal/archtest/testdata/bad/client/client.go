// Package client has its comment in the wrong file and links raft and a
// database through kv.
package client

import _ "github.com/streamraft/streamraft/kv"
