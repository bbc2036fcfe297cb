package kv

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// loadApplied reads the applied record with opts, which may be nil. A state
// without one applied nothing.
func loadApplied(db *pebble.DB, opts *pebble.IterOptions) (appliedRecord, error) {
	if opts == nil {
		raw, closer, err := db.Get([]byte(spaceApplied))
		if errors.Is(err, pebble.ErrNotFound) {
			return newAppliedRecord(), nil
		}
		if err != nil {
			return appliedRecord{}, err
		}
		record, err := decodeApplied(raw)
		if closeErr := closer.Close(); err == nil {
			err = closeErr
		}
		return record, err
	}
	iter, err := db.NewIter(opts)
	if err != nil {
		return appliedRecord{}, err
	}
	record, err := readApplied(iter)
	return record, joinClose(err, iter)
}

// readApplied reads the applied record through an iterator.
func readApplied(iter *pebble.Iterator) (appliedRecord, error) {
	if !iter.SeekGE([]byte(spaceApplied)) || string(iter.Key()) != spaceApplied {
		return newAppliedRecord(), iter.Error()
	}
	value, err := iter.ValueAndErr()
	if err != nil {
		return appliedRecord{}, err
	}
	return decodeApplied(value)
}

// loadSessions reads the client sessions and their replies.
func loadSessions(db *pebble.DB, table *sessionTable) error {
	iter, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte(spaceSessions), UpperBound: spaceEnd(spaceSessions)})
	if err != nil {
		return err
	}
	var sessions []*clientSession
	for valid := iter.First(); valid; valid = iter.Next() {
		value, err := iter.ValueAndErr()
		if err == nil {
			sessions, err = loadSessionRow(sessions, iter.Key()[prefixLen:], value)
		}
		if err != nil {
			return joinClose(fmt.Errorf("client session row %x: %w", iter.Key(), err), iter)
		}
	}
	if err := joinClose(iter.Error(), iter); err != nil {
		return err
	}
	table.load(sessions)
	return nil
}

// loadSessionRow adds one row of x/; a client session's own row comes before its
// replies in key order.
func loadSessionRow(sessions []*clientSession, key, value []byte) ([]*clientSession, error) {
	switch len(key) {
	case 8:
		row, err := decodeSessionRow(value)
		if err != nil {
			return sessions, err
		}
		c := &clientSession{id: binary.BigEndian.Uint64(key), row: row, replies: make(map[uint64]recordedReply)}
		return append(sessions, c), nil
	case 16:
		if len(sessions) == 0 || sessions[len(sessions)-1].id != binary.BigEndian.Uint64(key) {
			return sessions, corruptf("a recorded reply without a client session")
		}
		revision, data, err := decodeReplyRow(value)
		if err != nil {
			return sessions, err
		}
		c := sessions[len(sessions)-1]
		if data != nil {
			data = append([]byte(nil), data...)
		}
		c.replies[binary.BigEndian.Uint64(key[8:])] = recordedReply{revision: revision, data: data}
		c.bytes += replyOverhead + len(data)
		return sessions, nil
	}
	return sessions, corruptf("a key of %d bytes", len(key))
}
