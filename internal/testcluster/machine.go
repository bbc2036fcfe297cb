package testcluster

import (
	"sync"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
)

// machine is a kv.Store that tells the checker what it applies.
type machine struct {
	*kv.Store
	run   *run
	group uint64

	mu   sync.Mutex
	next uint64 // index to be applied
}

// Open opens the store; what it holds must be what was applied there before.
func (m *machine) Open(dir string) (raftnode.Applied, error) {
	applied, err := m.Store.Open(dir)
	if err != nil {
		return applied, err
	}
	c := m.run.member.cluster.checker
	if applied.Index > 0 && !m.run.member.cluster.reopened {
		if term, ok := c.committedTerm(m.group, applied.Index); !ok || term != applied.Term {
			c.violation("%s opened a state of group %d at index %d, term %d; applied there was term %d", m.run, m.group, applied.Index, applied.Term, term)
		}
	}
	if highest := c.highest(m.group); m.run.number > 1 && applied.Index < highest {
		c.count(func(t *Totals) { t.Replayed += int64(highest - applied.Index) })
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = applied.Index + 1
	return applied, nil
}

// Apply applies and tells the checker, unless the node crashed meanwhile: what a
// crashed node does is not done.
func (m *machine) Apply(entries []raftnode.Entry) ([]raftnode.Result, error) {
	if f := m.run.member.cluster.tuning.applies; f != nil && m.group == raftnode.FirstDataGroup {
		f(m.run.member)
	}
	m.inOrder(entries)
	applied := entries
	if spoil := m.run.member.cluster.spoil; spoil != nil {
		applied = spoil(m.run.member, entries)
	}
	results, err := m.Store.Apply(applied)
	if err != nil {
		return results, err
	}
	if m.run.member.cluster.reopened {
		return results, nil
	}
	m.run.unlessCrashed(func() {
		m.run.member.cluster.checker.appliedEntries(m.run.member.name, m.group, entries, results)
	})
	return results, nil
}

// inOrder checks that every index comes once, whole and in order.
func (m *machine) inOrder(entries []raftnode.Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ordinal := uint16(0)
	for i := range entries {
		e := &entries[i]
		if e.Index != m.next || e.Ordinal != ordinal {
			m.run.member.cluster.checker.violation("%s was told to apply %d.%d of group %d, expected %d.%d", m.run, e.Index, e.Ordinal, m.group, m.next, ordinal)
			return
		}
		if ordinal++; e.Last {
			m.next, ordinal = m.next+1, 0
		}
	}
	if ordinal != 0 {
		m.run.member.cluster.checker.violation("%s was told to apply a part of index %d of group %d", m.run, m.next, m.group)
	}
}

// Flush counts.
func (m *machine) Flush() error {
	if m.DurableApplied() < m.AppliedIndex() {
		m.run.member.cluster.checker.count(func(t *Totals) { t.Flushes++ })
	}
	return m.Store.Flush()
}
