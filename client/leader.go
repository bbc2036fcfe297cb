package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
)

// trail remembers the last problem per endpoint, for the error at the end.
type trail struct {
	mu       sync.Mutex
	problems map[string]string
	// answered: some node answered, so that it isn't the network.
	answered bool
}

func (t *trail) add(endpoint, problem string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.problems == nil {
		t.problems = map[string]string{}
	}
	if problem == noAnswer && t.problems[endpoint] != "" {
		// The last attempt is often cut short by the caller's deadline; what went
		// wrong before says more.
		return
	}
	t.problems[endpoint] = problem
}

func (t *trail) markAnswered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answered = true
}

func (t *trail) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.problems, t.answered = nil, false
}

// attempts returns the problems in order of endpoint, and whether any node
// answered.
func (t *trail) attempts() ([]Attempt, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []Attempt
	for _, endpoint := range slices.Sorted(maps.Keys(t.problems)) {
		list = append(list, Attempt{Endpoint: endpoint, Problem: t.problems[endpoint]})
	}
	return list, t.answered
}

// candidate is a leader as one node sees it.
type candidate struct {
	address string
	// alias is the address the leader gives itself, where it was reached at
	// another one.
	alias string
	// term in which it leads. Where only a hint is known, the term of a leader
	// before it.
	term uint64
}

// same reports whether two candidates are the same node, as far as addresses
// tell.
func (c candidate) same(o candidate) bool {
	return c.address == o.address || (c.alias != "" && (c.alias == o.address || c.alias == o.alias)) ||
		(o.alias != "" && o.alias == c.address)
}

// leaders caches each group's leader.
type leaders struct {
	mu sync.Mutex
	// byGroup keeps the term of a leader that was forgotten, without address.
	byGroup map[uint64]candidate
}

// get returns the leader; without address if it is not known.
func (l *leaders) get(group uint64) candidate {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byGroup[group]
}

// set keeps a leader that was found by asking.
func (l *leaders) set(group uint64, found candidate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(group, found)
}

// raise keeps a leader that was found by asking if its term is higher than that
// of the known one.
func (l *leaders) raise(group uint64, found candidate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found.address != "" && found.term > l.byGroup[group].term {
		l.put(group, found)
	}
}

// hint keeps a leader that a node named that does not lead. Its term is not
// told.
func (l *leaders) hint(group uint64, address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.byGroup[group]; known.address != address {
		l.put(group, candidate{address: address, term: known.term})
	}
}

// forget drops the cached leader if it still is the one that failed: another
// goroutine may have found the new one.
func (l *leaders) forget(group uint64, failed string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.byGroup[group]; known.address == failed {
		l.put(group, candidate{term: known.term})
	}
}

// put is called with mu held.
func (l *leaders) put(group uint64, c candidate) {
	if l.byGroup == nil {
		l.byGroup = map[uint64]candidate{}
	}
	l.byGroup[group] = c
}

// errNoLeader: nobody named a leader; the trail says why.
var errNoLeader = errors.New("no leader found")

// findLeader returns the group's leader: the cached one, or the one of the
// highest term that the known nodes name. What each answered goes to t.
func (c *Client) findLeader(ctx context.Context, group uint64, t *trail) (candidate, error) {
	if known := c.leaders.get(group); known.address != "" {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	found := c.askAll(ctx, group, 0, t).leader
	if found.address == "" {
		return candidate{}, errNoLeader
	}
	c.options.Logger.Debug("found the leader", "group", group, "address", found.address, "term", found.term)
	c.leaders.set(group, found)
	return found, nil
}
