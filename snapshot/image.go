package snapshot

import (
	"context"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// Have is what the replica that will get an image has already. The zero Have
// asks for a full image.
type Have struct {
	// Index and Term of its applied record; a delta starts there.
	Index uint64
	Term  uint64
	// Schema and StateFormat of its state, which decide whether a delta fits.
	Schema      uint32
	StateFormat uint32
}

// Capturer is the side of a state machine that makes images.
type Capturer interface {
	// Capture pins the state for one image. It is called between two Applies,
	// on the apply goroutine, and must be fast (milliseconds): the slow part is
	// Capture.Write. With a Have that is not zero it may pin a delta; whether it
	// did is Manifest.Kind. The image must hold at least minIndex; a state
	// machine that would have to flush first returns ErrTooOld, and is called
	// again after a Flush.
	Capture(have Have, minIndex uint64) (Capture, error)
}

// Capture is a pinned state that can be written out as an image.
type Capture interface {
	// Write makes the image's files in dir, an empty directory on the state
	// machine's file system, and returns the manifest with Kind, FromIndex,
	// FromTerm, Index, Term, Clock, Membership, Schema, StateFormat, Files,
	// Bytes, RawBytes and Records set. Files are hard links or written and
	// synced; nobody changes them afterwards. It runs beside Apply, may be slow,
	// and ends early with ctx. ErrNoDelta tells that the state changed too much
	// for a delta to pay, or that one is not legal.
	Write(ctx context.Context, dir string) (*snapshotv1.Manifest, error)

	// Close releases the pin; called once, after Write or instead of it.
	Close() error
}

// Stager is the side of a state machine that takes images.
type Stager interface {
	// Stage begins or resumes taking an image whose files arrive in dir, a
	// directory on the state machine's file system that may hold some of them.
	// It refuses, with ErrUnfit, an image it can never install: another schema,
	// a delta that does not start at or below its applied index in the same
	// term. It runs beside Apply.
	Stage(manifest *snapshotv1.Manifest, dir string) (Sink, error)

	// Install replaces the state by the staged one, or for a delta adds it. It
	// is called on the apply goroutine, with no Apply outstanding, after
	// Sink.Prepare returned. It is short (one marker move or one ingest), and
	// durable when it returns nil: a crash before that leaves all of the old
	// state, a crash after it all of the new. After an error the state machine
	// is closed and opened again. Readers of the old state may go on.
	Install(sink Sink) error
}

// Sink is an image being staged. One goroutine calls it, but CheckFile may be
// called for several files at once.
type Sink interface {
	// CheckFile verifies one file that is complete in dir, while others still
	// arrive: its blocks, its keys. verified tells that the source did so and
	// that the digest was right. An error condemns the image.
	CheckFile(ctx context.Context, name string, verified bool) error

	// Prepare does everything that can fail or take time: all files are in dir,
	// durable. It opens the new state and checks its applied record against the
	// manifest. It may move the files to where Install expects them; then a later
	// Stage of the same manifest finds them there. Called again, on a new Sink
	// after a restart or on the same one after an error such as a full disk, it
	// does what is left; not after it returned nil.
	Prepare(ctx context.Context) error

	// Discard gives up and removes what Prepare moved; the caller removes dir.
	// Not called after a successful Install.
	Discard() error
}
