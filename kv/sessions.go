package kv

import (
	"container/heap"
	"container/list"
	"slices"
)

// Bounds of the client session table. Like the bounds of the format they decide
// what a command does, so they are the same everywhere.
const (
	// MaxClientSessions is the most client sessions a group knows; opening one
	// more ends the one that was used longest ago.
	MaxClientSessions = 65_536
	// MaxSessionReplies and MaxSessionReplyBytes bound what one client session
	// may have recorded above its low-water mark; a write past them is refused
	// with REASON_OVERLOADED until the client raises its mark.
	MaxSessionReplies    = 4096
	MaxSessionReplyBytes = 8 << 20
	// MaxReplyBytes bounds the recorded replies of all client sessions; past it
	// the client sessions that were used longest ago end.
	MaxReplyBytes = 256 << 20

	defaultSessionTTLMillis = 60 * 60 * 1000
	maxSessionTTLMillis     = 366 * 24 * 60 * 60 * 1000

	// replyOverhead is counted for each recorded reply beside its data.
	replyOverhead = 64
)

// sessionBounds are the bounds as a table holds them, so that tests reach them.
type sessionBounds struct {
	sessions, replies, sessionBytes, tableBytes int
}

func defaultSessionBounds() sessionBounds {
	return sessionBounds{MaxClientSessions, MaxSessionReplies, MaxSessionReplyBytes, MaxReplyBytes}
}

// recordedReply answers a repeated command.
type recordedReply struct {
	revision uint64
	data     []byte
}

// clientSession is a client session in memory.
type clientSession struct {
	id      uint64
	row     sessionRow
	replies map[uint64]recordedReply
	bytes   int
	// dirty: the row changed in the current index and is not yet written.
	dirty bool
	ended bool

	use      *list.Element
	deadline int64 // as the heap is ordered; the row's may be later
	position int   // in the heap
}

// expiry returns the clock from which the client session is expired.
func (c *clientSession) expiry() int64 { return c.row.lastClock + int64(c.row.ttlMillis) }

// sessionTable indexes the client sessions of a state. It is used by the apply
// goroutine alone and holds nothing that the rows in x/ do not: two replicas
// with equal rows have tables that answer, expire and evict alike.
type sessionTable struct {
	bounds    sessionBounds
	byID      map[uint64]*clientSession
	uses      *list.List // of *clientSession, longest unused first
	deadlines deadlineHeap
	replies   int
	bytes     int
}

func newSessionTable(bounds sessionBounds) *sessionTable {
	return &sessionTable{bounds: bounds, byID: make(map[uint64]*clientSession), uses: list.New()}
}

// load adds client sessions read from their rows, in any order.
func (t *sessionTable) load(sessions []*clientSession) {
	slices.SortFunc(sessions, func(a, b *clientSession) int {
		if a.row.lastRevision < b.row.lastRevision {
			return -1
		}
		return 1
	})
	for _, c := range sessions {
		t.insert(c)
		t.replies += len(c.replies)
		t.bytes += c.bytes
	}
}

// open adds a new client session.
func (t *sessionTable) open(id uint64, row sessionRow) *clientSession {
	c := &clientSession{id: id, row: row, replies: make(map[uint64]recordedReply)}
	t.insert(c)
	return c
}

func (t *sessionTable) insert(c *clientSession) {
	t.byID[c.id] = c
	c.use = t.uses.PushBack(c)
	c.deadline = c.expiry()
	heap.Push(&t.deadlines, c)
}

// end removes a client session.
func (t *sessionTable) end(c *clientSession) {
	delete(t.byID, c.id)
	t.uses.Remove(c.use)
	heap.Remove(&t.deadlines, c.position)
	t.replies -= len(c.replies)
	t.bytes -= c.bytes
	c.ended = true
}

// touch counts a use at clock by the command with the revision.
func (t *sessionTable) touch(c *clientSession, clock int64, revision uint64) {
	c.row.lastClock, c.row.lastRevision = clock, revision
	t.uses.MoveToBack(c.use)
}

// record keeps a reply.
func (t *sessionTable) record(c *clientSession, sequence uint64, r recordedReply) {
	c.replies[sequence] = r
	c.bytes += replyOverhead + len(r.data)
	t.bytes += replyOverhead + len(r.data)
	t.replies++
}

// full tells whether a client session may record nothing more.
func (t *sessionTable) full(c *clientSession) bool {
	return len(c.replies) >= t.bounds.replies || c.bytes >= t.bounds.sessionBytes
}

// raise lifts the low-water mark and returns the sequences whose replies it
// forgot, rising.
func (t *sessionTable) raise(c *clientSession, mark uint64) []uint64 {
	if mark <= c.row.mark {
		return nil
	}
	var gone []uint64
	if mark-c.row.mark <= uint64(len(c.replies)) {
		for sequence := c.row.mark; sequence < mark; sequence++ {
			if _, ok := c.replies[sequence]; ok {
				gone = append(gone, sequence)
			}
		}
	} else {
		for sequence := range c.replies {
			if sequence < mark {
				gone = append(gone, sequence)
			}
		}
		slices.Sort(gone)
	}
	for _, sequence := range gone {
		size := replyOverhead + len(c.replies[sequence].data)
		delete(c.replies, sequence)
		c.bytes -= size
		t.bytes -= size
		t.replies--
	}
	c.row.mark = mark
	return gone
}

// expired removes and returns the client sessions that are expired at clock, by
// rising id.
func (t *sessionTable) expired(clock int64) []*clientSession {
	var gone []*clientSession
	for len(t.deadlines) > 0 && t.deadlines[0].deadline <= clock {
		c := t.deadlines[0]
		if c.expiry() > clock {
			// Used since: uses do not touch the heap, this does.
			c.deadline = c.expiry()
			heap.Fix(&t.deadlines, 0)
			continue
		}
		t.end(c)
		gone = append(gone, c)
	}
	slices.SortFunc(gone, func(a, b *clientSession) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return gone
}

// oldest returns the client session that was used longest ago, nil if none.
func (t *sessionTable) oldest() *clientSession {
	if front := t.uses.Front(); front != nil {
		return front.Value.(*clientSession)
	}
	return nil
}

// deadlineHeap orders client sessions by deadline.
type deadlineHeap []*clientSession

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].deadline < h[j].deadline }
func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].position, h[j].position = i, j
}

// Push and Pop are for container/heap.
func (h *deadlineHeap) Push(x any) {
	c := x.(*clientSession)
	c.position = len(*h)
	*h = append(*h, c)
}

func (h *deadlineHeap) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return c
}
