package transport

import (
	"context"
	"sync"
)

// notifier calls Handler.Unreachable on a goroutine of its own: Send is called
// under locks that the handler may need.
type notifier struct {
	wake chan struct{}

	mu      sync.Mutex
	pending map[string]struct{}
}

func newNotifier() *notifier {
	return &notifier{wake: make(chan struct{}, 1), pending: make(map[string]struct{})}
}

// tell asks for one call for node; it joins a call still pending. The set is
// bounded by the nodes this node sends to.
func (n *notifier) tell(node string) {
	n.mu.Lock()
	n.pending[node] = struct{}{}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *notifier) run(ctx context.Context, h Handler) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		n.mu.Lock()
		pending := n.pending
		n.pending = make(map[string]struct{})
		n.mu.Unlock()
		for node := range pending {
			if ctx.Err() != nil {
				return
			}
			h.Unreachable(node)
		}
	}
}
