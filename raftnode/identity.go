package raftnode

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/streamraft/streamraft/internal/durable"
	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// The files of a node's directory that say who it is. All are durable record
// files (package durable) with a protobuf message in them.
var (
	nodeFormat     = durable.Format{Magic: [8]byte([]byte("SRNODE..")), Version: 1, Limit: 64 << 10}
	foundingFormat = durable.Format{Magic: [8]byte([]byte("SRFOUND.")), Version: 1, Limit: 4 << 20}
	replicaFormat  = durable.Format{Magic: [8]byte([]byte("SRREPLIC")), Version: 1, Limit: 4 << 10}
)

// directory is a node's directory on its file system.
type directory struct {
	fs   vfs.FS
	path string
}

func (d directory) nodeFile() string     { return d.fs.PathJoin(d.path, "NODE") }
func (d directory) foundingFile() string { return d.fs.PathJoin(d.path, "FOUNDING") }
func (d directory) lockFile() string     { return d.fs.PathJoin(d.path, "LOCK") }
func (d directory) log() string          { return d.fs.PathJoin(d.path, "log") }
func (d directory) groups() string       { return d.fs.PathJoin(d.path, "groups") }
func (d directory) group(group uint64) string {
	return d.fs.PathJoin(d.groups(), strconv.FormatUint(group, 10))
}
func (d directory) replicaFile(group uint64) string {
	return d.fs.PathJoin(d.group(group), "REPLICA")
}
func (d directory) state(group uint64) string { return d.fs.PathJoin(d.group(group), "state") }

// identity is who a node is: read from its directory, or drawn at random for an
// empty one and durable before any peer hears of it.
type identity struct {
	node     *raftv1.NodeRecord
	founding *raftv1.Founding // nil until known
	replicas []*raftv1.ReplicaId
}

// founded tells that the node belongs to a cluster.
func (id *identity) founded() bool { return len(id.node.GetClusterId()) > 0 }

// clusterID in hex; empty until founded.
func (id *identity) clusterID() string { return hex.EncodeToString(id.node.GetClusterId()) }

// loadIdentity reads the node's identity, or draws and writes one into an empty
// directory. NODE is written last: a directory without it holds nothing that
// anyone was told.
func loadIdentity(dir directory, name string, groups []uint64) (*identity, error) {
	id := &identity{node: &raftv1.NodeRecord{}}
	switch err := readMessage(dir, dir.nodeFile(), nodeFormat, id.node); {
	case err == nil:
		if err := dir.endRestoring(); err != nil {
			return nil, err
		}
		return id, id.loadExisting(dir, name)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if err := checkUnused(dir); err != nil {
		return nil, err
	}
	if err := id.drawReplicas(dir, groups); err != nil {
		return nil, err
	}
	return id, id.writeNode(dir, &raftv1.NodeRecord{Node: name, NodeIncarnation: randomBytes(16)})
}

// writeNode makes a new NODE durable, with the replicas of the directory in it.
func (id *identity) writeNode(dir directory, node *raftv1.NodeRecord) error {
	node.Replicas = id.replicas
	if err := writeMessage(dir, dir.nodeFile(), nodeFormat, node); err != nil {
		return err
	}
	id.node = node
	return nil
}

// drawReplicas draws a raft id for each of groups that has none yet. They are
// durable on return.
func (id *identity) drawReplicas(dir directory, groups []uint64) error {
	for _, group := range groups {
		if _, ok := replicaIDOf(id.replicas, group); ok {
			continue
		}
		if err := durable.MkdirAll(dir.fs, dir.group(group)); err != nil {
			return err
		}
		r := &raftv1.ReplicaRecord{Group: group, RaftId: randomRaftID()}
		if err := writeMessage(dir, dir.replicaFile(group), replicaFormat, r); err != nil {
			return err
		}
		// A new slice: hellos hold the old one.
		id.replicas = append(slices.Clone(id.replicas), &raftv1.ReplicaId{Group: group, RaftId: r.GetRaftId()})
	}
	return nil
}

// checkUnused refuses a directory that has a log but no NODE: making a new
// identity there would forget the votes in it.
func checkUnused(dir directory) error {
	switch _, err := dir.fs.Stat(dir.restoringFile()); {
	case err == nil:
		return fmt.Errorf("%w: a restore into %s did not finish; start it over (streamraft snapshot restore --force), or remove the directory", ErrRefused, dir.path)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("raftnode: look for %s: %w", dir.restoringFile(), err)
	}
	for _, path := range []string{dir.log(), dir.foundingFile()} {
		var found bool
		var err error
		if path == dir.log() {
			var names []string
			names, err = dir.fs.List(path)
			found = len(names) > 0
		} else {
			_, err = dir.fs.Stat(path)
			found = err == nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("raftnode: look for %s: %w", path, err)
		}
		if found {
			return fmt.Errorf("%w: %s is there but no file NODE; the directory is damaged or no node's. Restore NODE, or start with an empty directory", ErrRefused, path)
		}
	}
	return nil // at most the leftovers of a first start that crashed
}

func (id *identity) loadExisting(dir directory, name string) error {
	if id.node.GetNode() != name {
		return fmt.Errorf("%w: directory %s belongs to node %q, but this node was started as %q; start it with --name %s, or give it another directory",
			ErrRefused, dir.path, id.node.GetNode(), name, id.node.GetNode())
	}
	for _, listed := range id.node.GetReplicas() {
		r := &raftv1.ReplicaRecord{}
		path := dir.replicaFile(listed.GetGroup())
		switch err := readMessage(dir, path, replicaFormat, r); {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w: %s is missing: the directory of group %d is lost, and its replica must not begin anew. Bring it back, or replace the node", ErrDataLoss, path, listed.GetGroup())
		case err != nil:
			return fmt.Errorf("raftnode: group %d: the replica's id cannot be read, and without it the replica cannot vote safely: %w", listed.GetGroup(), err)
		case r.GetGroup() != listed.GetGroup() || r.GetRaftId() != listed.GetRaftId():
			return fmt.Errorf("%w: %s is of group %d, raft id %d, but NODE lists group %d, raft id %d; files of two nodes are mixed. Bring the right ones back, or replace the node",
				ErrDataLoss, path, r.GetGroup(), r.GetRaftId(), listed.GetGroup(), listed.GetRaftId())
		}
	}
	id.replicas = id.node.GetReplicas()
	founding := &raftv1.Founding{}
	switch err := readMessage(dir, dir.foundingFile(), foundingFormat, founding); {
	case err == nil:
		id.founding = founding
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// take makes the node part of the cluster that founding describes. Durable on
// return; safe to repeat after a crash at any point.
func (id *identity) take(dir directory, founding *raftv1.Founding) error {
	if err := writeMessage(dir, dir.foundingFile(), foundingFormat, founding); err != nil {
		return err
	}
	node := proto.CloneOf(id.node)
	node.ClusterId, node.HistoryEpoch = founding.GetClusterId(), 1
	id.founding = founding
	return id.writeNode(dir, node)
}

// started notes that the first log batch of every group is durable.
func (id *identity) started(dir directory) error {
	if id.node.GetStarted() {
		return nil
	}
	node := proto.CloneOf(id.node)
	node.Started = true
	return id.writeNode(dir, node)
}

func readMessage(dir directory, path string, format durable.Format, m proto.Message) error {
	payload, _, err := durable.ReadRecord(dir.fs, path, format)
	if err != nil {
		var bad *durable.RecordError
		if errors.As(err, &bad) && bad.Newer {
			return fmt.Errorf("%w: %w", ErrVersion, err)
		}
		return err
	}
	if err := proto.Unmarshal(payload, m); err != nil {
		return fmt.Errorf("raftnode: %s does not decode: %w; restore the file from a copy or replace the node", path, err)
	}
	return nil
}

func writeMessage(dir directory, path string, format durable.Format, m proto.Message) error {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("raftnode: encode %s: %w", path, err)
	}
	return durable.WriteRecord(dir.fs, path, format, data)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails since Go 1.24
	return b
}

// randomRaftID draws an id that is no special one of raft: not 0 (none) and not
// near the top (its local threads).
func randomRaftID() uint64 {
	for {
		if id := binary.LittleEndian.Uint64(randomBytes(8)) >> 1; id != 0 {
			return id
		}
	}
}
