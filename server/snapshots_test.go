package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

func kept(t *testing.T, n *testNode) []*adminv1.Snapshot {
	t.Helper()
	answer, err := n.admin.ListSnapshots(testContext(t), &adminv1.ListSnapshotsRequest{})
	if err != nil || answer.GetNode() != n.config.Name {
		t.Fatal(answer, err)
	}
	return answer.GetSnapshots()
}

// TestCreateSnapshot: an image that was asked for has all that was written, stays
// for its time over a restart, and the oldest goes where the bound needs its
// place.
func TestCreateSnapshot(t *testing.T) {
	nodes := startCluster(t, 1, func(c *Config) { c.SnapshotKeep, c.SnapshotExpiry = 2, time.Minute })
	n := nodes[0]
	var indexes []uint64
	for i := range 3 {
		put(t, nodes, fmt.Sprint("k", i))
		answer, err := n.admin.CreateSnapshot(testContext(t), &adminv1.CreateSnapshotRequest{Group: raftnode.FirstDataGroup, KeepSeconds: 7200})
		if err != nil {
			t.Fatal(err)
		}
		s := answer.GetSnapshot()
		lives := time.UnixMilli(s.GetExpiresUnixMs()).Sub(time.UnixMilli(s.GetCreatedUnixMs()))
		if s.GetRecords() < uint64(i+1) || s.GetBytes() == 0 || s.GetHolders() != 0 || lives < 119*time.Minute || lives > 121*time.Minute {
			t.Errorf("%v, lives %v", s, lives)
		}
		indexes = append(indexes, s.GetIndex())
	}
	want := indexes[1:]
	look := func() {
		t.Helper()
		if got := kept(t, n); len(got) != 2 || got[0].GetIndex() != want[1] || got[1].GetIndex() != want[0] {
			t.Errorf("kept %v, want indexes %v", got, want)
		}
	}
	look()
	n.restart(t)
	eventually(t, "it is ready again", func() bool { ready, _ := n.Ready(); return ready })
	look()
	if _, err := n.admin.CreateSnapshot(testContext(t), &adminv1.CreateSnapshotRequest{Group: 99}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

// save reads an archive from a node.
func save(ctx context.Context, n *testNode, q *adminv1.SaveSnapshotRequest) (data []byte, last *adminv1.SaveSnapshotResponse, err error) {
	stream, err := n.admin.SaveSnapshot(ctx, q)
	if err != nil {
		return nil, nil, err
	}
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return data, last, nil
		}
		if err != nil {
			return data, last, err
		}
		data, last = append(data, answer.GetData()...), answer
	}
}

func TestSaveSnapshot(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	leader, follower := leaderOf(t, nodes, raftnode.FirstDataGroup)
	value := bytes.Repeat([]byte("value "), 2000)
	for i := range 50 {
		if _, err := leader.kv.Put(testContext(t), &kvv1.PutRequest{Key: fmt.Appendf(nil, "k%d", i), Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	g, err := leader.Node().Group(raftnode.FirstDataGroup)
	if err != nil {
		t.Fatal(err)
	}
	acknowledged := g.Applied()
	data, last, err := save(testContext(t), follower, &adminv1.SaveSnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	archive, err := snapshot.VerifyArchive(testContext(t), bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if h := archive.Header; h.GetNode() != follower.config.Name || h.GetHistoryEpoch() != 1 || len(h.GetGroups()) != 2 || h.GetStale() || h.GetRelease() != "test" {
		t.Errorf("header %v", h)
	}
	if len(archive.Manifests) != 2 || archive.Manifests[1].GetIndex() < acknowledged || archive.Manifests[1].GetRecords() < 50 {
		t.Errorf("images %v, acknowledged to index %d", archive.Manifests, acknowledged)
	}
	if last.GetBytesTotal() == 0 || last.GetBytesDone() != last.GetBytesTotal() {
		t.Errorf("progress ends at %d of %d", last.GetBytesDone(), last.GetBytesTotal())
	}
	if len(kept(t, follower)) != 0 {
		t.Errorf("the archive's images stay: %v", kept(t, follower))
	}
	one, _, err := save(testContext(t), follower, &adminv1.SaveSnapshotRequest{Groups: []uint64{raftnode.FirstDataGroup}})
	if err != nil {
		t.Fatal(err)
	}
	if archive, err = snapshot.VerifyArchive(testContext(t), bytes.NewReader(one)); err != nil || len(archive.Manifests) != 1 || len(archive.Header.GetGroups()) != 2 {
		t.Errorf("%v, %v", archive, err)
	}
	if _, _, err := save(testContext(t), follower, &adminv1.SaveSnapshotRequest{Groups: []uint64{99}}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}

	// Without a majority only what the node has can be saved.
	for _, n := range nodes {
		if n != follower {
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, _, err := save(ctx, follower, &adminv1.SaveSnapshotRequest{}); err == nil {
		t.Error("saved without a majority")
	}
	eventually(t, "the other save has ended", func() bool { return !follower.saving.Load() })
	data, _, err = save(testContext(t), follower, &adminv1.SaveSnapshotRequest{Stale: true})
	if err != nil {
		t.Fatal(err)
	}
	if archive, err = snapshot.VerifyArchive(testContext(t), bytes.NewReader(data)); err != nil || !archive.Header.GetStale() {
		t.Errorf("%v, %v", archive, err)
	}
}

// TestSaveEndsWithTheNode: a client that takes nothing does not keep a node from
// stopping, and a second save at a time is refused.
func TestSaveEndsWithTheNode(t *testing.T) {
	nodes := startCluster(t, 1, nil)
	n := nodes[0]
	for i := range 40 {
		if _, err := n.kv.Put(testContext(t), &kvv1.PutRequest{Key: fmt.Appendf(nil, "k%d", i), Value: randomBytes(1<<20, uint64(i))}); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := n.admin.SaveSnapshot(testContext(t), &adminv1.SaveSnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := save(testContext(t), n, &adminv1.SaveSnapshotRequest{}); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "another node") {
		t.Errorf("a second save: %v", err)
	}
	begin := time.Now()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("stopping took %v", took)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		t.Error("a save that was cut off looks complete")
	}
}

// randomBytes returns bytes that do not compress.
func randomBytes(n int, seed uint64) []byte {
	b := make([]byte, n)
	source := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = source.Read(b)
	return b
}
