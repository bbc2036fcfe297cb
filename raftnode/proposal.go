package raftnode

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A proposal is one command on its way to a Result.
type proposal struct {
	command []byte
	// done is called exactly once, from one of the group's goroutines.
	done func(Result, error)
	// state keeps a cancelled proposal out of the log: whoever moves it away
	// from queued first decides.
	state atomic.Int32
	// taken is when it was taken, by the node's age: a time.Time would cost more
	// memory than the rest.
	taken time.Duration
}

// proposalOverhead is what a proposal counts for beside its command: else empty
// commands could fill the memory unseen.
const proposalOverhead = 256

// cost is what the proposal counts for in Options.MaxPendingBytes.
func (p *proposal) cost() int64 { return int64(len(p.command)) + proposalOverhead }

const (
	proposalQueued    int32 = iota // waits to be packed into an entry
	proposalPacked                 // handed to raft; only its fate can tell now
	proposalCancelled              // taken back in time
)

// proposedEntry is a log entry made of proposals of this replica that was
// handed to raft and whose fate is open.
type proposedEntry struct {
	sequence  uint64
	proposals []*proposal
	bytes     int64
	taken     time.Duration // of the oldest
	// index and term are known once raft appended the entry to its log.
	index uint64
	term  uint64
}

// pendingProposals are the open entries of this replica, in the order they were
// handed to raft. The step goroutine adds, the apply goroutine resolves.
type pendingProposals struct {
	mu      sync.Mutex
	entries []*proposedEntry
	bytes   int64 // of queued and open proposals
	count   int
}

// admit takes room for one command; false if limit is reached.
func (p *pendingProposals) admit(size, limit int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes > 0 && p.bytes+size > limit {
		return false
	}
	p.bytes += size
	p.count++
	return true
}

// release gives the room of finished proposals back.
func (p *pendingProposals) release(count int, bytes int64) {
	p.mu.Lock()
	p.bytes -= bytes
	p.count -= count
	p.mu.Unlock()
}

func (p *pendingProposals) add(e *proposedEntry) {
	p.mu.Lock()
	p.entries = append(p.entries, e)
	p.mu.Unlock()
}

// drop takes an entry out that raft did not accept.
func (p *pendingProposals) drop(e *proposedEntry) {
	p.mu.Lock()
	if i, found := p.find(e.sequence); found {
		p.entries = slices.Delete(p.entries, i, i+1)
	}
	p.mu.Unlock()
}

// located notes where raft put an entry.
func (p *pendingProposals) located(sequence, index, term uint64) {
	p.mu.Lock()
	if i, found := p.find(sequence); found {
		p.entries[i].index, p.entries[i].term = index, term
	}
	p.mu.Unlock()
}

// find looks an open entry up; sequences rise.
func (p *pendingProposals) find(sequence uint64) (int, bool) {
	return slices.BinarySearchFunc(p.entries, sequence, func(e *proposedEntry, s uint64) int { return cmp.Compare(e.sequence, s) })
}

// take removes and returns the open entry with this sequence, or nil.
func (p *pendingProposals) take(sequence uint64) *proposedEntry {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, found := p.find(sequence)
	if !found {
		return nil
	}
	e := p.entries[i]
	if i == 0 {
		p.entries[0] = nil
		p.entries = p.entries[1:]
	} else {
		p.entries = slices.Delete(p.entries, i, i+1)
	}
	return e
}

// takeOverwritten removes and returns the open entries that can no longer
// commit now that the entry (index, term) was applied: the log holds something
// else at their index, or a later term begins before it (a committed entry's
// successors have its term or a later one; raft paper, section 5.3).
func (p *pendingProposals) takeOverwritten(index, term uint64) []*proposedEntry {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Terms rise along the list, and indexes within a term: what is lost stands in
	// front.
	n := 0
	for n < len(p.entries) && p.entries[n].index != 0 && (p.entries[n].index <= index || p.entries[n].term < term) {
		n++
	}
	if n == 0 {
		return nil
	}
	lost := slices.Clone(p.entries[:n])
	clear(p.entries[:n])
	p.entries = p.entries[n:]
	return lost
}

// takeAll removes and returns every open entry.
func (p *pendingProposals) takeAll() []*proposedEntry {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.entries
	p.entries = nil
	return all
}

func (p *pendingProposals) size() (count int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count, p.bytes
}

// Submit proposes a command and returns at once; done is called exactly once,
// from a goroutine of the group, when the outcome is known. done must not block
// and must not call back into the group synchronously for long. Commands that
// one goroutine submits are applied in that order as far as they are applied.
//
// An error from Submit means that the command was not taken: certainly not
// applied, and done is not called. The command must not be changed until done.
//
// Errors, of Submit and in done: ErrNotLeader, ErrDropped, ErrUncertain,
// ErrOverloaded, ErrNoSpace, ErrTooLarge, ErrFailed, ErrClosed.
func (g *Group) Submit(command []byte, done func(Result, error)) error {
	_, err := g.submit(command, done)
	return err
}

func (g *Group) submit(command []byte, done func(Result, error)) (*proposal, error) {
	if len(command) > g.node.opts.MaxCommandBytes {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(command), g.node.opts.MaxCommandBytes)
	}
	// First: a node without space has handed its leadership over, and clients
	// must learn to whom.
	if s := g.soft.Load(); s.role != RoleLeader {
		return nil, g.notLeader()
	}
	if g.node.noSpace() {
		return nil, fmt.Errorf("%w: node %s keeps %d bytes free; free some space and it goes on", ErrNoSpace, g.node.opts.Node, g.node.opts.DiskReserveBytes)
	}
	p := &proposal{command: command, done: done, taken: g.node.age()}
	if !g.pending.admit(p.cost(), g.node.opts.MaxPendingBytes) {
		g.metrics.overloaded.Add(1)
		return nil, fmt.Errorf("%w: group %d has %d bytes waiting", ErrOverloaded, g.id, g.node.opts.MaxPendingBytes)
	}
	if err := g.mailbox.putProposal(p); err != nil {
		g.pending.release(1, p.cost())
		return nil, g.closedError()
	}
	return p, nil
}

// Propose replicates and applies a command, and returns the state machine's
// answer. When it returns without error, the command is durable on a quorum and
// visible to every later linearizable read.
//
// When ctx ends first, the error is ErrDropped if the command could still be
// taken back, else ErrUncertain; both wrap ctx's error. Other errors as for
// Submit. It may be called from any goroutine.
func (g *Group) Propose(ctx context.Context, command []byte) (Result, error) {
	type outcome struct {
		result Result
		err    error
	}
	c := make(chan outcome, 1)
	p, err := g.submit(command, func(r Result, err error) { c <- outcome{r, err} })
	if err != nil {
		return Result{}, err
	}
	select {
	case o := <-c:
		return o.result, o.err
	case <-ctx.Done():
	}
	if p.state.CompareAndSwap(proposalQueued, proposalCancelled) {
		return Result{}, fmt.Errorf("%w: %w", ErrDropped, context.Cause(ctx))
	}
	select {
	case o := <-c: // it ended at the same moment
		return o.result, o.err
	default:
		return Result{}, fmt.Errorf("%w: gave up waiting: %w", ErrUncertain, context.Cause(ctx))
	}
}

// finish calls done of every proposal of an entry and gives their room back.
func (g *Group) finish(e *proposedEntry, results []Result, err error) {
	g.pending.release(len(e.proposals), e.bytes)
	for i, p := range e.proposals {
		if err != nil {
			p.done(Result{}, err)
			continue
		}
		p.done(results[i], nil)
	}
}

// refuse ends queued proposals that never reached raft.
func (g *Group) refuse(proposals []*proposal, err error) {
	for _, p := range proposals {
		switch {
		case p.state.CompareAndSwap(proposalQueued, proposalCancelled):
			g.pending.release(1, p.cost())
			p.done(Result{}, err)
		case p.state.Load() == proposalCancelled:
			g.pending.release(1, p.cost())
		}
	}
}
