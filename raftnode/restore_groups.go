package raftnode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/streamraft/streamraft/internal/durable"
	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode/raftlog"
	"github.com/streamraft/streamraft/snapshot"
)

// extract writes the files of the archive, all of which is checked then, and sees
// that a cluster can be made of it.
func (r *restore) extract(ctx context.Context) (*snapshot.Archive, error) {
	seen := make(map[uint64]bool)
	archive, err := snapshot.ExtractArchive(ctx, r.o.Archive, r.o.FS, func(m *snapshotv1.Manifest) (string, error) {
		if seen[m.GetGroup()] {
			return "", fmt.Errorf("%w: it holds group %d twice", snapshot.ErrCorrupt, m.GetGroup())
		}
		seen[m.GetGroup()] = true
		return r.files(m), nil
	})
	if err != nil {
		return nil, fmt.Errorf("raftnode: restore: %w", err)
	}
	var missing []uint64
	for _, group := range append([]uint64{MetaGroup, FirstDataGroup}, archive.Header.GetGroups()...) {
		if !seen[group] && !slices.Contains(missing, group) {
			missing = append(missing, group)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: the archive lacks groups %v of its cluster; restore one of all groups", ErrRefused, missing)
	}
	for _, m := range archive.Manifests {
		h := archive.Header
		if string(m.GetClusterId()) != string(h.GetClusterId()) || m.GetHistoryEpoch() != h.GetHistoryEpoch() {
			return nil, fmt.Errorf("%w: the archive is of cluster %x, history epoch %d, and its group %d of cluster %x, history epoch %d",
				snapshot.ErrCorrupt, h.GetClusterId(), h.GetHistoryEpoch(), m.GetGroup(), m.GetClusterId(), m.GetHistoryEpoch())
		}
		if m.GetIndex() > maxRestoreIndex {
			return nil, fmt.Errorf("%w: group %d is at index %d; above %d there is no room for another history", ErrRefused, m.GetGroup(), m.GetIndex(), uint64(maxRestoreIndex))
		}
	}
	return archive, nil
}

// files is where the files of an image are extracted.
func (r *restore) files(m *snapshotv1.Manifest) string {
	return r.o.FS.PathJoin(r.dir.restoreDir(), fmt.Sprint(m.GetGroup()))
}

// oldMembers lists who belonged to the cluster of an archive.
func oldMembers(archive *snapshot.Archive) []Founder {
	addresses := make(map[string]string)
	for _, m := range archive.Manifests {
		members, err := DecodeMembership(m.GetMembership())
		if err != nil {
			continue // it is told to people only
		}
		for _, r := range members.GetReplicas() {
			addresses[r.GetNode()] = r.GetAddress()
		}
	}
	var list []Founder
	for _, node := range slices.Sorted(maps.Keys(addresses)) {
		list = append(list, Founder{Node: node, Address: addresses[node]})
	}
	return list
}

// base is where a group goes on: above all that the old history may have had, with
// this replica alone.
func (r *restore) base(m *snapshotv1.Manifest, node *raftv1.NodeRecord) (Applied, error) {
	id, _ := replicaIDOf(r.identity.replicas, m.GetGroup())
	index := m.GetIndex() + restoreGap
	members, err := encodeMembership(&raftv1.Membership{
		ClusterId: node.GetClusterId(), HistoryEpoch: node.GetHistoryEpoch(), Group: m.GetGroup(), Voters: []uint64{id},
		Replicas: []*raftv1.Replica{{RaftId: id, Node: r.o.Node, Address: r.o.Address, AddedIndex: index, NodeIncarnation: node.GetNodeIncarnation()}},
	})
	return Applied{Index: index, Term: m.GetTerm(), Clock: m.GetClock(), Membership: members}, err
}

// install makes the state of a group from its image.
func (r *restore) install(ctx context.Context, m *snapshotv1.Manifest, base Applied) (err error) {
	if err := durable.MkdirAll(r.o.FS, r.dir.state(m.GetGroup())); err != nil {
		return err
	}
	machine, ok := r.o.NewStateMachine(m.GetGroup()).(Rebaser)
	if !ok {
		return fmt.Errorf("%w: its state machine cannot be restored: it is no Rebaser", ErrRefused)
	}
	stager, ok := machine.(snapshot.Stager)
	if !ok {
		return fmt.Errorf("%w: its state machine takes no images", ErrRefused)
	}
	if _, err := machine.Open(r.dir.state(m.GetGroup())); err != nil {
		return fmt.Errorf("open the state machine: %w", err)
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	sink, err := stager.Stage(m, r.files(m))
	if err != nil {
		return err
	}
	for _, f := range m.GetFiles() {
		if err := sink.CheckFile(ctx, f.GetName(), f.GetVerified()); err != nil {
			return err
		}
	}
	if err := sink.Prepare(ctx); err != nil {
		return err
	}
	if err := stager.Install(sink); err != nil {
		return err
	}
	return machine.Rebase(base)
}

// writeLog gives every group a log that begins, empty, where its state is.
func (r *restore) writeLog(archive *snapshot.Archive, bases []Applied) error {
	if err := durable.MkdirAll(r.o.FS, r.dir.log()); err != nil {
		return fmt.Errorf("raftnode: restore: %w", err)
	}
	shape := Options{LogSegmentBytes: r.o.LogSegmentBytes}
	log, err := raftlog.Open(raftlog.Options{
		FS: r.o.FS, Dir: r.dir.log(), SegmentBytes: shape.LogSegmentBytes, MaxBatchBytes: shape.maxBatchBytes(), Logger: r.o.Logger,
	})
	if err != nil {
		return fmt.Errorf("raftnode: restore: open the log: %w", err)
	}
	var updates []raftlog.Update
	for i, m := range archive.Manifests {
		updates = append(updates, raftlog.Update{
			Group: m.GetGroup(), Marker: &raftlog.Marker{Index: bases[i].Index, Term: bases[i].Term}, Reset: true,
			HardState: &raftpb.HardState{Term: new(bases[i].Term), Vote: new(uint64(0)), Commit: new(bases[i].Index)},
		})
	}
	err = log.Append(updates, true)
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("raftnode: restore: write the first log batch: %w", err)
	}
	return nil
}
