package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// maxAbandoned is how many attempts of one call are abandoned for a stall. A call
// that every node is slow with must not go round for ever.
const maxAbandoned = 3

// supersedes reports whether another node leads by now: one of a higher term than
// that in which at was found. The term matters: of the same term another address
// is only another name.
func (s survey) supersedes(at candidate) bool {
	return s.leader.address != "" && s.leader.term > at.term && !s.leader.same(at)
}

// leave decides whether a call that stalls at a node is better done at another
// one, and at which.
func (s survey) leave(t target, at candidate) (next candidate, ok bool) {
	switch {
	case s.supersedes(at):
		return s.leader, true
	case t != toAny:
		return candidate{}, false
	case s.leader.address != "" && !s.leader.same(at) && slices.Contains(s.answered, s.leader.address):
		// A node that follows waits for the leader; it may be cut off from it.
		return s.leader, true
	case s.complete && !slices.Contains(s.answered, at.address):
		for _, address := range s.answered {
			return candidate{address: address, term: at.term}, true
		}
	}
	return candidate{}, false
}

// surveys keeps the newest survey of each group, so that many that stall at the
// same time ask once.
type surveys struct {
	mu      sync.Mutex
	byGroup map[uint64]*sharedSurvey
}

type sharedSurvey struct {
	asking bool
	// at is when latest ended.
	at     time.Time
	latest survey
}

// survey asks all nodes about a group, whatever leader is cached, or returns what
// was just found. ok is false while another goroutine asks, and if ctx ended.
func (c *Client) survey(ctx context.Context, group, floor uint64) (s survey, ok bool) {
	// A node that answers later than this is as good as silent, and a tight
	// bound lets the next question come soon after an election.
	bounded, cancel := context.WithTimeout(ctx, min(max(c.options.StallCheck/2, candidateGrace), statusTimeout))
	defer cancel()
	c.surveys.mu.Lock()
	if c.surveys.byGroup == nil {
		c.surveys.byGroup = map[uint64]*sharedSurvey{}
	}
	shared := c.surveys.byGroup[group]
	if shared == nil {
		shared = &sharedSurvey{}
		c.surveys.byGroup[group] = shared
	}
	if shared.asking || (!shared.at.IsZero() && time.Since(shared.at) < c.options.StallCheck/4) {
		defer c.surveys.mu.Unlock()
		return shared.latest, !shared.asking
	}
	shared.asking = true
	c.surveys.mu.Unlock()

	s = c.askAll(bounded, group, floor, &trail{})
	// If the caller's time ended, the nodes did not have theirs.
	ok = ctx.Err() == nil
	c.leaders.raise(group, s.leader)
	c.surveys.mu.Lock()
	defer c.surveys.mu.Unlock()
	shared.asking = false
	if ok {
		shared.at, shared.latest = time.Now(), s
	}
	return s, ok
}

// stallBackoff makes the pauses between the checks of one stall: short at first,
// since an election may just be under way.
func (c *Client) stallBackoff() backoff {
	return backoff{base: max(c.options.StallCheck/4, time.Millisecond), max: 4 * c.options.StallCheck}
}

// watchAttempt has an attempt of a call cancelled when it stalls and another node
// is the better choice. finish must be called when the attempt has ended; it
// returns that node, without address if there is none.
func (c *Client) watchAttempt(ctx context.Context, cancel context.CancelFunc, o callOptions, at candidate) (finish func() candidate) {
	var next candidate
	done := make(chan struct{})
	timer := time.AfterFunc(c.options.StallCheck, func() {
		defer close(done)
		pause := c.stallBackoff()
		for {
			if s, ok := c.survey(ctx, o.group, at.term); ok {
				if better, leave := s.leave(o.target, at); leave && ctx.Err() == nil {
					next = better
					cancel()
					return
				}
			}
			if wait(ctx, pause.pause()) != nil {
				return
			}
		}
	})
	return func() candidate {
		cancel()
		if !timer.Stop() {
			<-done
		}
		return next
	}
}

// watchStream checks whether the oldest unanswered write of a stream, sent at
// oldest, waits for too long, and has the leader looked for then. It is called
// with mu held, by the watcher.
func (w *Writer) watchStream(s *writeStream, oldest, now time.Time) {
	c := w.client
	if s.leaving || s.checking || oldest.IsZero() || now.Before(oldest.Add(c.options.StallCheck)) {
		return
	}
	if s.checked.Before(oldest) {
		// Another stall than the one before.
		s.checks = c.stallBackoff()
	} else if now.Before(s.nextCheck) {
		return
	}
	s.checking = true
	// The watcher still runs, so that this cannot meet the end of its Wait.
	w.watching.Go(func() { w.checkStream(s, oldest) })
}

// checkStream leaves a stream whose node has been superseded: it sends nothing
// any more and ends, and retire settles what is unanswered.
func (w *Writer) checkStream(s *writeStream, oldest time.Time) {
	found, ok := w.client.survey(w.ctx, DataGroup, s.leader.term)
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	s.checking = false
	s.checked, s.nextCheck = now, now.Add(s.checks.pause())
	if !ok || s.leaving || w.stream != s || !found.supersedes(s.leader) {
		return
	}
	s.leaving = true
	s.hint = found.leader.address
	s.stalled = fmt.Sprintf("no answer for %s, and %s leads by now", now.Sub(oldest).Round(time.Millisecond), s.hint)
	s.cancel()
	wake(w.work)
}
