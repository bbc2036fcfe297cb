package testcluster

import (
	"strconv"
	"sync"
	"time"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
)

// sessionClient writes in client sessions: it sends sequences out of order and
// beside each other, tries again until it knows, and repeats what it knows.
type sessionClient struct {
	*client

	mu       sync.Mutex // writes of one window run beside each other
	id       uint64
	next     uint64 // next sequence
	opens    int    // attempts to open a client session
	mark     uint64 // low-water mark to send
	finished *sessionWrite
}

// sessionWrite is one write in a client session.
type sessionWrite struct {
	sequence uint64
	key      string
	value    string
	txn      *kvv1.Txn
	attempts [][]byte
	revision uint64
}

// maxWindow is the number of sequences that are open at once.
const maxWindow = 4

// work is the loop of a session client.
func (s *sessionClient) work() {
	for s.load.running() {
		if s.id == 0 && !s.open() {
			continue
		}
		s.window()
		if !pause(s.load.ctx, time.Duration(20+s.random.IntN(200))*time.Millisecond) {
			return
		}
	}
}

// open opens a client session; some expire soon, since clocks jump.
func (s *sessionClient) open() bool {
	ttl := time.Hour
	if s.random.IntN(4) == 0 {
		ttl = time.Minute
	}
	answer, known := s.write(raftnode.FirstDataGroup, func() []byte {
		// The time to live makes the command unique.
		s.opens++
		return s.encode(kv.EncodeOpenClientSession(nil, ttl+time.Duration(s.number)*time.Second+time.Duration(s.opens)*time.Millisecond))
	})
	if known != applied {
		pause(s.load.ctx, 100*time.Millisecond)
		return false
	}
	s.id, s.next, s.mark, s.finished = answer.GetRevision(), 1, 1, nil
	s.load.c.trace.add("client %d opens client session %d", s.number, s.id)
	return true
}

// window sends some sequences, the later ones first more often than not, and
// waits until each is known.
func (s *sessionClient) window() {
	writes := make([]*sessionWrite, 1+s.random.IntN(maxWindow))
	for i := range writes {
		id, value := s.value()
		base := "swap/" + strconv.Itoa(s.number)
		if s.random.IntN(3) == 0 {
			base = "swap/shared"
		}
		key, _ := s.load.keys.use(base)
		writes[i] = &sessionWrite{sequence: s.next, key: key, value: id, txn: &kvv1.Txn{Success: []*kvv1.TxnOperation{
			{Operation: &kvv1.TxnOperation_Get{Get: &kvv1.TxnGet{Key: []byte(key)}}},
			{Operation: &kvv1.TxnOperation_Put{Put: &kvv1.Put{Key: []byte(key), Value: value}}},
		}}}
		s.next++
	}
	session := s.id
	beside := s.random.IntN(2) == 0
	order := s.random.Perm(len(writes))
	var pending sync.WaitGroup
	for _, i := range order {
		// Each has a client of its own: they share nothing but the session.
		twin := s.twin()
		if beside {
			pending.Go(func() { s.send(twin, session, writes[i]) })
		} else {
			s.send(twin, session, writes[i])
		}
	}
	pending.Wait()
	if s.id != session {
		return
	}
	if s.finished != nil && s.random.IntN(2) == 0 {
		s.repeat(s.finished)
	}
	// The mark stays below one that may be repeated later.
	s.finished = writes[s.random.IntN(len(writes))]
	if s.finished.revision == 0 {
		s.finished = nil
		return
	}
	s.mark = s.finished.sequence
}

// twin returns a client with the same number and chance of its own.
func (s *sessionClient) twin() *client {
	t := *s.client
	t.random = newRandom(s.random.Uint64(), 2)
	return &t
}

// sessionAttempts bounds how often a write in a client session is tried.
const sessionAttempts = 40

// send writes until the outcome is known. The session makes that safe.
func (s *sessionClient) send(cl *client, session uint64, w *sessionWrite) {
	c := s.load.c
	call := s.load.history.now()
	var last error
	for range sessionAttempts {
		r := cl.pick(last)
		if r == nil {
			if !pause(s.load.ctx, 100*time.Millisecond) {
				break
			}
			continue
		}
		if len(w.attempts) > 0 {
			c.checker.count(func(t *Totals) { t.SessionRetries++ })
		}
		command := s.command(cl, session, w)
		if cl.random.IntN(5) == 0 {
			// The same once more, at the same time.
			s.besideAttempt(cl, r, command)
		}
		result, known, err := cl.attempt(r, raftnode.FirstDataGroup, command, time.Duration(200+cl.random.IntN(800))*time.Millisecond)
		if known == applied {
			s.answered(cl, r, session, w, result, call)
			return
		}
		if last = err; !pause(s.load.ctx, time.Duration(20+cl.random.IntN(300))*time.Millisecond) {
			break
		}
	}
	s.forget(session)
	s.ended(cl, w, call, nil)
}

// command encodes an attempt and remembers it.
func (s *sessionClient) command(cl *client, session uint64, w *sessionWrite) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	command := cl.encode(kv.EncodeTxn(nil, w.txn, &kvv1.ClientSessionRef{Id: session, Sequence: w.sequence, LowWaterMark: s.mark}))
	w.attempts = append(w.attempts, command)
	return command
}

// besideAttempt submits a command without waiting for it.
func (s *sessionClient) besideAttempt(cl *client, r *run, command []byte) {
	g, err := r.node.Group(raftnode.FirstDataGroup)
	if err != nil {
		s.load.c.checker.violation("%v", err)
		return
	}
	// Whether it was taken does not matter, its answer neither.
	_ = g.Submit(command, func(raftnode.Result, error) {})
}

// answered looks at the answer to a write.
func (s *sessionClient) answered(cl *client, r *run, session uint64, w *sessionWrite, result raftnode.Result, call int64) {
	c := s.load.c
	answer, failure, err := kv.DecodeResult(result)
	switch {
	case err != nil:
		c.checker.violation("%s answered with %v", r, err)
	case failure.GetReason() == kvv1.Reason_REASON_SESSION_EXPIRED:
		c.trace.add("client %d: client session %d expired", s.number, session)
		s.forget(session)
		// It may have been applied before, by an attempt that was not answered.
		s.ended(cl, w, call, nil)
	case failure != nil:
		c.checker.violation("%s refused sequence %d of client session %d, which is not finished: %v", r, w.sequence, session, failure)
	default:
		w.revision = answer.GetRevision()
		s.checkRevision(r, w, result, w.revision)
		s.ended(cl, w, call, answer)
	}
}

// checkRevision checks that the write stands where the answer says, and counts
// answers from the record.
func (s *sessionClient) checkRevision(r *run, w *sessionWrite, result raftnode.Result, revision uint64) {
	c := s.load.c
	if result.Revision != revision {
		c.checker.count(func(t *Totals) { t.Duplicates++ })
	}
	s.mu.Lock()
	attempts := append([][]byte(nil), w.attempts...)
	s.mu.Unlock()
	c.checker.acknowledged(r.member.name, raftnode.FirstDataGroup, revision, attempts)
}

// ended adds the write to the history; answer nil: uncertain.
func (s *sessionClient) ended(cl *client, w *sessionWrite, call int64, answer *kvv1.OperationResult) {
	s.load.c.checker.count(func(t *Totals) {
		t.Operations++
		if answer == nil {
			t.Uncertain++
		}
	})
	o := operation{
		client: cl.number, model: modelRegister, partition: w.key, call: call, ret: s.load.history.now(),
		input: registerInput{kind: registerSwap, value: w.value},
	}
	if answer != nil {
		out := &registerOutput{written: answer.GetRevision()}
		out.setRead(answer.GetTxn()[0].GetRecord())
		o.output = out
	}
	s.load.history.add(o)
}

// forget gives a client session up.
func (s *sessionClient) forget(session uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == session {
		s.id = 0
	}
}

// repeat sends a finished sequence again: it must be answered as the first time
// and change nothing.
func (s *sessionClient) repeat(w *sessionWrite) {
	c := s.load.c
	r := s.pick(nil)
	if r == nil {
		return
	}
	c.checker.count(func(t *Totals) { t.SessionRetries++ })
	result, known, _ := s.attempt(r, raftnode.FirstDataGroup, s.command(s.client, s.id, w), time.Second)
	if known != applied {
		return
	}
	answer, failure, err := kv.DecodeResult(result)
	switch {
	case err != nil:
		c.checker.violation("%s answered with %v", r, err)
	case failure.GetReason() == kvv1.Reason_REASON_SESSION_EXPIRED:
		s.forget(s.id)
	case failure != nil || answer.GetRevision() != w.revision:
		c.checker.violation("%s answered sequence %d of client session %d, applied at revision %d, with revision %d, %v",
			r, w.sequence, s.id, w.revision, answer.GetRevision(), failure)
	default:
		s.checkRevision(r, w, result, w.revision)
	}
}
