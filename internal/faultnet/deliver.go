package faultnet

import (
	"bytes"
	"container/heap"
	"time"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode/transport"
)

// laneKey names what keeps an order: the messages of one run of a node on one
// lane.
type laneKey struct {
	from *endpoint
	lane raftv1.Lane
}

// laneState is what the receiving endpoint knows of a lane.
type laneState struct {
	arrives  time.Time // when the last message in order arrives
	sequence uint64    // highest delivered
}

// lane returns the state of a lane, and forgets those of runs that ended when
// there are many.
func (e *endpoint) lane(key laneKey) *laneState {
	const many = 64
	s := e.last[key]
	if s == nil {
		if len(e.last) >= many {
			for k, old := range e.last {
				if k.from.closed && time.Since(old.arrives) > time.Minute {
					delete(e.last, k)
				}
			}
		}
		s = new(laneState)
		e.last[key] = s
	}
	return s
}

// flight is a message on its way.
type flight struct {
	from      *endpoint
	key       laneKey
	sent      transport.GroupMessage // the sender's, only compared
	data      []byte                 // as it was when sent
	sequence  uint64
	at        time.Time
	duplicate bool
}

// flights is a heap, the next to arrive first.
type flights []*flight

func (f flights) Len() int { return len(f) }
func (f flights) Less(i, j int) bool {
	if !f[i].at.Equal(f[j].at) {
		return f[i].at.Before(f[j].at)
	}
	return f[i].sequence < f[j].sequence
}
func (f flights) Swap(i, j int) { f[i], f[j] = f[j], f[i] }

// Push is part of heap.Interface.
func (f *flights) Push(x any) { *f = append(*f, x.(*flight)) }

// Pop is part of heap.Interface.
func (f *flights) Pop() any {
	old := *f
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*f = old[:len(old)-1]
	return last
}

// deliver is the goroutine that hands an endpoint's messages to its handler:
// what arrived from one lane in one go, in one call.
func (e *endpoint) deliver() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, generation, next := e.takeDue()
		for len(due) > 0 {
			k := 1
			for k < len(due) && due[k].key == due[0].key {
				k++
			}
			if !e.receive(due[:k], generation) {
				e.lose(len(due))
				break
			}
			due = due[k:]
		}
		if next < 0 {
			timer.Stop()
		} else {
			timer.Reset(next)
		}
		select {
		case <-timer.C:
		case <-e.arrived:
		case <-e.ctx.Done():
			return
		}
	}
}

// takeDue returns what has arrived, and how long until the next does; negative
// if nothing is on the way.
func (e *endpoint) takeDue() (due []*flight, generation uint64, next time.Duration) {
	n := e.net
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	for len(e.arriving) > 0 {
		f := e.arriving[0]
		if wait := f.at.Sub(now); wait > 0 {
			return due, e.generation, wait
		}
		heap.Pop(&e.arriving)
		if n.isCut(f.from.node, e.node) {
			n.counters.Cut++
			continue
		}
		due = append(due, f)
	}
	return due, e.generation, -1
}

// receive decodes messages of one lane and hands them over. It is false, and
// the messages lost, if the endpoint closed or reset its connections after they
// were taken.
func (e *endpoint) receive(arrived []*flight, generation uint64) bool {
	messages := make([]transport.GroupMessage, 0, len(arrived))
	var mutated, undecoded uint64
	for _, f := range arrived {
		now, err := transport.AppendMessages(nil, []transport.GroupMessage{f.sent})
		if err != nil || !bytes.Equal(now, f.data) {
			mutated++
		}
		decoded, err := transport.DecodeMessages(f.data)
		if err != nil {
			undecoded++
			continue
		}
		messages = append(messages, decoded...)
	}
	if !e.count(arrived, generation, mutated, undecoded) {
		return false
	}
	if len(messages) > 0 {
		e.handler.Receive(arrived[0].from.node, messages)
	}
	return true
}

func (e *endpoint) lose(count int) {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	e.net.counters.Lost += uint64(count)
}

func (e *endpoint) count(arrived []*flight, generation, mutated, undecoded uint64) bool {
	n := e.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.closed || e.generation != generation {
		return false
	}
	n.counters.Mutated += mutated
	n.counters.Undecoded += undecoded
	n.counters.Delivered += uint64(len(arrived)) - undecoded
	for _, f := range arrived {
		lane := e.lane(f.key)
		switch {
		case f.duplicate:
			n.counters.Duplicated++
		case f.sequence < lane.sequence:
			n.counters.Reordered++
		default:
			lane.sequence = f.sequence
		}
	}
	return true
}
