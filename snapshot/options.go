package snapshot

import (
	"strings"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// kindName returns a kind as people and metrics call it.
func kindName(k snapshotv1.Kind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "KIND_"))
}
