package raftnode

import (
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// encodeMembership encodes deterministically: the bytes are part of the applied
// record, which must be equal on all replicas.
func encodeMembership(m *raftv1.Membership) ([]byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("raftnode: group %d: encode membership: %w", m.GetGroup(), err)
	}
	return data, nil
}

// DecodeMembership decodes the Membership of an Applied record or an Entry. Nil
// gives an empty membership.
func DecodeMembership(data []byte) (*raftv1.Membership, error) {
	m := &raftv1.Membership{}
	if err := proto.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("raftnode: membership of %d bytes does not decode: %w", len(data), err)
	}
	return m, nil
}

// confStateOf returns etcd-raft's view of a membership.
func confStateOf(m *raftv1.Membership) *raftpb.ConfState {
	return &raftpb.ConfState{
		Voters:         slices.Clone(m.GetVoters()),
		Learners:       slices.Clone(m.GetLearners()),
		VotersOutgoing: slices.Clone(m.GetVotersOutgoing()),
		LearnersNext:   slices.Clone(m.GetLearnersNext()),
		AutoLeave:      new(m.GetAutoLeave()),
	}
}

// membershipAfter returns the membership after a configuration change at index
// that left raft with conf. Replicas that conf no longer names become
// tombstones; new ones are taken from the change's context.
func membershipAfter(old *raftv1.Membership, conf *raftpb.ConfState, context []byte, index uint64) (*raftv1.Membership, error) {
	var added raftv1.MemberContext
	if err := proto.Unmarshal(context, &added); err != nil {
		return nil, fmt.Errorf("raftnode: group %d: context of the configuration change at index %d does not decode: %w", old.GetGroup(), index, err)
	}
	m := proto.CloneOf(old)
	m.Voters = slices.Sorted(slices.Values(conf.GetVoters()))
	m.Learners = slices.Sorted(slices.Values(conf.GetLearners()))
	m.VotersOutgoing = slices.Sorted(slices.Values(conf.GetVotersOutgoing()))
	m.LearnersNext = slices.Sorted(slices.Values(conf.GetLearnersNext()))
	m.AutoLeave = conf.GetAutoLeave()

	for _, r := range added.GetReplicas() {
		if i := slices.IndexFunc(m.Replicas, func(o *raftv1.Replica) bool { return o.GetRaftId() == r.GetRaftId() }); i >= 0 {
			m.Replicas[i].Node, m.Replicas[i].Address = r.GetNode(), r.GetAddress()
			continue
		}
		m.Replicas = append(m.Replicas, &raftv1.Replica{
			RaftId: r.GetRaftId(), Node: r.GetNode(), Address: r.GetAddress(), AddedIndex: index,
			NodeIncarnation: r.GetNodeIncarnation(),
		})
	}
	named := func(id uint64) bool {
		return slices.Contains(m.Voters, id) || slices.Contains(m.Learners, id) ||
			slices.Contains(m.VotersOutgoing, id) || slices.Contains(m.LearnersNext, id)
	}
	m.Replicas = slices.DeleteFunc(m.Replicas, func(r *raftv1.Replica) bool {
		if named(r.GetRaftId()) {
			return false
		}
		m.Removed = append(m.Removed, r.GetRaftId())
		return true
	})
	slices.SortFunc(m.Replicas, func(a, b *raftv1.Replica) int {
		if a.GetRaftId() < b.GetRaftId() {
			return -1
		}
		return 1
	})
	slices.Sort(m.Removed)
	m.Removed = slices.Compact(m.Removed)
	return m, nil
}

// foundingEntries returns the first log entries of a group: one change per
// founder, at index 1..n and term 1, equal on every replica.
func foundingEntries(f *raftv1.Founding, group uint64) ([]*raftpb.Entry, error) {
	var entries []*raftpb.Entry
	for _, n := range f.GetNodes() {
		id, ok := replicaIDOf(n.GetReplicas(), group)
		if !ok {
			return nil, fmt.Errorf("raftnode: the founding record has no replica of group %d on node %s", group, n.GetNode())
		}
		context, err := proto.MarshalOptions{Deterministic: true}.Marshal(&raftv1.MemberContext{
			Replicas: []*raftv1.Replica{{RaftId: id, Node: n.GetNode(), Address: n.GetAddress()}},
		})
		if err != nil {
			return nil, fmt.Errorf("raftnode: group %d: encode founding entry: %w", group, err)
		}
		change := &raftpb.ConfChangeV2{
			Changes: []*raftpb.ConfChangeSingle{{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: new(id)}},
			Context: context,
		}
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(change)
		if err != nil {
			return nil, fmt.Errorf("raftnode: group %d: encode founding entry: %w", group, err)
		}
		entries = append(entries, &raftpb.Entry{
			Type:  raftpb.EntryConfChangeV2.Enum(),
			Term:  new(uint64(1)),
			Index: new(uint64(len(entries) + 1)),
			Data:  data,
		})
	}
	return entries, nil
}

func replicaIDOf(ids []*raftv1.ReplicaId, group uint64) (uint64, bool) {
	for _, r := range ids {
		if r.GetGroup() == group {
			return r.GetRaftId(), true
		}
	}
	return 0, false
}

// decodeConfChange reads a configuration change of either version.
func decodeConfChange(e *raftpb.Entry) (*raftpb.ConfChangeV2, error) {
	switch e.GetType() {
	case raftpb.EntryConfChangeV2:
		cc := &raftpb.ConfChangeV2{}
		if err := proto.Unmarshal(e.GetData(), cc); err != nil {
			return nil, fmt.Errorf("raftnode: configuration change at index %d does not decode: %w", e.GetIndex(), err)
		}
		return cc, nil
	case raftpb.EntryConfChange:
		cc := &raftpb.ConfChange{}
		if err := proto.Unmarshal(e.GetData(), cc); err != nil {
			return nil, fmt.Errorf("raftnode: configuration change at index %d does not decode: %w", e.GetIndex(), err)
		}
		return cc.AsV2(), nil
	}
	return nil, fmt.Errorf("raftnode: entry at index %d is no configuration change", e.GetIndex())
}

// joiningHardState is what the log of a replica starts with that joins a group:
// nothing, but in a way that a lost log can be told from.
func joiningHardState() *raftpb.HardState {
	return &raftpb.HardState{Term: new(uint64(1)), Vote: new(uint64(0)), Commit: new(uint64(0))}
}

// foundingHardState is what every replica starts with: the founding entries
// are committed by definition.
func foundingHardState(entries int) *raftpb.HardState {
	return &raftpb.HardState{Term: new(uint64(1)), Vote: new(uint64(0)), Commit: new(uint64(entries))}
}
