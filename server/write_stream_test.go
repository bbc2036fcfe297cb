package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

func streamPut(sequence uint64, key, value string) *kvv1.Write {
	return &kvv1.Write{Sequence: sequence, Operation: &kvv1.Operation{Operation: &kvv1.Operation_Put{
		Put: &kvv1.Put{Key: []byte(key), Value: []byte(value)}}}}
}

func openStream(t *testing.T, ctx context.Context, n *testNode) grpc.BidiStreamingClient[kvv1.WriteRequest, kvv1.WriteResponse] {
	t.Helper()
	stream, err := n.kv.Write(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// answers reads a stream to its end.
func answers(stream grpc.BidiStreamingClient[kvv1.WriteRequest, kvv1.WriteResponse]) (map[uint64]*kvv1.WriteResult, error) {
	results := make(map[uint64]*kvv1.WriteResult)
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return results, nil
		}
		if err != nil {
			return results, err
		}
		for _, r := range response.GetResults() {
			if results[r.GetSequence()] != nil {
				return results, fmt.Errorf("sequence %d is answered twice", r.GetSequence())
			}
			results[r.GetSequence()] = r
		}
	}
}

// Every write is answered once; what is wrong with one does not end the stream,
// and writes to one key are applied in the order they were sent.
func TestWriteStream(t *testing.T) {
	n := startCluster(t, 1, nil)[0]
	ctx := testContext(t)
	stream := openStream(t, ctx, n)
	const count = 5000
	for first := uint64(1); first <= count; first += 100 {
		request := &kvv1.WriteRequest{}
		for sequence := first; sequence < first+100; sequence++ {
			w := streamPut(sequence, "same", fmt.Sprint(sequence))
			if sequence%1000 == 0 {
				w = streamPut(sequence, "", "no key")
			}
			request.Writes = append(request.Writes, w)
		}
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
	}
	last := &kvv1.WriteRequest{Writes: []*kvv1.Write{
		{Sequence: count + 1},
		{Sequence: count + 2, Operation: &kvv1.Operation{Operation: &kvv1.Operation_Txn{Txn: &kvv1.Txn{
			Success: []*kvv1.TxnOperation{{Operation: &kvv1.TxnOperation_Get{Get: &kvv1.TxnGet{Key: []byte("same")}}}}}}}},
		{Sequence: count + 3, Operation: &kvv1.Operation{Operation: &kvv1.Operation_Delete{Delete: &kvv1.Delete{Key: []byte("same")}}}},
		{Sequence: count + 9, Operation: streamPut(0, "k", "v").GetOperation(), Session: &kvv1.ClientSessionRef{Id: 12345, Sequence: 1}},
	}}
	if err := stream.Send(last); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	results, err := answers(stream)
	if err != nil || len(results) != count+4 {
		t.Fatalf("%d answers, %v", len(results), err)
	}
	revision := uint64(0)
	for sequence := uint64(1); sequence <= count; sequence++ {
		r := results[sequence]
		if sequence%1000 == 0 {
			if r.GetFailure().GetReason() != kvv1.Reason_REASON_INVALID || r.GetResult() != nil {
				t.Fatalf("a put without a key answered %v", r)
			}
			continue
		}
		if r.GetFailure() != nil || r.GetResult().GetRevision() <= revision {
			t.Fatalf("sequence %d answered %v after revision %d", sequence, r, revision)
		}
		revision = r.GetResult().GetRevision()
	}
	if r := results[count+1]; r.GetFailure().GetReason() != kvv1.Reason_REASON_INVALID {
		t.Errorf("no operation answered %v", r)
	}
	if r := results[count+2].GetResult(); !r.GetSucceeded() || string(r.GetTxn()[0].GetRecord().GetValue()) != fmt.Sprint(count-1) {
		t.Errorf("txn answered %v", results[count+2])
	}
	if r := results[count+3].GetResult(); !r.GetExisted() {
		t.Errorf("delete answered %v", results[count+3])
	}
	if r := results[count+9].GetFailure(); r.GetReason() != kvv1.Reason_REASON_SESSION_EXPIRED {
		t.Errorf("unknown client session answered %v", results[count+9])
	}
	if used := n.inflight.used.Load(); used != 0 {
		t.Errorf("%d bytes are in flight after all answers", used)
	}
}

// A sequence that does not rise ends the stream, after what came before it was
// answered.
func TestWriteStreamSequenceOrder(t *testing.T) {
	n := startCluster(t, 1, nil)[0]
	for _, bad := range []uint64{0, 1, 2} {
		stream := openStream(t, testContext(t), n)
		writes := []*kvv1.Write{streamPut(1, "a", "1"), streamPut(2, "b", "2"), streamPut(bad, "c", "3")}
		if err := stream.Send(&kvv1.WriteRequest{Writes: writes}); err != nil {
			t.Fatal(err)
		}
		results, err := answers(stream)
		if code, f := failureDetail(t, err); code != codes.InvalidArgument || f.GetReason() != kvv1.Reason_REASON_INVALID || len(results) != 2 {
			t.Errorf("sequence %d after 2: %d answers, then %v", bad, len(results), err)
		}
	}
}

// On a follower each write is refused with the leader; the stream goes on.
func TestWriteStreamOnFollower(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	leader, follower := leaderOf(t, nodes, raftnode.FirstDataGroup)
	stream := openStream(t, testContext(t), follower)
	for sequence := uint64(1); sequence <= 3; sequence++ {
		if err := stream.Send(&kvv1.WriteRequest{Writes: []*kvv1.Write{streamPut(sequence, "k", "v")}}); err != nil {
			t.Fatal(err)
		}
		response, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		f := response.GetResults()[0].GetFailure()
		if f.GetReason() != kvv1.Reason_REASON_NOT_LEADER || f.GetLeaderAddress() != leader.Address() {
			t.Errorf("write on a follower answered %v; the leader is at %s", f, leader.Address())
		}
	}
}

// A client that does not read its answers stops being read once they fill its
// budget; others go on.
func TestWriteStreamBackpressure(t *testing.T) {
	n := startCluster(t, 1, func(c *Config) { c.MaxInflightBytes = 16 << 20 })[0]
	ctx := testContext(t)
	if _, err := n.kv.Put(ctx, &kvv1.PutRequest{Key: []byte("big"), Value: make([]byte, 1<<20)}); err != nil {
		t.Fatal(err)
	}
	lazy, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := openStream(t, lazy, n)
	get := &kvv1.Operation{Operation: &kvv1.Operation_Txn{Txn: &kvv1.Txn{
		Success: []*kvv1.TxnOperation{{Operation: &kvv1.TxnOperation_Get{Get: &kvv1.TxnGet{Key: []byte("big")}}}}}}}
	before := n.Node().Metrics().Groups[1].Applied
	const count = 200
	for sequence := uint64(1); sequence <= count; sequence++ {
		if err := stream.Send(&kvv1.WriteRequest{Writes: []*kvv1.Write{{Sequence: sequence, Operation: get}}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.kv.Put(ctx, &kvv1.PutRequest{Key: []byte("other"), Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	stream2 := openStream(t, ctx, n)
	if err := stream2.Send(&kvv1.WriteRequest{Writes: []*kvv1.Write{streamPut(1, "k", "v")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream2.Recv(); err != nil {
		t.Fatal(err)
	}
	// 16 MiB of budget, some messages in gRPC's windows: far from 200 MiB.
	if applied := n.Node().Metrics().Groups[1].Applied - before; applied > 60 {
		t.Errorf("%d of %d writes were taken from a client that reads no answer", applied, count)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if results, err := answers(stream); err != nil || len(results) != count {
		t.Errorf("%d answers in the end, %v", len(results), err)
	}
}

// A client that goes away in the middle leaves nothing behind.
func TestWriteStreamCancelled(t *testing.T) {
	n := startCluster(t, 1, nil)[0]
	ctx, cancel := context.WithCancel(testContext(t))
	stream := openStream(t, ctx, n)
	for sequence := uint64(1); sequence <= 100; sequence++ {
		if err := stream.Send(&kvv1.WriteRequest{Writes: []*kvv1.Write{streamPut(sequence, "k", "v")}}); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if _, err := answers(stream); status.Code(err) != codes.Canceled {
		t.Errorf("cancelled stream ended with %v", err)
	}
	eventually(t, "nothing is in flight", func() bool { return n.inflight.used.Load() == 0 })
}

// BenchmarkWriteStream is what one pipelined put costs a cluster of one node in
// memory, client and gRPC included: the server's part of the way of a write.
func BenchmarkWriteStream(b *testing.B) {
	n := benchNode(b)
	stream, err := n.kv.Write(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	value := string(make([]byte, 256))
	b.ReportAllocs()
	b.ResetTimer()
	go func() {
		const batch = 64
		for sequence := 1; sequence <= b.N; {
			request := &kvv1.WriteRequest{}
			for range min(batch, b.N-sequence+1) {
				request.Writes = append(request.Writes, streamPut(uint64(sequence), "key-of-16-bytes!", value))
				sequence++
			}
			if stream.Send(request) != nil {
				return // Recv has the error
			}
		}
		_ = stream.CloseSend()
	}()
	results := 0
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range response.GetResults() {
			if r.GetFailure() != nil {
				b.Fatal(r.GetFailure())
			}
			results++
		}
	}
	if results != b.N {
		b.Fatalf("%d results of %d writes", results, b.N)
	}
}

// BenchmarkPut is one unary put after the other.
func BenchmarkPut(b *testing.B) {
	n := benchNode(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := n.kv.Put(b.Context(), &kvv1.PutRequest{Key: []byte("key-of-16-bytes!"), Value: make([]byte, 256)}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGet is one linearizable get after the other.
func BenchmarkGet(b *testing.B) {
	n := benchNode(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := n.kv.Get(b.Context(), &kvv1.GetRequest{Key: []byte("key")}); err != nil {
			b.Fatal(err)
		}
	}
}

func benchNode(b *testing.B) *testNode {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	h, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	n := &testNode{config: testConfig("n1", "data", []raftnode.Founder{{Node: "n1", Address: l.Addr().String()}})}
	n.config.MemtableBytes, n.config.LogSegmentBytes = 256<<20, 64<<20
	if n.Server, err = Open(b.Context(), n.config, Options{FS: vfs.NewMem(), Listener: l, HTTPListener: h}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = n.Close() })
	n.connect(b)
	eventually(b, "ready", func() bool { ready, _ := n.Ready(); return ready })
	return n
}
