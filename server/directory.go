package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/streamraft/streamraft/kv"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// The node directory and the group map are records in the registry space (r/)
// of the meta group; the meta leader writes them.
//
//	node/<name>           a node:   byte version, 1
//	                                uvarint length of the address, address
//	                                uvarint length of the node incarnation, node incarnation
//	group/<id, decimal>   a group:  byte version, 1
//	                                byte kind: 1 meta, 2 data
//	                                4B BE first, 4B BE last: the range of key
//	                                hashes a data group holds, both included;
//	                                0, 0 for meta
//
// The formats are durable: a field is added only with a new version. With one
// data group, its range is all of 0..2^32-1.
const (
	nodePrefix  = "node/"
	nodeEnd     = "node0" // '0' follows '/'
	groupPrefix = "group/"

	directoryVersion = 1
	// maxDirectoryField bounds an address or incarnation that is read.
	maxDirectoryField = 4096
)

// groupKind is what a group is for.
type groupKind byte

const (
	groupMeta groupKind = 1
	groupData groupKind = 2
)

// nodeEntry is one node of the directory.
type nodeEntry struct {
	address     string
	incarnation []byte
}

// groupEntry is one group of the group map.
type groupEntry struct {
	kind        groupKind
	first, last uint32
}

var errDirectory = errors.New("server: a record of the node directory does not decode")

func (e nodeEntry) encode() []byte {
	b := []byte{directoryVersion}
	b = binary.AppendUvarint(b, uint64(len(e.address)))
	b = append(b, e.address...)
	b = binary.AppendUvarint(b, uint64(len(e.incarnation)))
	return append(b, e.incarnation...)
}

func decodeNodeEntry(b []byte) (nodeEntry, error) {
	if len(b) == 0 || b[0] != directoryVersion {
		return nodeEntry{}, fmt.Errorf("%w: a node of %d bytes", errDirectory, len(b))
	}
	address, rest, ok := cutField(b[1:])
	incarnation, rest, ok2 := cutField(rest)
	if !ok || !ok2 || len(rest) > 0 {
		return nodeEntry{}, fmt.Errorf("%w: a node with wrong lengths", errDirectory)
	}
	return nodeEntry{address: string(address), incarnation: bytes.Clone(incarnation)}, nil
}

// cutField takes a length and that many bytes off b.
func cutField(b []byte) (field, rest []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > maxDirectoryField || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	return b[n : n+int(size)], b[n+int(size):], true
}

func (e groupEntry) encode() []byte {
	b := []byte{directoryVersion, byte(e.kind)}
	b = binary.BigEndian.AppendUint32(b, e.first)
	return binary.BigEndian.AppendUint32(b, e.last)
}

func decodeGroupEntry(b []byte) (groupEntry, error) {
	if len(b) != 10 || b[0] != directoryVersion {
		return groupEntry{}, fmt.Errorf("%w: a group of %d bytes", errDirectory, len(b))
	}
	e := groupEntry{kind: groupKind(b[1]), first: binary.BigEndian.Uint32(b[2:]), last: binary.BigEndian.Uint32(b[6:])}
	if e.kind != groupMeta && e.kind != groupData || e.first > e.last {
		return groupEntry{}, fmt.Errorf("%w: a group of kind %d, hashes %d to %d", errDirectory, e.kind, e.first, e.last)
	}
	return e, nil
}

const (
	// directoryTimeout bounds one round of looking and writing.
	directoryTimeout = 5 * time.Second
	// directoryRetry is the pause after a round that failed.
	directoryRetry = time.Second
	// maxDirectoryNodes bounds what Status lists.
	maxDirectoryNodes = 1000
)

// keepDirectory writes the node directory and the group map whenever this node
// leads the meta group and they differ from what it knows.
func (s *Server) keepDirectory() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-s.directoryDue:
		case <-retry.C:
		}
		if err := s.writeDirectory(ctx); err != nil {
			s.log.Debug("the node directory was not written; trying again", "error", err)
			retry.Reset(directoryRetry)
		}
	}
}

// writeDirectory does one round. Another leader may do the same at that moment,
// so each record is written only over the revision it was read at.
func (s *Server) writeDirectory(ctx context.Context) error {
	meta, err := s.replicaOf(raftnode.MetaGroup)
	if err != nil {
		return err
	}
	if meta.group.Status().Role != raftnode.RoleLeader {
		return nil // that of the leader is what counts; its change wakes us
	}
	ctx, cancel := context.WithTimeout(ctx, directoryTimeout)
	defer cancel()
	if _, err := meta.group.Read(ctx, raftnode.ReadOptions{}); err != nil {
		return err
	}
	write := &kvv1.RegistryWrite{}
	wanted := s.wantedDirectory(meta)
	for key, value := range wanted {
		found, err := meta.store.SpaceGet([]byte(key))
		if err != nil {
			return err
		}
		if found.Found && bytes.Equal(found.Record.Value, value) {
			continue
		}
		write.Compares = append(write.Compares, compareRevision([]byte(key), found.Record.ModRevision))
		write.Operations = append(write.Operations, &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_Put{Put: &kvv1.Put{Key: []byte(key), Value: value}}})
	}
	if err := forgetNodes(ctx, meta, wanted, write); err != nil {
		return err
	}
	if len(write.Operations) == 0 {
		return nil
	}
	return writeRegistry(ctx, meta, write)
}

// forgetNodes adds the deletion of nodes that are no members any more.
func forgetNodes(ctx context.Context, meta replica, wanted map[string][]byte, write *kvv1.RegistryWrite) error {
	page, err := meta.store.SpaceRange(ctx, kv.RangeOptions{
		Start: []byte(nodePrefix), End: []byte(nodeEnd), Limit: maxDirectoryNodes, KeysOnly: true,
	})
	if err != nil {
		return err
	}
	for _, record := range page.Records {
		if _, ok := wanted[string(record.Key)]; ok {
			continue
		}
		write.Compares = append(write.Compares, compareRevision(record.Key, record.ModRevision))
		write.Operations = append(write.Operations, &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_Delete{Delete: &kvv1.Delete{Key: record.Key}}})
	}
	return nil
}

// compareRevision holds while a record is as it was read; revision 0: there is
// none.
func compareRevision(key []byte, revision uint64) *kvv1.Compare {
	return &kvv1.Compare{Key: key, Condition: &kvv1.Compare_Revision{Revision: &kvv1.RevisionCompare{
		Operator: kvv1.RevisionCompare_OPERATOR_EQUAL, Revision: revision,
	}}}
}

// writeRegistry writes the registry space of the meta group, on its leader.
func writeRegistry(ctx context.Context, meta replica, write *kvv1.RegistryWrite) error {
	command, err := kv.EncodeRegistryWrite(nil, write)
	if err != nil {
		return err
	}
	result, err := meta.group.Propose(ctx, command)
	if err != nil {
		return err
	}
	op, failure, err := kv.DecodeResult(result)
	switch {
	case err != nil:
		return err
	case failure != nil:
		return fmt.Errorf("server: write the registry: %s", failure.GetMessage())
	case !op.GetSucceeded():
		return fmt.Errorf("%w: the registry was written by another at the same time", raftnode.ErrDropped)
	}
	return nil
}

// wantedDirectory returns the records as this node knows they should be.
func (s *Server) wantedDirectory(meta replica) map[string][]byte {
	wanted := make(map[string][]byte)
	node := s.node.Load()
	incarnations := make(map[string][]byte)
	for _, f := range node.Hello().GetFounding().GetNodes() {
		incarnations[f.GetNode()] = f.GetNodeIncarnation()
	}
	members := meta.group.Membership()
	for _, r := range members.GetReplicas() {
		if newest, _ := newestOf(members, r.GetNode()); newest != r {
			continue
		}
		e := nodeEntry{address: r.GetAddress(), incarnation: r.GetNodeIncarnation()}
		if len(e.incarnation) == 0 {
			e.incarnation = incarnations[r.GetNode()] // a founder
		}
		if len(e.incarnation) == 0 {
			// A founder, and this node joined later: it has no founding record, but
			// some founder wrote it before.
			if known, err := meta.store.SpaceGet([]byte(nodePrefix + r.GetNode())); err == nil && known.Found {
				if old, err := decodeNodeEntry(known.Record.Value); err == nil {
					e.incarnation = old.incarnation
				}
			}
		}
		wanted[nodePrefix+r.GetNode()] = e.encode()
	}
	for _, g := range node.Groups() {
		e := groupEntry{kind: groupData, last: 1<<32 - 1}
		if g.ID() == raftnode.MetaGroup {
			e = groupEntry{kind: groupMeta}
		}
		wanted[groupPrefix+strconv.FormatUint(g.ID(), 10)] = e.encode()
	}
	return wanted
}

// knownNodes lists the nodes of the cluster: those of the directory as this
// node has it, or of the memberships while there is none yet.
func (s *Server) knownNodes(ctx context.Context, groups []raftnode.GroupStatus) []*adminv1.NodeAddress {
	var nodes []*adminv1.NodeAddress
	if meta, err := s.replicaOf(raftnode.MetaGroup); err == nil {
		page, err := meta.store.SpaceRange(ctx, kv.RangeOptions{
			Start: []byte(nodePrefix), End: []byte(nodeEnd), Limit: maxDirectoryNodes,
		})
		if err == nil {
			for _, record := range page.Records {
				if e, err := decodeNodeEntry(record.Value); err == nil {
					nodes = append(nodes, &adminv1.NodeAddress{Node: string(record.Key[len(nodePrefix):]), Address: e.address})
				}
			}
		}
	}
	if len(nodes) > 0 {
		return nodes
	}
	known := make(map[string]bool)
	for _, g := range groups {
		for _, r := range g.Replicas {
			if !known[r.Node] {
				known[r.Node] = true
				nodes = append(nodes, &adminv1.NodeAddress{Node: r.Node, Address: r.Address})
			}
		}
	}
	return nodes
}
