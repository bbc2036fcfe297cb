package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
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

// leaders caches the address of each group's leader.
type leaders struct {
	mu      sync.Mutex
	byGroup map[uint64]string
}

func (l *leaders) get(group uint64) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byGroup[group]
}

func (l *leaders) set(group uint64, address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byGroup == nil {
		l.byGroup = map[uint64]string{}
	}
	l.byGroup[group] = address
}

// forget drops the cached leader if it still is the one that failed: another
// goroutine may have found the new one.
func (l *leaders) forget(group uint64, failed string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byGroup[group] == failed {
		delete(l.byGroup, group)
	}
}

// errNoLeader: nobody named a leader; the trail says why.
var errNoLeader = errors.New("no leader found")

// candidate is a leader as one node sees it.
type candidate struct {
	address string
	term    uint64
}

// Times of a discovery.
const (
	// statusTimeout bounds one node's answer.
	statusTimeout = time.Second
	// candidateGrace is how long slower nodes may still name a leader of a
	// higher term than the first one found.
	candidateGrace = 200 * time.Millisecond
)

// findLeader returns the address of the group's leader: the cached one, or the
// one of the highest term that the known nodes name. It asks all of them at
// once, so that a silent one costs little. What each answered goes to t.
func (c *Client) findLeader(ctx context.Context, group uint64, t *trail) (string, error) {
	if address := c.leaders.get(group); address != "" {
		return address, nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	addresses := c.connections.known()
	answers := make(chan candidate, len(addresses))
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	for _, address := range addresses {
		asking.Go(func() { answers <- c.askLeader(ctx, address, group, t) })
	}
	var best candidate
	var grace <-chan time.Time
	for range addresses {
		select {
		case found := <-answers:
			if found.address != "" && found.term >= best.term {
				best = found
			}
			if best.address != "" && grace == nil {
				timer := time.NewTimer(candidateGrace)
				defer timer.Stop()
				grace = timer.C
			}
			continue
		case <-grace:
		}
		break
	}
	if best.address == "" {
		return "", errNoLeader
	}
	c.options.Logger.Debug("found the leader", "group", group, "address", best.address, "term", best.term)
	c.leaders.set(group, best.address)
	return best.address, nil
}

// askLeader asks one node who leads the group.
func (c *Client) askLeader(ctx context.Context, address string, group uint64, t *trail) candidate {
	conn, err := c.connections.get(address)
	if err != nil {
		t.add(address, err.Error())
		return candidate{}
	}
	status, err := adminv1.NewAdminServiceClient(conn).Status(ctx, &adminv1.StatusRequest{})
	if err != nil {
		t.add(address, judgeError(err).message)
		return candidate{}
	}
	t.markAnswered()
	for _, node := range status.GetNodes() {
		c.connections.learn(node.GetAddress())
	}
	switch {
	case status.GetFailure() != "":
		t.add(address, "failed: "+status.GetFailure())
		return candidate{}
	case status.GetFounding():
		t.add(address, "waits for the other founders")
		return candidate{}
	}
	for _, g := range status.GetGroups() {
		if g.GetGroup() != group {
			continue
		}
		switch {
		case g.GetRole() == adminv1.Role_ROLE_LEADER:
			// The address that reached it, which may differ from the one it
			// gives itself.
			return candidate{address: address, term: g.GetTerm()}
		case g.GetLeaderAddress() != "":
			return candidate{address: g.GetLeaderAddress(), term: g.GetTerm()}
		}
		t.add(address, "knows no leader")
		return candidate{}
	}
	t.add(address, fmt.Sprintf("has no replica of group %d", group))
	return candidate{}
}
