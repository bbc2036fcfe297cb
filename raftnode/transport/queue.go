package transport

import "sync"

// queue is what waits for one peer on one lane. It is open while the lane is
// connected and accepts nothing otherwise.
type queue struct {
	limits QueueLimits

	// wake holds a token while the sender has something to take: one for a
	// burst, not one for a message.
	wake chan struct{}

	mu       sync.Mutex
	open     bool
	messages []GroupMessage
	// count and bytes include what the sender took and has not released yet, so
	// that the bound holds while it is blocked.
	count int
	bytes int64
	// told is set from the first drop until the lane is connected again or the
	// backlog has halved: the handler hears once of a disconnection or burst.
	told    bool
	dropped uint64
}

func newQueue(limits QueueLimits) *queue {
	return &queue{limits: limits, wake: make(chan struct{}, 1)}
}

// push adds a message or drops it. tell asks the caller to have
// Handler.Unreachable called.
func (q *queue) push(m GroupMessage) (tell bool) {
	n := cost(m.Message)
	q.mu.Lock()
	// A message larger than the whole bound may pass alone: it would never fit.
	if !q.open || q.count >= q.limits.Messages || (q.bytes+n > q.limits.Bytes && q.count > 0) {
		q.dropped++
		tell = !q.told
		q.told = true
		q.mu.Unlock()
		return tell
	}
	q.messages = append(q.messages, m)
	q.count++
	q.bytes += n
	first := len(q.messages) == 1
	q.mu.Unlock()
	if first {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
	return false
}

// take returns all that waits and gives the queue an empty slice to go on with.
func (q *queue) take(spare []GroupMessage) []GroupMessage {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.messages
	q.messages = spare[:0]
	return taken
}

// release tells that count taken messages of that cost were handed on.
func (q *queue) release(count int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count -= count
	q.bytes -= bytes
	if q.count <= q.limits.Messages/2 && q.bytes <= q.limits.Bytes/2 {
		q.told = false
	}
}

// drop counts a taken message that cannot be sent.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropped++
}

// connect opens the queue.
func (q *queue) connect() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open, q.told = true, false
}

// disconnect closes the queue and drops what it holds, and what was taken and
// not released. tell is as in push: raft must hear of a lost connection even
// if nothing waited, for what gRPC had taken over may be lost too.
func (q *queue) disconnect() (tell bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = false
	q.dropped += uint64(q.count)
	q.messages, q.count, q.bytes = nil, 0, 0
	tell = !q.told
	q.told = true
	return tell
}

func (q *queue) state() (open bool, waiting int, dropped uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open, q.count, q.dropped
}
