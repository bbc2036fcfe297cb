package snapshot

import "errors"

// Errors of capturing, transferring and installing images; test with errors.Is.
var (
	// ErrTooOld: the state that is durable is below the index asked for; flush
	// and capture again.
	ErrTooOld = errors.New("snapshot: the durable state is older than the index asked for")

	// ErrNoDelta: a delta is not legal, or would cost more than it saves; take a
	// full image.
	ErrNoDelta = errors.New("snapshot: no delta")

	// ErrUnfit: the state machine cannot take this image.
	ErrUnfit = errors.New("snapshot: image does not fit the replica")

	// ErrCorrupt: an image, a chunk or a staged file is damaged.
	ErrCorrupt = errors.New("snapshot: corrupt")

	// ErrNoSpace: the disk has no room for the image.
	ErrNoSpace = errors.New("snapshot: not enough disk space")

	// ErrBusy: all transfer slots are taken.
	ErrBusy = errors.New("snapshot: no free transfer slot")

	// ErrStale: a newer attempt or offer took over.
	ErrStale = errors.New("snapshot: a newer attempt took over")

	// ErrImageGone: the source no longer has the image.
	ErrImageGone = errors.New("snapshot: the source no longer has the image")

	// ErrStalled: no byte arrived for too long while credit was open.
	ErrStalled = errors.New("snapshot: transfer stalled")

	// ErrProtocol: the other side broke the protocol; the attempt ended.
	ErrProtocol = errors.New("snapshot: the peer broke the protocol")

	// ErrRefused: the source serves neither this cluster, history epoch nor group,
	// or a request was malformed; another source may do better.
	ErrRefused = errors.New("snapshot: refused")

	// ErrNotNeeded: the replica has this state already.
	ErrNotNeeded = errors.New("snapshot: not needed")

	// ErrGivenUp: the transfer made too little progress and others waited for
	// its slot, or it made none for too long. What is staged stays.
	ErrGivenUp = errors.New("snapshot: given up")

	// ErrClosed: the service was closed.
	ErrClosed = errors.New("snapshot: closed")
)
