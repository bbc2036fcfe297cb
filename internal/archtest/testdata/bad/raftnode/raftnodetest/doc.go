// Package raftnodetest may import anything.
package raftnodetest

import (
	_ "testing"

	_ "github.com/streamraft/streamraft/server"
	_ "pgregory.net/rapid"
)
