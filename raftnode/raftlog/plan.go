package raftlog

import (
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
)

// Update is what one Append changes in one group, in this order: marker,
// entries, hard state.
type Update struct {
	Group uint64

	// Marker, if set, deletes the entries up to Marker.Index (all, if that is
	// the last one or behind it). Where the entry at that index is in the log
	// its term must be Marker.Term. A marker at or below the current one
	// changes nothing, so a late cut does no harm.
	Marker *Marker

	// Reset, only with Marker, deletes all entries of the group before Entries,
	// as the installation of a snapshot does. The marker may not go back.
	Reset bool

	// Entries follow each other without a gap, the first behind the marker and
	// at most one behind the last entry; the group's entries from the first
	// one's index on are deleted. Terms do not go down. The log keeps the
	// entries in memory: they must not be changed any more.
	Entries []*raftpb.Entry

	// HardState is the new hard state; nil or one of zeros changes nothing. Its
	// term does not go down and its vote does not change within a term.
	HardState *raftpb.HardState
}

// plan is what a group will be when the updates planned so far are applied. It
// lets Append refuse all of its updates before it writes any.
type plan struct {
	sequence  uint64 // the Append it belongs to
	marker    Marker
	last      uint64
	hardState hardState
	parts     [][]*raftpb.Entry // entries to be appended, oldest first
	known     bool
}

// step is one update as it will be written. A step without records is skipped.
type step struct {
	group   *Group
	update  *Update
	marker  bool // the marker moves
	hs      hardState
	hasHS   bool
	bytes   int
	records int

	begin  bool // begins a batch
	rotate bool // and that batch begins a segment
}

func (g *Group) planFor(sequence uint64) *plan {
	p := &g.plan
	if p.sequence != sequence {
		clear(p.parts)
		*p = plan{
			sequence: sequence, marker: g.marker, last: g.index.last,
			hardState: g.hardState, parts: p.parts[:0], known: g.known,
		}
	}
	return p
}

// term returns the term of i, in marker..last, as planned.
func (p *plan) term(g *Group, i uint64) uint64 {
	if i == p.marker.Index {
		return p.marker.Term
	}
	// A later part deleted what earlier ones had from its first index on.
	for n := len(p.parts) - 1; n >= 0; n-- {
		if first := p.parts[n][0].GetIndex(); i >= first {
			return p.parts[n][i-first].GetTerm()
		}
	}
	return g.index.at(i).term
}

// add checks an update against the plan and adds it.
func (p *plan) add(g *Group, u *Update) (step, error) {
	s := step{group: g, update: u}
	if u.Reset && u.Marker == nil {
		return s, invalid(g, "Reset without a Marker")
	}
	if u.Marker != nil {
		moves, err := p.addMarker(g, *u.Marker, u.Reset)
		if err != nil {
			return s, err
		}
		if moves {
			s.marker = true
			s.bytes += recordHeaderSize + markerPayload
			s.records++
		}
	}
	if len(u.Entries) > 0 {
		bytes, err := p.addEntries(g, u.Entries)
		if err != nil {
			return s, err
		}
		s.bytes += bytes
		s.records += len(u.Entries)
	}
	if hs := hardStateOf(u.HardState); hs != (hardState{}) {
		was := p.hardState
		if hs.term < was.term || hs.term == was.term && was.vote != 0 && hs.vote != was.vote {
			return s, invalid(g, "hard state goes from term %d, vote %d back to term %d, vote %d", was.term, was.vote, hs.term, hs.vote)
		}
		p.hardState = hs
		s.hs, s.hasHS = hs, true
		s.bytes += recordHeaderSize + hardStatePayload
		s.records++
	}
	return s, nil
}

func (p *plan) addMarker(g *Group, m Marker, reset bool) (moves bool, err error) {
	switch {
	case m.Index == ^uint64(0):
		return false, invalid(g, "marker at the last possible index")
	case reset && m.Index < p.marker.Index:
		return false, invalid(g, "reset moves the marker from %d back to %d", p.marker.Index, m.Index)
	case reset || m.Index > p.last:
		p.last = m.Index
		p.parts = p.parts[:0]
	case m.Index <= p.marker.Index:
		return false, nil
	default:
		if t := p.term(g, m.Index); t != m.Term {
			return false, invalid(g, "marker at %d says term %d, the entry has term %d", m.Index, m.Term, t)
		}
	}
	p.marker = m
	return true, nil
}

func (p *plan) addEntries(g *Group, entries []*raftpb.Entry) (bytes int, err error) {
	i := entries[0].GetIndex()
	if i <= p.marker.Index || i > p.last+1 {
		return 0, invalid(g, "entries begin at %d, the log has %d to %d", i, p.marker.Index+1, p.last)
	}
	if i+uint64(len(entries))-1-p.marker.Index > MaxGroupEntries {
		return 0, invalid(g, "more than %d entries behind the marker %d: cut the log", MaxGroupEntries, p.marker.Index)
	}
	term := p.term(g, i-1)
	for n, e := range entries {
		if e.GetIndex() != i+uint64(n) {
			return 0, invalid(g, "entry %d follows entry %d", e.GetIndex(), i+uint64(n)-1)
		}
		t := e.GetTerm()
		if t < term {
			return 0, invalid(g, "entry %d has term %d, the one before has %d", e.GetIndex(), t, term)
		}
		if typ := e.GetType(); typ < 0 || typ > 255 {
			return 0, invalid(g, "entry %d has type %d, which does not fit the format", e.GetIndex(), typ)
		}
		term = t
		bytes += recordHeaderSize + entryPayload + len(e.Data)
	}
	p.parts = append(p.parts, entries)
	p.last = i + uint64(len(entries)) - 1
	return bytes, nil
}

func invalid(g *Group, format string, args ...any) error {
	return fmt.Errorf("%w: group %d: %s", ErrInvalidUpdate, g.id, fmt.Sprintf(format, args...))
}
