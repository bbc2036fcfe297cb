package testcluster

import (
	"fmt"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/streamraft/streamraft/raftnode"
)

// checker knows what all nodes of a run did, over their crashes, and finds what
// must not be. Its methods may be called from any goroutine.
type checker struct {
	trace *trace
	// stop ends the run early: after the first violation the rest says little.
	stop func()

	mu         sync.Mutex
	violations []string
	// entries holds the hash of each log entry by index and term.
	entries map[entryKey]uint64
	// applied holds what the first replica applied at each index, by group; the
	// element i is index i+1.
	applied map[uint64][]appliedIndex
	// leaders holds the one leader of each term, votes the one vote of each
	// replica in each term.
	leaders map[termKey]string
	votes   map[voteKey]uint64
	// refused holds commands that were certainly not applied.
	refused map[uint64]string
	totals  Totals
}

type entryKey struct{ group, index, term uint64 }

type termKey struct{ group, term uint64 }

type voteKey struct {
	node string
	termKey
}

// appliedIndex is one index as a state machine applied it.
type appliedIndex struct {
	term     uint64
	entry    uint64   // hash of everything the entry holds
	results  uint64   // hash of all results
	commands []uint64 // hash of each command, by ordinal
	node     string   // that applied it first
}

// maxViolations kept of one run.
const maxViolations = 20

func newChecker(t *trace, stop func()) *checker {
	return &checker{
		trace: t, stop: stop,
		entries: make(map[entryKey]uint64), applied: make(map[uint64][]appliedIndex),
		leaders: make(map[termKey]string), votes: make(map[voteKey]uint64),
		refused: make(map[uint64]string),
	}
}

// violation records that something happened that must not.
func (c *checker) violation(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violationLocked(format, args...)
}

func (c *checker) violationLocked(format string, args ...any) {
	v := fmt.Sprintf(format, args...)
	c.trace.add("VIOLATION: %s", v)
	if len(c.violations) < maxViolations {
		c.violations = append(c.violations, v)
	}
	c.stop()
}

// found returns the violations so far.
func (c *checker) found() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.violations)
}

// count changes the totals.
func (c *checker) count(f func(*Totals)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.totals)
}

// leads: node acts as the leader of a term. There is one in each (election
// safety, raft paper figure 3).
func (c *checker) leads(group, term uint64, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := termKey{group, term}
	switch known, ok := c.leaders[key]; {
	case !ok:
		c.leaders[key] = node
		c.totals.Elections++
		c.trace.add("%s leads group %d in term %d", node, group, term)
	case known != node:
		c.violationLocked("two leaders: %s and %s lead group %d in term %d", known, node, group, term)
	}
}

// voted: node gave its vote, durably as it must be.
func (c *checker) voted(node string, group, term, candidate uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := voteKey{node, termKey{group, term}}
	known, ok := c.votes[key]
	if ok && known != candidate {
		c.violationLocked("two votes: %s voted for %x and for %x in term %d of group %d", node, known, candidate, term, group)
	}
	c.votes[key] = candidate
}

// vote returns the vote a replica gave in a term.
func (c *checker) vote(node string, group, term uint64) (candidate uint64, voted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	candidate, voted = c.votes[voteKey{node, termKey{group, term}}]
	return candidate, voted
}

// logEntry: an entry stands in the log of node, or was sent by it. Two entries
// with the same index and term are the same (log matching).
func (c *checker) logEntry(node string, group uint64, e *raftpb.Entry) {
	var head [1]byte
	head[0] = byte(e.GetType())
	d := xxhash.New()
	_, _ = d.Write(head[:])
	_, _ = d.Write(e.GetData())
	hash := d.Sum64()
	c.mu.Lock()
	defer c.mu.Unlock()
	key := entryKey{group, e.GetIndex(), e.GetTerm()}
	if known, ok := c.entries[key]; !ok {
		c.entries[key] = hash
	} else if known != hash {
		c.violationLocked("log matching: entry %d of term %d of group %d differs on %s", key.index, key.term, group, node)
	}
}

// committedTerm returns the term of an index that some replica applied.
func (c *checker) committedTerm(group, index uint64) (term uint64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.applied[group]
	if index == 0 || index > uint64(len(list)) {
		return 0, false
	}
	return list[index-1].term, true
}

// highest returns the highest index that some replica applied.
func (c *checker) highest(group uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return uint64(len(c.applied[group]))
}

// appliedEntries: node's state machine applied whole indexes. All replicas apply
// the same and answer the same (state machine safety).
func (c *checker) appliedEntries(node string, group uint64, entries []raftnode.Entry, results []raftnode.Result) {
	for begin := 0; begin < len(entries); {
		end := begin + 1
		for end < len(entries) && entries[end].Index == entries[begin].Index {
			end++
		}
		c.appliedOne(node, group, entries[begin:end], results[begin:end])
		begin = end
	}
}

func (c *checker) appliedOne(node string, group uint64, entries []raftnode.Entry, results []raftnode.Result) {
	a := appliedIndex{term: entries[0].Term, node: node}
	entry, answer := xxhash.New(), xxhash.New()
	for i := range entries {
		e := &entries[i]
		command := hashCommand(e.Data)
		a.commands = append(a.commands, command)
		_, _ = fmt.Fprintf(entry, "%d %d %v %d %x %x|", e.Term, e.Ordinal, e.Last, e.Clock, command, e.Membership)
		_, _ = fmt.Fprintf(answer, "%x|", results[i].Data)
	}
	a.entry, a.results = entry.Sum64(), answer.Sum64()
	index := entries[0].Index
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.applied[group]
	switch {
	case index == uint64(len(list))+1:
		c.applied[group] = append(list, a)
	case index > uint64(len(list)):
		c.violationLocked("%s applied index %d of group %d, but nobody applied %d before", node, index, group, len(list)+1)
	default:
		known := list[index-1]
		if known.term != a.term || known.entry != a.entry || !slices.Equal(known.commands, a.commands) {
			c.violationLocked("index %d of group %d: %s applied another entry (term %d, %d commands) than %s (term %d, %d commands)",
				index, group, node, a.term, len(a.commands), known.node, known.term, len(known.commands))
		} else if known.results != a.results {
			c.violationLocked("index %d of group %d: %s answered otherwise than %s, so their states differ", index, group, node, known.node)
		}
	}
}

// hashCommand of a command; 0 for none.
func hashCommand(data []byte) uint64 {
	if data == nil {
		return 0
	}
	return max(1, xxhash.Sum64(data))
}

// acknowledged: node told a client that the command was applied at revision. One
// of attempts, all of which mean the same command, must stand there.
func (c *checker) acknowledged(node string, group, revision uint64, attempts [][]byte) {
	index, ordinal := revision>>16, int(revision&0xffff)
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.applied[group]
	if index == 0 || index > uint64(len(list)) || ordinal >= len(list[index-1].commands) {
		c.violationLocked("%s acknowledged revision %d.%d of group %d, which no replica applied", node, index, ordinal, group)
		return
	}
	at := list[index-1].commands[ordinal]
	if !slices.ContainsFunc(attempts, func(command []byte) bool { return hashCommand(command) == at }) {
		c.violationLocked("%s acknowledged revision %d.%d of group %d, where another command was applied", node, index, ordinal, group)
	}
}

// refusedCommand: a client was told that this command was certainly not applied.
func (c *checker) refusedCommand(node string, command []byte, reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused[hashCommand(command)] = fmt.Sprintf("%s: %v", node, reason)
	c.totals.Refused++
}

// checkRefused looks for refused commands among the applied ones, at the end.
func (c *checker) checkRefused() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for group, list := range c.applied {
		for i, a := range list {
			for ordinal, command := range a.commands {
				if reason, ok := c.refused[command]; ok {
					c.violationLocked("group %d applied at %d.%d a command that was refused as certainly not applied by %s", group, i+1, ordinal, reason)
				}
			}
		}
	}
}

// checkDigests compares the digests of all replicas at one index.
func (c *checker) checkDigest(group, index uint64, node string, hash, records uint64, first *digestOf) {
	if first.node == "" {
		*first = digestOf{node, hash, records}
		return
	}
	if first.hash != hash || first.records != records {
		c.violation("digests of group %d at index %d differ: %s has %016x over %d records, %s has %016x over %d",
			group, index, first.node, first.hash, first.records, node, hash, records)
	}
}

type digestOf struct {
	node          string
	hash, records uint64
}
