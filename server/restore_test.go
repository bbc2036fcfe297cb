package server

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// savedCluster is a cluster with records, client sessions and a change of members
// behind it, and an archive of it.
type savedCluster struct {
	nodes   []*testNode
	archive []byte
	session uint64
	digest  *kvv1.DigestResponse
	last    uint64 // revision of the last write
}

func saveCluster(t *testing.T, count int) *savedCluster {
	t.Helper()
	c := &savedCluster{nodes: startCluster(t, count, nil)}
	leader, _ := leaderOf(t, c.nodes, raftnode.FirstDataGroup)
	opened, err := leader.kv.OpenClientSession(testContext(t), &kvv1.OpenClientSessionRequest{TimeToLiveMs: uint64(time.Hour.Milliseconds())})
	if err != nil {
		t.Fatal(err)
	}
	c.session = opened.GetId()
	for i := range 30 {
		if _, err := leader.kv.Put(testContext(t), &kvv1.PutRequest{Key: fmt.Appendf(nil, "k%02d", i), Value: randomBytes(2000, uint64(i))}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := leader.kv.Delete(testContext(t), &kvv1.DeleteRequest{Key: []byte("k07")}); err != nil {
		t.Fatal(err)
	}
	c.last = c.once(t, leader, 1, "in a session").GetRevision()
	if c.digest, err = leader.kv.Digest(testContext(t), &kvv1.DigestRequest{Group: raftnode.FirstDataGroup}); err != nil {
		t.Fatal(err)
	}
	if c.archive, _, err = save(testContext(t), c.nodes[len(c.nodes)-1], &adminv1.SaveSnapshotRequest{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// once writes in the client session.
func (c *savedCluster) once(t *testing.T, n *testNode, sequence uint64, value string) *kvv1.PutResponse {
	t.Helper()
	answer, err := n.kv.Put(testContext(t), &kvv1.PutRequest{
		Key: []byte("once"), Value: []byte(value), Session: &kvv1.ClientSessionRef{Id: c.session, Sequence: sequence, LowWaterMark: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func restoreOptions(fsys vfs.FS, archive []byte, address string) RestoreOptions {
	return RestoreOptions{
		Name: "n1", Advertise: address, DataDir: "data", Archive: bytes.NewReader(archive), FS: fsys, logSegmentBytes: 8 << 20,
	}
}

// restoredNode restores an archive and starts the node at an address.
func restoredNode(t *testing.T, archive []byte) (*testNode, *raftnode.Restored) {
	t.Helper()
	l := listenLoopback(t)
	n := &testNode{options: Options{Logger: testLog(t), Version: "test", FS: vfs.NewMem(), Listener: l, HTTPListener: listenLoopback(t)}}
	restored, err := Restore(testContext(t), restoreOptions(n.options.FS, archive, l.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	n.config = testConfig("n1", "data", nil)
	n.config.Advertise = l.Addr().String()
	if err := n.open(t); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the restored node is ready", func() bool { ready, _ := n.Ready(); return ready })
	return n, restored
}

// TestCase10RestoreOfAnOldExport: a new cluster has all of the data under a higher history
// epoch; revisions do not come again, writes are not applied twice, others join.
func TestCase10RestoreOfAnOldExport(t *testing.T) {
	old := saveCluster(t, 3)
	n1, restored := restoredNode(t, old.archive)
	before, after := old.nodes[0].Node().Status(), n1.Node().Status()
	if after.ClusterID == before.ClusterID || after.ClusterID != restored.ClusterID || after.HistoryEpoch != before.HistoryEpoch+1 || restored.HistoryEpoch != after.HistoryEpoch {
		t.Errorf("restored %+v into %+v from %+v", restored, after, before)
	}
	if len(restored.Members) != 3 || restored.Members[2].Node != "n3" || restored.Members[2].Address != old.nodes[2].Address() {
		t.Errorf("members of the old cluster: %v", restored.Members)
	}
	for i, m := range restored.Archive.Manifests {
		if restored.Index[i] != m.GetIndex()+1<<32 || after.Groups[i].FirstIndex != restored.Index[i]+1 {
			t.Errorf("group %d goes on at %d with a log from %d, the archive has %d", m.GetGroup(), restored.Index[i], after.Groups[i].FirstIndex, m.GetIndex())
		}
		if r := after.Groups[i].Replicas; len(r) != 1 || r[0].Node != "n1" || r[0].RaftID == before.Groups[i].RaftID {
			t.Errorf("group %d has replicas %+v", m.GetGroup(), r)
		}
	}
	digest, err := n1.kv.Digest(testContext(t), &kvv1.DigestRequest{Group: raftnode.FirstDataGroup})
	if err != nil || digest.GetDigest() != old.digest.GetDigest() || digest.GetRecords() != old.digest.GetRecords() {
		t.Errorf("digest %v, the old cluster's %v, %v", digest, old.digest, err)
	}
	if again := old.once(t, n1, 1, "another value"); again.GetRevision() != old.last {
		t.Errorf("a repeated write has revision %d, the first time %d", again.GetRevision(), old.last)
	}
	if got, err := n1.kv.Get(testContext(t), &kvv1.GetRequest{Key: []byte("once")}); err != nil || string(got.GetRecord().GetValue()) != "in a session" || got.GetRecord().GetModRevision() != old.last {
		t.Errorf("%v, %v", got, err)
	}
	if fresh := old.once(t, n1, 2, "new"); fresh.GetRevision() < old.last+1<<48 {
		t.Errorf("revision %d after %d", fresh.GetRevision(), old.last)
	}
	if members := membersOf(t, []*testNode{n1}); len(members) != 1 || members["n1"].GetState() != adminv1.MemberState_MEMBER_STATE_VOTER {
		t.Errorf("members %v", members)
	}
	all := []*testNode{n1}
	for _, name := range []string{"n2", "n3"} {
		n := newcomer(t, name, n1)
		if err := n.open(t); err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
		becomes(t, all, name, adminv1.MemberState_MEMBER_STATE_VOTER)
	}
	leader, _ := leaderOf(t, all, raftnode.FirstDataGroup)
	want, err := leader.kv.Digest(testContext(t), &kvv1.DigestRequest{Group: raftnode.FirstDataGroup})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		got, err := n.kv.Digest(testContext(t), &kvv1.DigestRequest{Group: raftnode.FirstDataGroup, Index: want.GetIndex()})
		if err != nil || got.GetDigest() != want.GetDigest() {
			t.Errorf("%s: %v, want %v, %v", n.config.Name, got, want, err)
		}
		n.restart(t)
	}
	eventually(t, "all are ready again", func() bool {
		for _, n := range all {
			if ready, _ := n.Ready(); !ready {
				return false
			}
		}
		return true
	})
	put(t, all, "after")
}

// TestRestoreFencesTheOldCluster: an old node is refused by the restored one, and
// the other way round, with what to do; so is another restore of the same archive.
func TestRestoreFencesTheOldCluster(t *testing.T) {
	old := saveCluster(t, 2)
	n1, _ := restoredNode(t, old.archive)
	twin, _ := restoredNode(t, old.archive)
	for _, pair := range []struct {
		from, to *testNode
		want     string
	}{
		{old.nodes[1], n1, "before a restore: stop it, and start it with an empty directory and --join"},
		{n1, old.nodes[1], "before a restore: stop it, and start it with an empty directory and --join"},
		{n1, twin, "belongs to cluster"},
	} {
		hello, err := pair.from.transport.Hello(testContext(t), pair.to.Address())
		if err != nil {
			t.Fatal(err)
		}
		if err := pair.from.Node().CheckHello(hello); err == nil || !strings.Contains(err.Error(), pair.want) {
			t.Errorf("%s checks %s: %v", pair.from.config.Name, pair.to.config.Name, err)
		}
	}
	// For real: the old n2 looks for n1 where the restored one is.
	address := old.nodes[0].Address()
	if err := old.nodes[0].Close(); err != nil {
		t.Fatal(err)
	}
	n1.config.Listen = address
	if err := n1.Close(); err != nil {
		t.Fatal(err)
	}
	buffer := &logBuffer{}
	n1.options.Listener, n1.options.HTTPListener, n1.options.Logger = nil, listenLoopback(t), slog.New(slog.NewTextHandler(buffer, nil))
	eventually(t, "the address is free", func() bool { return n1.open(t) == nil })
	eventually(t, "the restored node says who was refused", func() bool { return strings.Contains(buffer.String(), "holds data from before a restore") })
	eventually(t, "the restored node is ready", func() bool { ready, _ := n1.Ready(); return ready })
	if st := n1.Node().Status(); len(st.Groups[0].Replicas) != 1 || st.HistoryEpoch != 2 {
		t.Errorf("%+v", st)
	}
}

// partialArchive is an archive of some groups of another.
func partialArchive(t *testing.T, n *testNode, groups ...uint64) []byte {
	t.Helper()
	data, _, err := save(testContext(t), n, &adminv1.SaveSnapshotRequest{Groups: groups})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRestoreRefuses(t *testing.T) {
	old := saveCluster(t, 1)
	damaged := bytes.Clone(old.archive)
	damaged[len(damaged)/2] ^= 1
	newer := bytes.Clone(old.archive)
	newer[7]++
	for name, test := range map[string]struct {
		archive []byte
		before  func(*testing.T, vfs.FS)
		change  func(*RestoreOptions)
		want    string
		is      error
	}{
		"damaged":       {archive: damaged, want: "at byte ", is: snapshot.ErrCorrupt},
		"cut":           {archive: old.archive[:len(old.archive)-1], want: "ends in the middle", is: snapshot.ErrCorrupt},
		"newer":         {archive: newer, want: "version 2", is: snapshot.ErrCorrupt},
		"no archive":    {archive: []byte("something else"), want: "does not begin as an archive does", is: snapshot.ErrCorrupt},
		"missing group": {archive: partialArchive(t, old.nodes[0], raftnode.FirstDataGroup), want: "lacks groups [1]", is: raftnode.ErrRefused},
		"not empty": {archive: old.archive, want: "is not empty, it holds mail", is: raftnode.ErrRefused, before: func(t *testing.T, fsys vfs.FS) {
			write(t, fsys, "data", "mail")
		}},
		"not empty, to be started over": {archive: old.archive, want: "is not empty", is: raftnode.ErrRefused, before: func(t *testing.T, fsys vfs.FS) {
			write(t, fsys, "data", "mail")
		}, change: func(o *RestoreOptions) { o.StartOver = true }},
		"a node's": {archive: old.archive, want: "of a node already", is: raftnode.ErrRefused, before: func(t *testing.T, fsys vfs.FS) {
			if _, err := Restore(testContext(t), restoreOptions(fsys, old.archive, "127.0.0.1:1")); err != nil {
				t.Fatal(err)
			}
		}, change: func(o *RestoreOptions) { o.StartOver = true }},
		"no name":        {archive: old.archive, want: "name", is: ErrConfig, change: func(o *RestoreOptions) { o.Name = "" }},
		"a bad address":  {archive: old.archive, want: "host:port", is: ErrConfig, change: func(o *RestoreOptions) { o.Advertise = "here" }},
		"no host at all": {archive: old.archive, want: "names no host", is: ErrConfig, change: func(o *RestoreOptions) { o.Advertise = "0.0.0.0:7601" }},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := vfs.NewMem()
			if test.before != nil {
				test.before(t, fsys)
			}
			had := listAll(t, fsys)
			o := restoreOptions(fsys, test.archive, "127.0.0.1:1")
			if test.change != nil {
				test.change(&o)
			}
			_, err := Restore(testContext(t), o)
			if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if has := listAll(t, fsys); test.before != nil && has != had {
				t.Errorf("it changed what was there:\n%s\nnow\n%s", had, has)
			} else if test.before == nil && strings.Trim(has, "\n") != "" && has != "data/LOCK\n" {
				t.Errorf("it left\n%s", has)
			}
		})
	}
	// What an error left can be used at once.
	fsys := vfs.NewMem()
	if _, err := Restore(testContext(t), restoreOptions(fsys, damaged, "127.0.0.1:1")); err == nil {
		t.Fatal("restored a damaged archive")
	}
	if _, err := Restore(testContext(t), restoreOptions(fsys, old.archive, "127.0.0.1:1")); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Restore(ctx, restoreOptions(vfs.NewMem(), old.archive, "127.0.0.1:1")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func write(t *testing.T, fsys vfs.FS, dir, name string) {
	t.Helper()
	if err := fsys.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := fsys.Create(fsys.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// listAll lists the files of a file system.
func listAll(t *testing.T, fsys vfs.FS) string {
	t.Helper()
	var b strings.Builder
	var visit func(dir string)
	visit = func(dir string) {
		names, err := fsys.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(names)
		for _, name := range names {
			path := fsys.PathJoin(dir, name)
			if info, err := fsys.Stat(path); err == nil && info.IsDir() {
				visit(path)
			} else {
				fmt.Fprintln(&b, path)
			}
		}
	}
	visit("")
	return b.String()
}

// TestRestoreOfCraftedArchives: what no release writes is refused.
func TestRestoreOfCraftedArchives(t *testing.T) {
	old := saveCluster(t, 1)
	for name, change := range map[string]func(h *snapshotv1.ArchiveHeader, m *snapshotv1.Manifest){
		"another cluster's image": func(h *snapshotv1.ArchiveHeader, _ *snapshotv1.Manifest) { h.ClusterId = []byte("another") },
		"another epoch's image":   func(h *snapshotv1.ArchiveHeader, _ *snapshotv1.Manifest) { h.HistoryEpoch++ },
		"an index too high":       func(_ *snapshotv1.ArchiveHeader, m *snapshotv1.Manifest) { m.Index = 1 << 60 },
		"an index of its own":     func(_ *snapshotv1.ArchiveHeader, m *snapshotv1.Manifest) { m.Index++ },
		"a newer schema":          func(_ *snapshotv1.ArchiveHeader, m *snapshotv1.Manifest) { m.Schema++ },
	} {
		fsys := vfs.NewMem()
		_, err := Restore(testContext(t), restoreOptions(fsys, craft(t, old.archive, change), "127.0.0.1:1"))
		if err == nil {
			t.Errorf("%s: restored", name)
			continue
		}
		t.Logf("%s: %v", name, err)
		if has := listAll(t, fsys); has != "data/LOCK\n" {
			t.Errorf("%s: it left\n%s", name, has)
		}
	}
}

// extracted is an image of an archive on a file system.
type extracted struct {
	fsys vfs.FS
	m    *snapshotv1.Manifest
}

func (e *extracted) Manifest() *snapshotv1.Manifest { return e.m }
func (e *extracted) Condemn(error)                  {}
func (e *extracted) Release()                       {}
func (e *extracted) OpenFile(name string) (snapshot.File, error) {
	return e.fsys.Open(e.fsys.PathJoin(hex.EncodeToString(e.m.Image), name))
}

// craft writes an archive anew with something changed.
func craft(t *testing.T, archive []byte, change func(*snapshotv1.ArchiveHeader, *snapshotv1.Manifest)) []byte {
	t.Helper()
	fsys := vfs.NewMem()
	a, err := snapshot.ExtractArchive(testContext(t), bytes.NewReader(archive), fsys, func(m *snapshotv1.Manifest) (string, error) {
		return hex.EncodeToString(m.GetImage()), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range a.Manifests {
		change(a.Header, m)
	}
	var out bytes.Buffer
	w, err := snapshot.NewArchiveWriter(io.Writer(&out), a.Header)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range a.Manifests {
		if err := w.Add(testContext(t), &extracted{fsys, m}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
