package server

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// TestCase10RestoreOfOldExport: a cluster goes on after an export was taken, and is
// restored from it elsewhere. The restored one has the state of the export, gives
// no revision a second time, and neither takes nor is taken by a node of the old
// history.
func TestCase10RestoreOfOldExport(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	leader, _ := leaderOf(t, nodes, raftnode.FirstDataGroup)
	put := func(n *testNode, key, value string) uint64 {
		t.Helper()
		answer, err := n.kv.Put(testContext(t), &kvv1.PutRequest{Key: []byte(key), Value: []byte(value)})
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetRevision()
	}
	for i := range 200 {
		put(leader, fmt.Sprintf("key-%03d", i), fmt.Sprint("value ", i))
	}
	archive, _, err := save(testContext(t), leader, &adminv1.SaveSnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	put(leader, "after the export", "lost with the old history")
	highest := put(leader, "key-000", "newer")

	fs := vfs.NewMem()
	l := listenLoopback(t)
	o := RestoreOptions{Name: "r1", Advertise: l.Addr().String(), DataDir: "restored", Archive: bytes.NewReader(archive), FS: fs, Logger: testLog(t)}
	restored, err := Restore(testContext(t), o)
	if err != nil {
		t.Fatal(err)
	}
	old, err := leader.admin.Status(testContext(t), &adminv1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if restored.HistoryEpoch != old.GetHistoryEpoch()+1 || restored.ClusterID == old.GetClusterId() || len(restored.Index) != 2 {
		t.Errorf("restored %+v from cluster %s, history epoch %d", restored, old.GetClusterId(), old.GetHistoryEpoch())
	}
	if _, err := Restore(testContext(t), RestoreOptions{Name: "r1", Advertise: o.Advertise, DataDir: "restored", Archive: bytes.NewReader(archive), FS: fs}); !errors.Is(err, raftnode.ErrRefused) {
		t.Errorf("restored over a node: %v", err)
	}

	r1 := &testNode{options: Options{Logger: testLog(t), Version: "test", FS: fs, Listener: l, HTTPListener: listenLoopback(t)}}
	r1.config = testConfig("r1", "restored", nil)
	r1.config.Advertise = o.Advertise
	if err := r1.open(t); err != nil {
		t.Fatal(err)
	}
	all := []*testNode{r1}
	becomes(t, all, "r1", adminv1.MemberState_MEMBER_STATE_VOTER)
	get := func(n *testNode, key string) *kvv1.GetResponse {
		t.Helper()
		answer, err := n.kv.Get(testContext(t), &kvv1.GetRequest{Key: []byte(key)})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	for i := range 200 {
		if got := get(r1, fmt.Sprintf("key-%03d", i)); string(got.GetRecord().GetValue()) != fmt.Sprint("value ", i) {
			t.Fatalf("key-%03d is %q after the restore", i, got.GetRecord().GetValue())
		}
	}
	if get(r1, "after the export").GetRecord() != nil {
		t.Error("a write from after the export is there")
	}
	if revision := put(r1, "key-001", "of the new history"); revision <= highest {
		t.Errorf("revision %d after the restore, the old history has had %d", revision, highest)
	}

	// Others join, and the state travels.
	r2 := newcomer(t, "r2", r1)
	if err := r2.open(t); err != nil {
		t.Fatal(err)
	}
	all = append(all, r2)
	becomes(t, all, "r2", adminv1.MemberState_MEMBER_STATE_VOTER)
	eventually(t, "the second node has all of it", func() bool {
		g, err := r2.Node().Group(raftnode.FirstDataGroup)
		if err != nil {
			t.Fatal(err)
		}
		want, err := r1.Node().Group(raftnode.FirstDataGroup)
		if err != nil {
			t.Fatal(err)
		}
		return g.Applied() >= want.Applied()
	})

	// The old history is fenced in both directions.
	for _, pair := range [][2]*testNode{{nodes[0], r1}, {r1, nodes[0]}} {
		if err := pair[1].Node().CheckHello(pair[0].Node().Hello()); err == nil || !strings.Contains(err.Error(), "belongs to cluster") {
			t.Errorf("node %s of another history: %v", pair[0].config.Name, err)
		}
	}
}

// TestRestoreRefuses: what must not be restored, or not there, changes nothing.
func TestRestoreRefuses(t *testing.T) {
	nodes := startCluster(t, 1, nil)
	becomes(t, nodes, "n1", adminv1.MemberState_MEMBER_STATE_VOTER)
	archive, _, err := save(testContext(t), nodes[0], &adminv1.SaveSnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	part, _, err := save(testContext(t), nodes[0], &adminv1.SaveSnapshotRequest{Groups: []uint64{raftnode.FirstDataGroup}})
	if err != nil {
		t.Fatal(err)
	}
	flipped := slices.Clone(archive)
	flipped[len(flipped)/2] ^= 1
	for name, test := range map[string]struct {
		archive []byte
		want    error
	}{
		"damaged":            {flipped, snapshot.ErrCorrupt},
		"cut short":          {archive[:len(archive)/2], snapshot.ErrCorrupt},
		"one group of two":   {part, raftnode.ErrRefused},
		"no archive at all":  {[]byte("hello"), snapshot.ErrCorrupt},
		"nothing whatsoever": {nil, snapshot.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			o := RestoreOptions{Name: "r1", Advertise: "127.0.0.1:1", DataDir: "restored", Archive: bytes.NewReader(test.archive), FS: fs}
			if _, err := Restore(testContext(t), o); !errors.Is(err, test.want) {
				t.Fatalf("%v, want %v", err, test.want)
			}
			// It can be done right afterwards, in the same place.
			o.Archive = bytes.NewReader(archive)
			if _, err := Restore(testContext(t), o); err != nil {
				t.Fatalf("restored after a refusal: %v", err)
			}
		})
	}
	if _, err := Restore(testContext(t), RestoreOptions{Name: "a b", Advertise: "nowhere", Archive: bytes.NewReader(archive)}); err == nil ||
		!strings.Contains(err.Error(), "name") || !strings.Contains(err.Error(), "advertise") || !strings.Contains(err.Error(), "data_dir") {
		t.Errorf("bad options: %v", err)
	}
}
