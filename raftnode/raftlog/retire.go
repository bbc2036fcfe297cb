package raftlog

// maintain gives space back: it hands segments nobody needs to the keeper,
// rewrites what little pins the oldest one, and asks for the next segment in
// time.
func (l *Log) maintain() error {
	l.retire()
	if err := l.moveSome(); err != nil {
		return err
	}
	if s := l.active(); s.offset > s.size/2 && len(l.reserved) == 0 {
		l.keeper.prepare(1)
	}
	return nil
}

// retire gives segments up, oldest first: what is left is always a run of
// segments without a hole.
func (l *Log) retire() {
	for len(l.segments) > 1 && l.retirable(l.segments[0], l.segments[1]) {
		l.keeper.retire(l.segments[0])
		l.segments[0] = nil
		l.segments = l.segments[1:]
		l.metrics.segments.Store(int64(len(l.segments)))
	}
}

// retirable tells whether the oldest segment can go. A crash right after must
// find everything without it:
//   - no entry in it is alive, and what made the last one dead (a cut's marker,
//     an entry written over it, a MOVED copy) is synced: else the crash would
//     bring the entry back and find it missing;
//   - the head of the next segment is synced: it holds the hard state and the
//     marker of every group, perhaps now the only copy;
//   - no reader is in it.
func (l *Log) retirable(s, next *segment) bool {
	return s.live == 0 && s.lastDeath <= l.synced && next.head <= l.synced && s.pins.Load() == 0
}
