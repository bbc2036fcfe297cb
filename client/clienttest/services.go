package clienttest

import (
	"context"
	"hash/fnv"
	"io"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// Refusal makes the error status that carries a failure, as nodes send it.
func Refusal(f *kvv1.Failure) error {
	code := codes.FailedPrecondition
	if f.GetReason() == kvv1.Reason_REASON_UNAVAILABLE {
		code = codes.Unavailable
	}
	s, err := status.New(code, f.GetMessage()).WithDetails(f)
	if err != nil {
		return err
	}
	return s.Err()
}

func (n *node) header() *kvv1.ResponseHeader {
	return &kvv1.ResponseHeader{Group: 2, Node: Name(n.number), Index: n.cluster.index}
}

// awaitThaw waits while the node is frozen, at most until ctx ends.
func (n *node) awaitThaw(ctx context.Context) error {
	n.cluster.mu.Lock()
	ice := n.cluster.ice[n.number]
	n.cluster.mu.Unlock()
	if ice == nil {
		return nil
	}
	select {
	case <-ice:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unary is in front of every call but the write stream.
func (n *node) unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := n.awaitThaw(ctx); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

// read locks the cluster for a read, or says why there is none.
func (n *node) read() (unlock func(), err error) {
	n.cluster.mu.Lock()
	if n.cluster.reads != nil {
		if err := n.cluster.reads(n.number); err != nil {
			n.cluster.mu.Unlock()
			return nil, err
		}
	}
	return n.cluster.mu.Unlock, nil
}

// lead locks the cluster for a call to the leader.
func (n *node) lead() (unlock func(), err error) {
	n.cluster.mu.Lock()
	if n.cluster.leader != n.number {
		defer n.cluster.mu.Unlock()
		return nil, Refusal(n.cluster.notLeader(n.number))
	}
	if n.cluster.calls != nil {
		if err := n.cluster.calls(n.number); err != nil {
			n.cluster.mu.Unlock()
			return nil, err
		}
	}
	return n.cluster.mu.Unlock, nil
}

// Get implements kvv1.KvServiceServer.
func (n *node) Get(_ context.Context, r *kvv1.GetRequest) (*kvv1.GetResponse, error) {
	unlock, err := n.read()
	if err != nil {
		return nil, err
	}
	defer unlock()
	return &kvv1.GetResponse{Header: n.header(), Record: n.cluster.records[string(r.GetKey())]}, nil
}

// Range implements kvv1.KvServiceServer. A page token is the last key.
func (n *node) Range(_ context.Context, r *kvv1.RangeRequest) (*kvv1.RangeResponse, error) {
	unlock, err := n.read()
	if err != nil {
		return nil, err
	}
	defer unlock()
	keys := slices.Sorted(maps.Keys(n.cluster.records))
	if r.GetReverse() {
		slices.Reverse(keys)
	}
	limit := int(r.GetLimit())
	if limit == 0 || limit > 1000 {
		limit = 1000
	}
	response := &kvv1.RangeResponse{Header: n.header()}
	passed := len(r.GetPage()) == 0
	for _, key := range keys {
		if !inRange([]byte(key), r.GetStart(), r.GetEnd()) {
			continue
		}
		if !passed {
			passed = key == string(r.GetPage())
			continue
		}
		response.Count++
		if r.GetCountOnly() {
			continue
		}
		if len(response.Records) == limit {
			response.Count--
			response.NextPage = response.Records[limit-1].GetKey()
			break
		}
		record := n.cluster.records[key]
		if r.GetKeysOnly() {
			record = &kvv1.KeyValue{Key: record.GetKey(), ModRevision: record.GetModRevision()}
		}
		response.Records = append(response.Records, record)
	}
	return response, nil
}

// Write implements kvv1.KvServiceServer: it answers message by message.
func (n *node) Write(stream grpc.BidiStreamingServer[kvv1.WriteRequest, kvv1.WriteResponse]) error {
	for {
		request, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := n.awaitThaw(stream.Context()); err != nil {
			n.lose(request.GetWrites())
			return err
		}
		response := &kvv1.WriteResponse{}
		cut, left := false, false
		for i, w := range request.GetWrites() {
			result, last, leave := n.write(w)
			if result != nil {
				response.Results = append(response.Results, result)
			}
			if last {
				cut, left = true, leave
				n.lose(request.GetWrites()[i+1:])
				break
			}
		}
		if len(response.Results) > 0 {
			if err := stream.Send(response); err != nil {
				return err
			}
		}
		if left {
			return Refusal(&kvv1.Failure{Reason: kvv1.Reason_REASON_UNAVAILABLE, Message: "this node is shutting down"})
		}
		if cut {
			return status.Error(codes.Unavailable, "cut by the script")
		}
	}
}

// lose notes writes that came with a message and were not looked at.
func (n *node) lose(writes []*kvv1.Write) {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	for _, w := range writes {
		n.cluster.arrivals = append(n.cluster.arrivals, Arrival{Node: n.number, Write: w})
	}
}

// write takes one write; last tells that the stream ends with it, leave that it
// ends as that of a node that stops.
func (n *node) write(w *kvv1.Write) (result *kvv1.WriteResult, last, leave bool) {
	c := n.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	arrival := Arrival{Node: n.number, Write: w}
	defer func() { c.arrivals = append(c.arrivals, arrival) }()
	answer := &kvv1.WriteResult{Sequence: w.GetSequence()}
	if c.leader != n.number {
		answer.Failure = c.notLeader(n.number)
		arrival.Answer = answer
		return answer, false, false
	}
	var action Action
	if c.script != nil {
		action = c.script(n.number, w)
	}
	if action.Leave {
		return nil, true, true
	}
	if !action.SkipApply {
		answer.Result, answer.Failure = c.apply(w)
		arrival.Applied = answer.Failure == nil
	}
	if action.Failure != nil {
		answer.Result, answer.Failure = nil, action.Failure
	}
	if action.Silent || action.Cut {
		return nil, action.Cut, false
	}
	arrival.Answer = answer
	return answer, false, false
}

// Digest implements kvv1.KvServiceServer.
func (n *node) Digest(_ context.Context, r *kvv1.DigestRequest) (*kvv1.DigestResponse, error) {
	lock := n.lead
	if r.GetIndex() != 0 {
		lock = n.read
	}
	unlock, err := lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	hash := fnv.New64a()
	for _, key := range slices.Sorted(maps.Keys(n.cluster.records)) {
		hash.Write([]byte(key))
		hash.Write(n.cluster.records[key].GetValue())
	}
	index := r.GetIndex()
	if index == 0 {
		index = n.cluster.index
	}
	return &kvv1.DigestResponse{Header: n.header(), Index: index, Digest: hash.Sum64(), Records: uint64(len(n.cluster.records))}, nil
}

// OpenClientSession implements kvv1.KvServiceServer.
func (n *node) OpenClientSession(context.Context, *kvv1.OpenClientSessionRequest) (*kvv1.OpenClientSessionResponse, error) {
	unlock, err := n.lead()
	if err != nil {
		return nil, err
	}
	defer unlock()
	n.cluster.index++
	id := n.cluster.index << 16
	n.cluster.sessions[id] = map[uint64]*kvv1.OperationResult{}
	return &kvv1.OpenClientSessionResponse{Header: n.header(), Id: id}, nil
}

// CloseClientSession implements kvv1.KvServiceServer.
func (n *node) CloseClientSession(_ context.Context, r *kvv1.CloseClientSessionRequest) (*kvv1.CloseClientSessionResponse, error) {
	unlock, err := n.lead()
	if err != nil {
		return nil, err
	}
	defer unlock()
	delete(n.cluster.sessions, r.GetId())
	return &kvv1.CloseClientSessionResponse{Header: n.header()}, nil
}

// SetFeedMode implements kvv1.KvServiceServer.
func (n *node) SetFeedMode(context.Context, *kvv1.SetFeedModeRequest) (*kvv1.SetFeedModeResponse, error) {
	unlock, err := n.lead()
	if err != nil {
		return nil, err
	}
	defer unlock()
	n.cluster.index++
	return &kvv1.SetFeedModeResponse{Header: n.header(), Index: n.cluster.index}, nil
}

// Status implements adminv1.AdminServiceServer.
func (n *node) Status(context.Context, *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	c := n.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	response := &adminv1.StatusResponse{
		Node: Name(n.number), Address: n.address, ClusterId: "00c0ffee", HistoryEpoch: 1, Version: "test",
		Failure: c.failure[n.number], DiskAvailableBytes: 1 << 30, DiskTotalBytes: 2 << 30, LogDiskBytes: 64 << 20,
	}
	for i, other := range c.nodes {
		response.Nodes = append(response.Nodes, &adminv1.NodeAddress{Node: Name(i), Address: other.address})
	}
	for group := uint64(1); group <= 2; group++ {
		g := &adminv1.GroupStatus{
			Group: group, RaftId: uint64(n.number + 1), Role: adminv1.Role_ROLE_FOLLOWER, Term: c.term,
			CommitIndex: c.index, AppliedIndex: c.index, DurableAppliedIndex: c.index, FirstIndex: 1, LastIndex: c.index,
			LogBytes: 1 << 20, StateBytes: 3 << 20,
		}
		if c.leader == n.number {
			g.Role = adminv1.Role_ROLE_LEADER
		}
		if c.leader != NoLeader && (!c.hide || c.leader == n.number) {
			g.LeaderNode, g.LeaderAddress = Name(c.leader), c.nodes[c.leader].address
		}
		response.Groups = append(response.Groups, g)
	}
	return response, nil
}

// TransferLeader implements adminv1.AdminServiceServer.
func (n *node) TransferLeader(_ context.Context, r *adminv1.TransferLeaderRequest) (*adminv1.TransferLeaderResponse, error) {
	unlock, err := n.lead()
	if err != nil {
		return nil, err
	}
	defer unlock()
	c := n.cluster
	next := (n.number + 1) % len(c.nodes)
	if r.GetNode() != "" {
		next = slices.IndexFunc(c.nodes, func(other *node) bool { return Name(other.number) == r.GetNode() })
		if next < 0 {
			return nil, Refusal(&kvv1.Failure{Reason: kvv1.Reason_REASON_INVALID, Message: "there is no node " + r.GetNode()})
		}
	}
	c.leader = next
	c.term++
	return &adminv1.TransferLeaderResponse{LeaderNode: Name(next)}, nil
}
