package kv

import (
	"fmt"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// inSession applies a command at most once. Sequences of a client session may
// arrive in any order (writes are pipelined and a retry may overtake), so the
// highest sequence seen says nothing about a lower one: the low-water mark does,
// together with a recorded reply per sequence from it on. After chapter 6.3 of
// the raft thesis, which leaves the window to the implementer.
func (w *writer) inSession(c *command) ([]byte, error) {
	session := w.sessions.byID[c.session.id]
	if session == nil {
		return failureData(kvv1.Reason_REASON_SESSION_EXPIRED,
			fmt.Sprintf("kv: client session %d is unknown or expired: open a new one", c.session.id))
	}
	w.sessions.touch(session, w.clock, w.revision)
	w.markTouched(session)
	for _, sequence := range w.sessions.raise(session, c.session.mark) {
		if err := w.deleteRaw(replyKey(nil, session.id, sequence)); err != nil {
			return nil, err
		}
	}
	if c.session.sequence < session.row.mark {
		return failureData(kvv1.Reason_REASON_SEQUENCE_TOO_OLD,
			fmt.Sprintf("kv: sequence %d lies below the low-water mark %d of client session %d", c.session.sequence, session.row.mark, session.id))
	}
	if reply, ok := session.replies[c.session.sequence]; ok {
		w.s.counters.repeated.Add(1)
		if reply.data != nil {
			return reply.data, nil
		}
		return successData(&kvv1.OperationResult{Revision: reply.revision})
	}
	if w.sessions.full(session) {
		return failureData(kvv1.Reason_REASON_OVERLOADED,
			fmt.Sprintf("kv: client session %d has %d unfinished sequences: raise its low-water mark", session.id, len(session.replies)))
	}
	data, err := w.execute(c)
	if err != nil || failed(data) {
		return data, err
	}
	w.sessions.record(session, c.session.sequence, recordedReply{revision: w.revision, data: data})
	w.row = appendReplyRow(w.row[:0], w.revision, data)
	if err := w.setRaw(replyKey(nil, session.id, c.session.sequence), w.row); err != nil {
		return nil, err
	}
	for w.sessions.bytes > w.sessions.bounds.tableBytes {
		// session is the one used last, so it goes last.
		if err := w.endSession(w.sessions.oldest()); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// openSession adds a client session whose id is the revision.
func (w *writer) openSession(ttlMillis uint64) error {
	if ttlMillis == 0 {
		ttlMillis = defaultSessionTTLMillis
	}
	for len(w.sessions.byID) >= w.sessions.bounds.sessions {
		if err := w.endSession(w.sessions.oldest()); err != nil {
			return err
		}
	}
	session := w.sessions.open(w.revision, sessionRow{ttlMillis: ttlMillis, lastClock: w.clock, lastRevision: w.revision})
	w.markTouched(session)
	return nil
}

// closeSession ends a client session on request.
func (w *writer) closeSession(id uint64) ([]byte, error) {
	session := w.sessions.byID[id]
	if session == nil {
		return failureData(kvv1.Reason_REASON_SESSION_EXPIRED, fmt.Sprintf("kv: client session %d is unknown or expired", id))
	}
	return nil, w.endSession(session)
}

// endSession removes a client session and its replies.
func (w *writer) endSession(session *clientSession) error {
	w.sessions.end(session)
	lower, upper := sessionSpan(session.id)
	return w.deleteSpan(lower, upper)
}

// expireSessions removes the client sessions that are expired at the clock.
func (w *writer) expireSessions() error {
	for _, session := range w.sessions.expired(w.clock) {
		w.s.counters.expired.Add(1)
		lower, upper := sessionSpan(session.id)
		if err := w.deleteSpan(lower, upper); err != nil {
			return err
		}
	}
	return nil
}

// markTouched remembers to write the row of a client session once at the end of
// the index, however many of its commands the index holds.
func (w *writer) markTouched(session *clientSession) {
	if !session.dirty {
		session.dirty = true
		w.touched = append(w.touched, session)
	}
}

// writeTouched writes the rows of the client sessions that the index used.
func (w *writer) writeTouched() error {
	for _, session := range w.touched {
		session.dirty = false
		if session.ended {
			continue
		}
		w.row = appendSessionRow(w.row[:0], session.row)
		if err := w.setRaw(sessionKey(nil, session.id), w.row); err != nil {
			return err
		}
	}
	return nil
}
