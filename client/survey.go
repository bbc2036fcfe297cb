package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

// Times of a survey.
const (
	// statusTimeout bounds one node's answer.
	statusTimeout = time.Second
	// candidateGrace is how long slower nodes may still name a leader of a
	// higher term than the first one found.
	candidateGrace = 200 * time.Millisecond
)

// survey is what all known nodes said of a group.
type survey struct {
	// leader of the highest term that a node named; without address if none did.
	leader candidate
	// answered are the addresses of the nodes that answered and can serve.
	answered []string
	// complete: every node had the whole time to answer.
	complete bool
}

// opinion is one node's answer.
type opinion struct {
	address string
	// serves: it answered, and neither failed nor waits for its founding.
	serves bool
	// leader it names; itself says that it leads.
	leader candidate
	itself bool
}

// askAll asks all known nodes at once who leads a group, so that a silent one
// costs little: at most the time that ctx leaves, and not more than
// candidateGrace once a leader of a term above floor is named. What each answered
// goes to t.
func (c *Client) askAll(ctx context.Context, group, floor uint64, t *trail) survey {
	ctx, cancel := context.WithCancel(ctx)
	addresses := c.connections.known()
	answers := make(chan opinion, len(addresses))
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	for _, address := range addresses {
		asking.Go(func() { answers <- c.askLeader(ctx, address, group, t) })
	}
	var s survey
	byItself := false
	var grace <-chan time.Time
	for range addresses {
		select {
		case o := <-answers:
			if o.serves {
				s.answered = append(s.answered, o.address)
			}
			// Of one term the leader itself knows best: others may reach it at
			// another address.
			if o.leader.address != "" && (o.leader.term > s.leader.term || (o.leader.term == s.leader.term && !byItself)) {
				s.leader, byItself = o.leader, o.itself
			}
			if s.leader.address != "" && s.leader.term > floor && grace == nil {
				timer := time.NewTimer(candidateGrace)
				defer timer.Stop()
				grace = timer.C
			}
		case <-grace:
			return s
		}
	}
	s.complete = true
	return s
}

// askLeader asks one node who leads the group.
func (c *Client) askLeader(ctx context.Context, address string, group uint64, t *trail) opinion {
	o := opinion{address: address}
	conn, err := c.connections.get(address)
	if err != nil {
		t.add(address, err.Error())
		return o
	}
	status, err := adminv1.NewAdminServiceClient(conn).Status(ctx, &adminv1.StatusRequest{})
	if err != nil {
		t.add(address, judgeError(err).message)
		return o
	}
	t.markAnswered()
	for _, node := range status.GetNodes() {
		c.connections.learn(node.GetAddress())
	}
	switch {
	case status.GetFailure() != "":
		t.add(address, "failed: "+status.GetFailure())
		return o
	case status.GetFounding():
		t.add(address, "waits for the other founders")
		return o
	}
	o.serves = true
	for _, g := range status.GetGroups() {
		if g.GetGroup() != group {
			continue
		}
		switch {
		case g.GetRole() == adminv1.Role_ROLE_LEADER:
			// The address that reached it, which may differ from the one it
			// gives itself.
			o.leader, o.itself = candidate{address: address, alias: g.GetLeaderAddress(), term: g.GetTerm()}, true
		case g.GetLeaderAddress() != "":
			o.leader = candidate{address: g.GetLeaderAddress(), term: g.GetTerm()}
		default:
			t.add(address, "knows no leader")
		}
		return o
	}
	t.add(address, fmt.Sprintf("has no replica of group %d", group))
	return o
}
