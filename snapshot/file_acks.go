package snapshot

import (
	"sync"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// fileAcks are FileAcks that the receive goroutine of a source has read and the
// producer has not looked at. Putting one never waits: the producer may be waiting
// for credit in the middle of a file, and credit is in the messages behind. A
// receiver acknowledges each file it was sent once, and more is refused, so the
// files of the image bound them.
type fileAcks struct {
	mu   sync.Mutex
	list []*snapshotv1.FileAck
	some chan struct{} // holds one when the list is not empty
}

func newFileAcks() *fileAcks { return &fileAcks{some: make(chan struct{}, 1)} }

func (q *fileAcks) put(ack *snapshotv1.FileAck) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = append(q.list, ack)
	select {
	case q.some <- struct{}{}:
	default:
	}
}

// take returns the oldest; nil if there is none. Where it returns nil, some is
// ready again when one comes.
func (q *fileAcks) take() *snapshotv1.FileAck {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return nil
	}
	ack := q.list[0]
	q.list[0] = nil
	q.list = q.list[1:]
	return ack
}
