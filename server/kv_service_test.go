package server

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// failureDetail returns the Failure that a status carries.
func failureDetail(t *testing.T, err error) (codes.Code, *kvv1.Failure) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if f, ok := d.(*kvv1.Failure); ok {
			return status.Code(err), f
		}
	}
	t.Fatalf("error without a Failure: %v", err)
	return 0, nil
}

func TestSingleNodeReadsAndWrites(t *testing.T) {
	n := startCluster(t, 1, nil)[0]
	ctx := testContext(t)

	put, err := n.kv.Put(ctx, &kvv1.PutRequest{Key: []byte("a"), Value: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	if put.GetRevision() == 0 || put.GetHeader().GetIndex() != put.GetRevision()>>16 || put.GetHeader().GetNode() != "n1" || put.GetHeader().GetGroup() != raftnode.FirstDataGroup {
		t.Errorf("put answered %v", put)
	}
	got, err := n.kv.Get(ctx, &kvv1.GetRequest{Key: []byte("a")})
	if err != nil {
		t.Fatal(err)
	}
	if string(got.GetRecord().GetValue()) != "1" || got.GetRecord().GetModRevision() != put.GetRevision() || got.GetHeader().GetIndex() < put.GetHeader().GetIndex() {
		t.Errorf("get answered %v after put %v", got, put)
	}
	if got, err := n.kv.Get(ctx, &kvv1.GetRequest{Key: []byte("b"), Consistency: kvv1.Consistency_CONSISTENCY_STALE, MinIndex: put.GetHeader().GetIndex()}); err != nil || got.GetRecord() != nil {
		t.Errorf("get of a missing record answered %v, %v", got, err)
	}
	deleted, err := n.kv.Delete(ctx, &kvv1.DeleteRequest{Key: []byte("a")})
	if err != nil || !deleted.GetExisted() {
		t.Errorf("delete answered %v, %v", deleted, err)
	}
	if deleted, err := n.kv.Delete(ctx, &kvv1.DeleteRequest{Key: []byte("a")}); err != nil || deleted.GetExisted() {
		t.Errorf("second delete answered %v, %v", deleted, err)
	}

	batch := &kvv1.Batch{}
	for i := range 5 {
		batch.Operations = append(batch.Operations, &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_Put{
			Put: &kvv1.Put{Key: fmt.Appendf(nil, "k%d", i), Value: []byte("v")}}})
	}
	if _, err := n.kv.Batch(ctx, &kvv1.BatchRequest{Batch: batch}); err != nil {
		t.Fatal(err)
	}
	page, err := n.kv.Range(ctx, &kvv1.RangeRequest{Limit: 3})
	if err != nil || len(page.GetRecords()) != 3 || len(page.GetNextPage()) == 0 {
		t.Fatalf("first page %v, %v", page, err)
	}
	page, err = n.kv.Range(ctx, &kvv1.RangeRequest{Limit: 3, Page: page.GetNextPage()})
	if err != nil || len(page.GetRecords()) != 2 || len(page.GetNextPage()) != 0 || string(page.GetRecords()[0].GetKey()) != "k3" {
		t.Fatalf("second page %v, %v", page, err)
	}
	if count, err := n.kv.Range(ctx, &kvv1.RangeRequest{Start: []byte("k1"), CountOnly: true}); err != nil || count.GetCount() != 4 {
		t.Errorf("count answered %v, %v", count, err)
	}
	txn, err := n.kv.Txn(ctx, &kvv1.TxnRequest{Txn: &kvv1.Txn{
		Compares: []*kvv1.Compare{{Key: []byte("k0"), Condition: &kvv1.Compare_ValueEquals{ValueEquals: []byte("v")}}},
		Success: []*kvv1.TxnOperation{
			{Operation: &kvv1.TxnOperation_Put{Put: &kvv1.Put{Key: []byte("k0"), Value: []byte("w")}}},
			{Operation: &kvv1.TxnOperation_Get{Get: &kvv1.TxnGet{Key: []byte("k0")}}},
		},
	}})
	if err != nil || !txn.GetSucceeded() || len(txn.GetResults()) != 2 || string(txn.GetResults()[1].GetRecord().GetValue()) != "w" {
		t.Errorf("txn answered %v, %v", txn, err)
	}
	if _, err := n.kv.DeleteRange(ctx, &kvv1.DeleteRangeRequest{Start: []byte("k1"), End: []byte("k4")}); err != nil {
		t.Fatal(err)
	}
	if page, err := n.kv.Range(ctx, &kvv1.RangeRequest{KeysOnly: true, Reverse: true}); err != nil || len(page.GetRecords()) != 2 || string(page.GetRecords()[0].GetKey()) != "k4" || page.GetRecords()[0].GetValue() != nil {
		t.Errorf("range after the delete answered %v, %v", page, err)
	}
}

func TestClientSessionAndFeedMode(t *testing.T) {
	n := startCluster(t, 1, nil)[0]
	ctx := testContext(t)
	opened, err := n.kv.OpenClientSession(ctx, &kvv1.OpenClientSessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	write := &kvv1.PutRequest{Key: []byte("k"), Value: []byte("v"), Session: &kvv1.ClientSessionRef{Id: opened.GetId(), Sequence: 1}}
	first, err := n.kv.Put(ctx, write)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := n.kv.Put(ctx, write); err != nil || again.GetRevision() != first.GetRevision() {
		t.Errorf("repeated put answered %v, %v; want revision %d", again, err, first.GetRevision())
	}
	if _, err := n.kv.CloseClientSession(ctx, &kvv1.CloseClientSessionRequest{Id: opened.GetId()}); err != nil {
		t.Fatal(err)
	}
	_, err = n.kv.Put(ctx, write)
	if code, f := failureDetail(t, err); code != codes.FailedPrecondition || f.GetReason() != kvv1.Reason_REASON_SESSION_EXPIRED {
		t.Errorf("put in a closed client session: %v, %v", code, f)
	}
	mode, err := n.kv.SetFeedMode(ctx, &kvv1.SetFeedModeRequest{Mode: kvv1.FeedMode_FEED_MODE_VALUES})
	if err != nil || mode.GetIndex() == 0 {
		t.Errorf("set feed mode answered %v, %v", mode, err)
	}
	_, err = n.kv.SetFeedMode(ctx, &kvv1.SetFeedModeRequest{})
	if code, f := failureDetail(t, err); code != codes.InvalidArgument || f.GetReason() != kvv1.Reason_REASON_INVALID {
		t.Errorf("feed mode 0: %v, %v", code, f)
	}
}

// What breaks a limit is refused before it reaches the log.
func TestLimits(t *testing.T) {
	n := startCluster(t, 1, func(c *Config) { c.LimitKey, c.LimitValue, c.LimitTxn = 16, 100, 300 })[0]
	ctx := testContext(t)
	group, err := n.Node().Group(raftnode.FirstDataGroup)
	if err != nil {
		t.Fatal(err)
	}
	before := group.Status().LastIndex
	long := bytes.Repeat([]byte("x"), 101)
	puts := &kvv1.Batch{}
	for range 4 {
		puts.Operations = append(puts.Operations, &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_Put{Put: &kvv1.Put{Key: []byte("k"), Value: long[:90]}}})
	}
	for _, c := range []struct {
		name string
		call func() error
		says string
	}{
		{"no key", func() error { _, err := n.kv.Put(ctx, &kvv1.PutRequest{Value: []byte("v")}); return err }, "key is empty"},
		{"long key", func() error { _, err := n.kv.Put(ctx, &kvv1.PutRequest{Key: long}); return err }, "key of 101 is over the limit of 16"},
		{"long value", func() error { _, err := n.kv.Put(ctx, &kvv1.PutRequest{Key: []byte("k"), Value: long}); return err }, "value of 101 is over the limit of 100"},
		{"long batch", func() error { _, err := n.kv.Batch(ctx, &kvv1.BatchRequest{Batch: puts}); return err }, "over the limit of 300"},
		{"empty txn step", func() error {
			_, err := n.kv.Txn(ctx, &kvv1.TxnRequest{Txn: &kvv1.Txn{Success: []*kvv1.TxnOperation{{}}}})
			return err
		}, "none this release knows"},
		{"session without sequence", func() error {
			_, err := n.kv.Put(ctx, &kvv1.PutRequest{Key: []byte("k"), Session: &kvv1.ClientSessionRef{Id: 1}})
			return err
		}, "starts at 1"},
		{"get of a long key", func() error { _, err := n.kv.Get(ctx, &kvv1.GetRequest{Key: long}); return err }, "over the limit of 16"},
		{"wrong page", func() error { _, err := n.kv.Range(ctx, &kvv1.RangeRequest{Page: []byte("nonsense")}); return err }, "page token"},
		{"unknown consistency", func() error {
			_, err := n.kv.Get(ctx, &kvv1.GetRequest{Key: []byte("k"), Consistency: 9})
			return err
		}, "consistency 9"},
		{"unknown group", func() error { _, err := n.kv.Digest(ctx, &kvv1.DigestRequest{Group: 77}); return err }, "group 77"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.call()
			code, f := failureDetail(t, err)
			if code != codes.InvalidArgument || f.GetReason() != kvv1.Reason_REASON_INVALID || !strings.Contains(f.GetMessage(), c.says) {
				t.Errorf("got %v, %v; want INVALID and %q", code, f, c.says)
			}
		})
	}
	if after := group.Status().LastIndex; after != before {
		t.Errorf("the log grew from %d to %d by refused writes", before, after)
	}
	_, err = n.kv.Put(ctx, &kvv1.PutRequest{Key: []byte("k"), Value: make([]byte, maxMessageBytes+1)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message over 8 MiB: %v", err)
	}
}

// Pages are bounded in bytes, and a single large record is a page.
func TestRangeBytes(t *testing.T) {
	n := startCluster(t, 1, func(c *Config) { c.LimitValue = 4 << 20 })[0]
	ctx := testContext(t)
	value := make([]byte, 2<<20)
	for _, key := range []string{"a", "b", "c"} {
		if _, err := n.kv.Put(ctx, &kvv1.PutRequest{Key: []byte(key), Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.kv.Put(ctx, &kvv1.PutRequest{Key: []byte("d"), Value: make([]byte, 4<<20)}); err != nil {
		t.Fatal(err)
	}
	var page []byte
	for _, want := range []string{"a", "b", "c", "d"} {
		answer, err := n.kv.Range(ctx, &kvv1.RangeRequest{Page: page})
		if err != nil || len(answer.GetRecords()) != 1 || string(answer.GetRecords()[0].GetKey()) != want {
			t.Fatalf("page %s: %d records, %v", want, len(answer.GetRecords()), err)
		}
		page = answer.GetNextPage()
	}
	if len(page) > 0 {
		t.Error("the last page names another")
	}
}

func TestClusterReadsHintsAndDigests(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	ctx := testContext(t)
	leader, follower := leaderOf(t, nodes, raftnode.FirstDataGroup)
	put, err := leader.kv.Put(ctx, &kvv1.PutRequest{Key: []byte("k"), Value: []byte("v")})
	if err != nil {
		t.Fatal(err)
	}
	got, err := follower.kv.Get(ctx, &kvv1.GetRequest{Key: []byte("k")})
	if err != nil || string(got.GetRecord().GetValue()) != "v" || got.GetHeader().GetNode() != follower.config.Name {
		t.Errorf("linearizable get on a follower answered %v, %v", got, err)
	}
	_, err = follower.kv.Put(ctx, &kvv1.PutRequest{Key: []byte("k"), Value: []byte("w")})
	if code, f := failureDetail(t, err); code != codes.FailedPrecondition || f.GetReason() != kvv1.Reason_REASON_NOT_LEADER ||
		f.GetLeaderNode() != leader.config.Name || f.GetLeaderAddress() != leader.Address() {
		t.Errorf("put on a follower: %v, %v; the leader is %s at %s", code, f, leader.config.Name, leader.Address())
	}
	digest, err := leader.kv.Digest(ctx, &kvv1.DigestRequest{})
	if err != nil || digest.GetIndex() <= put.GetHeader().GetIndex() || digest.GetRecords() == 0 {
		t.Fatalf("digest answered %v, %v", digest, err)
	}
	for _, n := range nodes {
		own, err := n.kv.Digest(ctx, &kvv1.DigestRequest{Index: digest.GetIndex()})
		if err != nil || own.GetDigest() != digest.GetDigest() || own.GetRecords() != digest.GetRecords() {
			t.Errorf("digest of %s at %d is %v, %v; the leader's is %v", n.config.Name, digest.GetIndex(), own, err, digest)
		}
	}
	_, err = leader.kv.Digest(ctx, &kvv1.DigestRequest{Index: put.GetHeader().GetIndex()})
	if code, _ := failureDetail(t, err); code != codes.NotFound {
		t.Errorf("digest of an index without one: %v", err)
	}
	_, err = follower.kv.Digest(ctx, &kvv1.DigestRequest{})
	if code, f := failureDetail(t, err); code != codes.FailedPrecondition || f.GetReason() != kvv1.Reason_REASON_NOT_LEADER {
		t.Errorf("new digest on a follower: %v, %v", code, f)
	}
}

// Without a quorum, a write is uncertain and a read tells so, both in time.
func TestNoQuorum(t *testing.T) {
	nodes := startCluster(t, 3, func(c *Config) {
		// A leader that does not notice its loneliness within this test.
		c.ElectionTicks, c.HeartbeatTicks = 400, 20
	})
	leader, _ := leaderOf(t, nodes, raftnode.FirstDataGroup)
	for _, n := range nodes {
		if n != leader {
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(testContext(t), 300*time.Millisecond)
	defer cancel()
	// In the handler, since a client ends by its own clock without asking.
	_, err := (&kvService{s: leader.Server}).Put(ctx, &kvv1.PutRequest{Key: []byte("k"), Value: []byte("v")})
	if code, f := failureDetail(t, err); f.GetReason() != kvv1.Reason_REASON_UNCERTAIN || code != codes.DeadlineExceeded {
		t.Errorf("put without a quorum: %v, %v", code, f)
	}
	_, err = (&kvService{s: leader.Server}).Get(ctx, &kvv1.GetRequest{Key: []byte("k")})
	if code, f := failureDetail(t, err); f.GetReason() != kvv1.Reason_REASON_UNAVAILABLE || code != codes.DeadlineExceeded {
		t.Errorf("linearizable get without a quorum: %v, %v", code, f)
	}
	if _, err := leader.kv.Get(testContext(t), &kvv1.GetRequest{Key: []byte("k"), Consistency: kvv1.Consistency_CONSISTENCY_STALE}); err != nil {
		t.Errorf("stale get without a quorum: %v", err)
	}
}
