package raftnode

import (
	"errors"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/streamraft/streamraft/raftnode/raftlog"
)

// logStorage shows a group's log to raft.
type logStorage struct {
	log   *raftlog.Group
	group *Group
	// broken is the first error of reading the log that is none of raft's own.
	broken error
	// commit and conf are what raft starts with: the commit index of the hard
	// state, raised to the applied index (a commit-only hard state may not have
	// been synced before the crash, while the state machine was), and the
	// configuration of the applied record.
	commit uint64
	conf   *raftpb.ConfState
}

// InitialState returns the hard state and the configuration raft starts with.
func (s *logStorage) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	hs := s.log.HardState()
	hs.Commit = new(max(hs.GetCommit(), s.commit))
	return hs, s.conf, nil
}

// Entries returns entries of the log; see raft.Storage.
func (s *logStorage) Entries(lo, hi, maxSize uint64) ([]*raftpb.Entry, error) {
	entries, err := s.log.Entries(lo, hi, maxSize)
	return entries, s.noted(err)
}

// noted keeps an error that raft will panic on, so that the failure can say what
// it was.
func (s *logStorage) noted(err error) error {
	if err != nil && s.broken == nil && !errors.Is(err, raft.ErrCompacted) && !errors.Is(err, raft.ErrUnavailable) {
		s.broken = err
	}
	return err
}

// failure returns the error that reading the log failed with, if any.
func (s *logStorage) failure() error {
	if s == nil {
		return nil
	}
	return s.broken
}

// Term returns the term of an entry; see raft.Storage.
func (s *logStorage) Term(i uint64) (uint64, error) { return s.log.Term(i) }

// LastIndex returns the index of the last entry.
func (s *logStorage) LastIndex() (uint64, error) { return s.log.LastIndex(), nil }

// FirstIndex returns the index of the first entry that is kept.
func (s *logStorage) FirstIndex() (uint64, error) { return s.log.FirstIndex(), nil }

// Snapshot returns the position that an image would have now, without an image:
// what raft makes of it is turned into an Offer before it leaves the node.
func (s *logStorage) Snapshot() (*raftpb.Snapshot, error) {
	applied := s.group.applier.position.Load()
	if s.group.images == nil || applied.Index == 0 {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	return &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
		Index: new(applied.Index), Term: new(applied.Term), ConfState: confStateOf(s.group.members.Load()),
	}}, nil
}
