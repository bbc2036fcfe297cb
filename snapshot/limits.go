package snapshot

import "time"

// Limits of what comes from a peer or from a disk. Each is checked before memory
// is taken or a file is made. A sender keeps to them, a receiver refuses what
// does not.
const (
	// MaxFiles of an image: a store of 16 TiB in tables of 256 MiB. Their names
	// and sizes stay within MaxManifestBytes.
	MaxFiles = 1 << 16

	// MaxManifestBytes bounds an encoded manifest. It travels in one message.
	MaxManifestBytes = 6 << 20

	// MaxFileName is the length of a file's name in bytes.
	MaxFileName = 128

	// MaxFileBytes is the size of one file: 16 TiB, what ext4 can hold.
	MaxFileBytes = 16 << 40

	// MaxImageBytes is the size of all files of an image.
	MaxImageBytes = 1 << 50

	// MaxMembershipBytes bounds the opaque membership in a manifest.
	MaxMembershipBytes = 1 << 20

	// MaxChunkBytes bounds the data of a chunk, on the wire and unpacked; half of
	// the largest message, so that a chunk always fits.
	MaxChunkBytes = 4 << 20

	// MinChunkBytes is where halving chunks after stalls ends: smaller ones cost
	// more in headers and system calls than they save.
	MinChunkBytes = 64 << 10

	// MaxWireBytes bounds one message in either direction. The server on which
	// SnapshotService is registered must send and accept as much.
	MaxWireBytes = 8 << 20

	// MaxKeep is how long an image may be told to live at most.
	MaxKeep = 10 * 365 * 24 * time.Hour

	// idBytes is the length of a transfer's and of an image's random id.
	idBytes = 16

	// maxMessageText bounds the text of an Abort or a Cancel; it is for people.
	maxMessageText = 1024

	// maxNodeName bounds a node's name and incarnation, which become map keys.
	maxNodeName = 255
)
