package raftnode

import (
	"errors"
	"sync"

	"go.etcd.io/raft/v3/raftpb"
)

// errStopped: the receiver of a mailbox has stopped.
var errStopped = errors.New("stopped")

// A mailbox is everything that waits for a group's step goroutine. Senders
// never block; what is bounded is dropped when full, as the comments say. The
// receiver takes all of it at once, so that a burst costs one wake-up.
type mailbox struct {
	wake chan struct{} // holds a token while something waits

	mu      sync.Mutex
	stopped bool
	mail    mail
	// inboxBytes are the entries of mail.received; at maxInbox further messages
	// are dropped, which raft survives like a lossy network.
	inboxBytes int64
	maxInbox   int64
	dropped    uint64
}

// mail is one load of a mailbox.
type mail struct {
	// ticks that passed. Bounded: a goroutine that was not scheduled for long
	// must not run through several election timeouts at once.
	ticks int
	// received messages from peers; dropped when full.
	received []*raftpb.Message
	// local are responses of the append and apply goroutines. Never dropped;
	// raft bounds them by what it has in flight.
	local []*raftpb.Message
	// proposals; bounded by Options.MaxPendingBytes.
	proposals []*proposal
	// reads that want a read index; bounded by their callers, who block.
	reads []*readRequest
	// unreachable peers by raft id; few.
	unreachable []uint64
	// calls to run on the step goroutine, between two steps; few.
	calls []func()
	// appended is the number of MsgStorageAppend that became durable.
	appended int
}

const maxWaitingTicks = 3

func newMailbox(maxInbox int64) *mailbox {
	return &mailbox{wake: make(chan struct{}, 1), maxInbox: maxInbox}
}

// put runs change on the waiting mail and wakes the receiver.
func (b *mailbox) put(change func(*mail)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return errStopped
	}
	change(&b.mail)
	b.wakeLocked()
	return nil
}

func (b *mailbox) wakeLocked() {
	select {
	case b.wake <- struct{}{}:
	default: // a token is there already
	}
}

func (b *mailbox) putTick() {
	_ = b.put(func(m *mail) { m.ticks = min(m.ticks+1, maxWaitingTicks) })
}

func (b *mailbox) putProposal(p *proposal) error {
	return b.put(func(m *mail) { m.proposals = append(m.proposals, p) })
}

func (b *mailbox) putRead(r *readRequest) error {
	return b.put(func(m *mail) { m.reads = append(m.reads, r) })
}

func (b *mailbox) putCall(f func()) error {
	return b.put(func(m *mail) { m.calls = append(m.calls, f) })
}

func (b *mailbox) putLocal(messages []*raftpb.Message, appended int) {
	_ = b.put(func(m *mail) {
		m.local = append(m.local, messages...)
		m.appended += appended
	})
}

func (b *mailbox) putUnreachable(raftID uint64) {
	_ = b.put(func(m *mail) { m.unreachable = append(m.unreachable, raftID) })
}

// forgetLocal drops the responses to a RawNode that is no more.
func (b *mailbox) forgetLocal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.mail.local)
	b.mail.local, b.mail.appended = b.mail.local[:0], 0
}

// putReceived takes a message from a peer, or drops it when the inbox is full.
func (b *mailbox) putReceived(message *raftpb.Message) {
	size := messageBytes(message)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return
	}
	if b.inboxBytes > 0 && b.inboxBytes+size > b.maxInbox {
		b.dropped++
		return
	}
	b.inboxBytes += size
	b.mail.received = append(b.mail.received, message)
	b.wakeLocked()
}

// messageOverhead is what a message without entries counts for, so that the
// number of waiting messages is bounded too.
const messageOverhead = 256

func messageBytes(m *raftpb.Message) int64 {
	size := int64(messageOverhead)
	for _, e := range m.GetEntries() {
		size += int64(len(e.GetData())) + 48
	}
	return size
}

// take returns what waits and leaves the mailbox empty. spare is an earlier
// load whose slices are used again.
func (b *mailbox) take(spare mail) mail {
	clear(spare.received)
	clear(spare.local)
	clear(spare.proposals)
	clear(spare.reads)
	clear(spare.calls)
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.mail
	b.mail = mail{
		received: spare.received[:0], local: spare.local[:0], proposals: spare.proposals[:0],
		reads: spare.reads[:0], unreachable: spare.unreachable[:0], calls: spare.calls[:0],
	}
	b.inboxBytes = 0
	return m
}

// stop makes every later put fail and returns what still waits.
func (b *mailbox) stop() mail {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	m := b.mail
	b.mail = mail{}
	return m
}
