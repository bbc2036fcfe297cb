package transport

import "errors"

// Errors of this package; compare with errors.Is.
var (
	// ErrClosed: the transport was closed; make a new one.
	ErrClosed = errors.New("transport: closed")

	// ErrStarted: Start was called a second time.
	ErrStarted = errors.New("transport: already started")

	// ErrNotStarted: the transport has no handler yet; call Start first.
	ErrNotStarted = errors.New("transport: not started")

	// ErrRefused: one of two nodes does not accept the other's hello. The text
	// says which, and what differs. Nothing is delivered until that changes.
	ErrRefused = errors.New("transport: peer refused")

	// ErrNotReady: one of two nodes cannot accept the other's hello yet, but
	// expects to soon: it is being founded. The dialler tries again.
	ErrNotReady = errors.New("transport: node not ready")

	// ErrRemoved: a CheckHello returns it for a peer whose replicas were all
	// removed from their groups. The peer is refused, and told by
	// RemovalListener.
	ErrRemoved = errors.New("transport: node was removed from the cluster")

	// ErrMalformed: bytes from a peer do not decode. The stream they came on was
	// closed; raft sends again what was lost.
	ErrMalformed = errors.New("transport: malformed")

	// ErrInvalidMessage: a message that must not travel between nodes.
	ErrInvalidMessage = errors.New("transport: invalid message")

	// ErrMessageTooLarge: a message over the limits of this package. The sender
	// drops it, a receiver closes the stream.
	ErrMessageTooLarge = errors.New("transport: message too large")
)
