package snapshot

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// NewID returns a random id of 16 bytes for a transfer or an image. Random
// numbers need no agreement between leaders, and a restored cluster never meets
// the ids of its former life.
func NewID() []byte {
	id := make([]byte, idBytes)
	rand.Read(id) // never fails; see crypto/rand
	return id
}

// FormatID returns an id as the 32 hexadecimal digits it has in paths, logs and
// commands.
func FormatID(id []byte) string { return hex.EncodeToString(id) }

// ParseID reads what FormatID wrote.
func ParseID(s string) ([]byte, error) {
	id, err := hex.DecodeString(s)
	if err != nil || len(id) != idBytes || FormatID(id) != s {
		return nil, fmt.Errorf("snapshot: %q is not an id of %d lower-case hexadecimal digits", s, 2*idBytes)
	}
	return id, nil
}
