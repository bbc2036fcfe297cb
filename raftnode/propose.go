package raftnode

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// propose packs waiting proposals into log entries, on the step goroutine.
//
// While an append of this group is being synced, proposals collect: an entry
// made now would wait for the next sync anyway, and fuller entries cost less
// everywhere behind. So the packing adapts to the disk by itself: one proposal
// an entry when the system is idle, thousands when it is not.
func (g *Group) propose() {
	if len(g.queue) == 0 {
		return
	}
	if role := g.soft.Load().role; role != RoleLeader {
		g.refuse(g.queue, g.notLeader())
		g.queue = g.queue[:0]
		return
	}
	packed, bytes := 0, int64(0)
	for packed < len(g.queue) {
		batch, size, full := g.nextBatch(g.queue[packed:])
		if g.appending > 0 && !full {
			break
		}
		packed += len(batch)
		if !g.proposeEntry(batch, size) {
			break
		}
		if bytes += int64(size) + int64(len(batch))*binary.MaxVarintLen32 + maxPayloadHeader + entryLogBytes; bytes > g.node.opts.maxStepBytes() {
			g.handleReady()
			bytes = 0
		}
	}
	if packed == len(g.queue) {
		clear(g.queue)
		g.queue = g.queue[:0]
		return
	}
	rest := copy(g.queue, g.queue[packed:])
	clear(g.queue[rest:])
	g.queue = g.queue[:rest]
}

// nextBatch returns the proposals that go into the next entry, and whether it
// is full.
func (g *Group) nextBatch(queue []*proposal) (batch []*proposal, size int, full bool) {
	o := &g.node.opts
	for i, p := range queue {
		if i > 0 && (size+len(p.command) > o.MaxEntryBytes || i == o.MaxEntryCommands) {
			return queue[:i], size, true
		}
		size += len(p.command)
	}
	return queue, size, size >= o.MaxEntryBytes || len(queue) == o.MaxEntryCommands
}

// proposeEntry makes one entry of batch and hands it to raft. It returns false
// if raft took none.
func (g *Group) proposeEntry(batch []*proposal, size int) bool {
	g.sequence++
	e := &proposedEntry{sequence: g.sequence, proposals: make([]*proposal, 0, len(batch))}
	for _, p := range batch {
		if p.state.CompareAndSwap(proposalQueued, proposalPacked) {
			if e.proposals = append(e.proposals, p); len(e.proposals) == 1 {
				e.taken = p.taken // the queue is in order
			}
			e.bytes += p.cost()
		} else {
			g.pending.release(1, p.cost())
		}
	}
	if len(e.proposals) == 0 {
		return true
	}
	data := make([]byte, 0, maxPayloadHeader+size+4*len(batch))
	data = appendPayloadHeader(data, payloadHeader{
		origin: g.origin, sequence: e.sequence, clock: max(0, g.node.opts.Clock.Now().UnixMilli()),
		floor: g.memberFloor(), commands: len(e.proposals),
	})
	for _, p := range e.proposals {
		data = appendPayloadCommand(data, p.command)
	}
	g.pending.add(e)
	if err := g.raw.Propose(data); err != nil {
		g.pending.drop(e)
		g.finish(e, nil, g.proposeError(err))
		return false
	}
	g.metrics.entries.Add(1)
	g.metrics.commands.Add(uint64(len(e.proposals)))
	return true
}

// proposeError says what raft's refusal means: it appended nothing.
func (g *Group) proposeError(err error) error {
	if !errors.Is(err, raft.ErrProposalDropped) {
		return fmt.Errorf("%w: %w", ErrDropped, err)
	}
	switch st := g.raw.BasicStatus(); {
	case st.RaftState != raft.StateLeader:
		return g.notLeader()
	case st.LeadTransferee != raft.None:
		return fmt.Errorf("%w: leadership of group %d is being handed to %s", ErrDropped, g.id, g.nodeOf(st.LeadTransferee))
	default:
		return fmt.Errorf("%w: group %d has %d uncommitted bytes", ErrOverloaded, g.id, 2*g.node.opts.MaxPendingBytes)
	}
}

// locate notes the position of an entry that raft appended, if it is ours.
func (g *Group) locate(e *raftpb.Entry) {
	if e.GetType() != raftpb.EntryNormal {
		g.locateChange(e)
		return
	}
	if len(e.GetData()) == 0 {
		return
	}
	if h, _, err := decodePayloadHeader(e.GetData()); err == nil && h.origin == g.origin {
		g.pending.located(h.sequence, e.GetIndex(), e.GetTerm())
	}
}
