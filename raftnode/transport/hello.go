package transport

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// CheckPeer decides for a node whether to accept a peer's hello: the protocol
// version, the limits and the name first, then Handler.CheckHello. local is the
// node's own hello; expected is the name of the node that was dialled, empty
// where the peer did the dialling. The error wraps ErrRefused, or ErrNotReady as the handler says; its text goes to
// the peer. Every Transport accepts peers by this function.
func CheckPeer(h Handler, local, peer *raftv1.NodeHello, expected string) error {
	switch {
	case peer == nil:
		return fmt.Errorf("%w: the peer said no hello", ErrRefused)
	case len(peer.GetNode()) > maxNodeName:
		return fmt.Errorf("%w: the peer's node name has %d bytes, at most %d", ErrRefused, len(peer.GetNode()), maxNodeName)
	case peer.GetProtocolVersion() != ProtocolVersion:
		return fmt.Errorf("%w: node %q speaks raft protocol version %d, node %q version %d; run the same release on both",
			ErrRefused, peer.GetNode(), peer.GetProtocolVersion(), local.GetNode(), ProtocolVersion)
	case peer.GetNode() == "":
		return fmt.Errorf("%w: the peer's hello has no node name", ErrRefused)
	case expected != "" && peer.GetNode() != expected:
		return fmt.Errorf("%w: node %q answers at the address of node %q; correct the address", ErrRefused, peer.GetNode(), expected)
	}
	if n := proto.Size(peer); n > MaxHelloBytes {
		return fmt.Errorf("%w: the hello of node %q has %d bytes, at most %d", ErrRefused, peer.GetNode(), n, MaxHelloBytes)
	}
	if err := h.CheckHello(peer); errors.Is(err, ErrNotReady) {
		return err
	} else if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}
