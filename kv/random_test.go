package kv

import (
	"fmt"
	"math/rand/v2"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// randomLog makes logs that hold every kind of command, client sessions that
// expire, empty entries, broken commands, new terms and membership changes, on
// few keys so that they meet.
type randomLog struct {
	testLog
	random   *rand.Rand
	sessions []uint64
	next     map[uint64]uint64
	value    int // largest value
	wide     int // puts of an index that now and then has so many more
}

func newRandomLog(seed uint64) *randomLog {
	return &randomLog{
		testLog: *newTestLog(), random: rand.New(rand.NewPCG(seed, 7)), next: make(map[uint64]uint64), value: 20,
	}
}

// grow adds n indexes and returns all entries.
func (l *randomLog) grow(n int) []raftnode.Entry {
	for range n {
		l.clock += l.random.Int64N(60)
		if l.random.IntN(15) == 0 {
			l.term += 1 + l.random.Uint64N(2)
		}
		var commands [][]byte
		for range l.random.IntN(4) {
			commands = append(commands, l.command(uint16(len(commands))))
		}
		if l.wide > 0 && l.random.IntN(25) == 0 {
			for range l.wide {
				commands = append(commands, EncodePut(nil, l.key(), l.bytes(), nil))
			}
		}
		l.add(commands...)
		if len(commands) == 0 && l.random.IntN(3) == 0 {
			l.entries[len(l.entries)-1].Membership = fmt.Appendf(nil, "members at %d", l.index)
		}
	}
	return l.entries
}

func (l *randomLog) key() []byte { return []byte{'k', byte('a' + l.random.IntN(8))} }

func (l *randomLog) bytes() []byte {
	b := make([]byte, l.random.IntN(l.value))
	for i := range b {
		b[i] = byte(l.random.Uint32())
	}
	return b
}

func (l *randomLog) session() *kvv1.ClientSessionRef {
	if len(l.sessions) == 0 || l.random.IntN(2) == 0 {
		return nil
	}
	id := l.sessions[l.random.IntN(len(l.sessions))]
	l.next[id]++
	sequence := l.next[id]
	// Repeat or skip now and then, and let the mark trail.
	switch l.random.IntN(4) {
	case 0:
		sequence -= min(sequence-1, l.random.Uint64N(4))
	case 1:
		l.next[id] += l.random.Uint64N(3)
	}
	return ref(id, sequence, max(1, sequence-min(sequence, l.random.Uint64N(6))))
}

func (l *randomLog) command(ordinal uint16) []byte {
	session := l.session()
	switch l.random.IntN(16) {
	case 0, 1, 2, 3, 4:
		return EncodePut(nil, l.key(), l.bytes(), session)
	case 5, 6:
		return EncodeDelete(nil, l.key(), session)
	case 7:
		return EncodeDeleteRange(nil, l.key(), l.key(), session)
	case 8, 9:
		return must(EncodeTxn(nil, l.txn(), session))
	case 10:
		return must(EncodeBatch(nil, &kvv1.Batch{Operations: l.writes()}, session))
	case 11:
		l.sessions = append(l.sessions, raftnode.Revision(l.index+1, ordinal))
		if len(l.sessions) > 4 {
			l.sessions = l.sessions[1:]
		}
		return must(EncodeCommand(nil, &kvv1.Command{Command: &kvv1.Command_OpenClientSession{
			OpenClientSession: &kvv1.OpenClientSession{TimeToLiveMs: 100 + l.random.Uint64N(2000)},
		}}))
	case 12:
		write := &kvv1.RegistryWrite{Operations: l.writes()}
		if l.random.IntN(2) == 0 {
			write.Compares = l.compares()
		}
		return must(EncodeRegistryWrite(nil, write))
	case 13:
		return must(EncodeSetFeedMode(nil, kvv1.FeedMode(l.random.IntN(4))))
	case 14:
		if len(l.sessions) > 0 && l.random.IntN(3) == 0 {
			return must(EncodeCloseClientSession(nil, l.sessions[0]))
		}
		return must(EncodeTakeDigest(nil))
	}
	return []byte{0x12, 0x7f, 1}
}

func (l *randomLog) compares() []*kvv1.Compare {
	switch c := (&kvv1.Compare{Key: l.key()}); l.random.IntN(3) {
	case 0:
		c.Condition = &kvv1.Compare_Exists{Exists: l.random.IntN(2) == 0}
		return []*kvv1.Compare{c}
	case 1:
		c.Condition = &kvv1.Compare_Revision{Revision: &kvv1.RevisionCompare{
			Operator: kvv1.RevisionCompare_Operator(1 + l.random.IntN(4)),
			Revision: raftnode.Revision(l.random.Uint64N(l.index+1), 0),
		}}
		return []*kvv1.Compare{c}
	}
	return nil
}

func (l *randomLog) writes() []*kvv1.BatchOperation {
	var ops []*kvv1.BatchOperation
	for range l.random.IntN(4) {
		switch l.random.IntN(4) {
		case 0:
			ops = append(ops, &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_Delete{Delete: &kvv1.Delete{Key: l.key()}}})
		case 1:
			ops = append(ops, &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_DeleteRange{DeleteRange: &kvv1.DeleteRange{Start: l.key(), End: l.key()}}})
		default:
			ops = append(ops, &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_Put{Put: &kvv1.Put{Key: l.key(), Value: l.bytes()}}})
		}
	}
	return ops
}

func (l *randomLog) txn() *kvv1.Txn {
	steps := func() []*kvv1.TxnOperation {
		var ops []*kvv1.TxnOperation
		for range l.random.IntN(5) {
			switch l.random.IntN(5) {
			case 0:
				ops = append(ops, &kvv1.TxnOperation{Operation: &kvv1.TxnOperation_Delete{Delete: &kvv1.Delete{Key: l.key()}}})
			case 1:
				ops = append(ops, &kvv1.TxnOperation{Operation: &kvv1.TxnOperation_DeleteRange{DeleteRange: &kvv1.DeleteRange{Start: l.key(), End: l.key()}}})
			case 2:
				ops = append(ops, &kvv1.TxnOperation{Operation: &kvv1.TxnOperation_Get{Get: &kvv1.TxnGet{Key: l.key()}}})
			default:
				ops = append(ops, &kvv1.TxnOperation{Operation: &kvv1.TxnOperation_Put{Put: &kvv1.Put{Key: l.key(), Value: l.bytes()}}})
			}
		}
		return ops
	}
	return &kvv1.Txn{Compares: l.compares(), Success: steps(), Failure: steps()}
}
