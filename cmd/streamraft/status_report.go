package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamraft/streamraft/client"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

// statusReport is what status prints with --json.
type statusReport struct {
	Nodes []nodeReport `json:"nodes"`
}

// nodeReport is one node; with Error, nothing but its address and perhaps its
// name is known.
type nodeReport struct {
	Node               string        `json:"node"`
	Address            string        `json:"address"`
	Error              string        `json:"error,omitempty"`
	ClusterID          string        `json:"cluster_id,omitempty"`
	HistoryEpoch       uint64        `json:"history_epoch,omitempty"`
	NodeIncarnation    string        `json:"node_incarnation,omitempty"`
	Version            string        `json:"version,omitempty"`
	Failure            string        `json:"failure,omitempty"`
	NoSpace            bool          `json:"no_space,omitempty"`
	Founding           bool          `json:"founding,omitempty"`
	DiskAvailableBytes uint64        `json:"disk_available_bytes,omitempty"`
	DiskTotalBytes     uint64        `json:"disk_total_bytes,omitempty"`
	LogDiskBytes       uint64        `json:"log_disk_bytes,omitempty"`
	Groups             []groupReport `json:"groups,omitempty"`
}

// groupReport is one replica.
type groupReport struct {
	Group               uint64 `json:"group"`
	RaftID              uint64 `json:"raft_id"`
	Role                string `json:"role"`
	Term                uint64 `json:"term"`
	CommitIndex         uint64 `json:"commit_index"`
	AppliedIndex        uint64 `json:"applied_index"`
	DurableAppliedIndex uint64 `json:"durable_applied_index"`
	// Lag is how far AppliedIndex is behind the highest commit index that any
	// node told.
	Lag              uint64          `json:"lag"`
	FirstIndex       uint64          `json:"first_index"`
	LastIndex        uint64          `json:"last_index"`
	LogBytes         uint64          `json:"log_bytes"`
	StateBytes       uint64          `json:"state_bytes"`
	LeaderNode       string          `json:"leader_node,omitempty"`
	LeaderAddress    string          `json:"leader_address,omitempty"`
	PendingProposals uint64          `json:"pending_proposals"`
	Failure          string          `json:"failure,omitempty"`
	Quarantined      string          `json:"quarantined,omitempty"`
	Replicas         []replicaReport `json:"replicas,omitempty"`
}

// replicaReport is a replica as its leader sees it.
type replicaReport struct {
	RaftID         uint64 `json:"raft_id"`
	Node           string `json:"node"`
	Address        string `json:"address"`
	Learner        bool   `json:"learner,omitempty"`
	MatchIndex     uint64 `json:"match_index"`
	RecentlyActive bool   `json:"recently_active"`
	Progress       string `json:"progress,omitempty"`
}

// gatherStatus asks all nodes: the endpoints, then those that they name.
func gatherStatus(ctx context.Context, c *client.Client, timeout time.Duration) statusReport {
	asked := map[string]bool{}
	names := map[string]string{}
	byName := map[string]nodeReport{}
	var unreachable []nodeReport
	// Two rounds: the answers to the first name the nodes of the second.
	for range 2 {
		for address, response := range askAll(ctx, c, timeout, asked) {
			if response.err != nil {
				unreachable = append(unreachable, nodeReport{Address: address, Error: problemOf(response.err)})
				continue
			}
			for _, node := range response.status.GetNodes() {
				names[node.GetAddress()] = node.GetNode()
			}
			// The same node may be known under two addresses; its own is kept.
			byName[response.status.GetNode()] = reportNode(address, response.status)
		}
	}
	var report statusReport
	for _, node := range byName {
		report.Nodes = append(report.Nodes, node)
	}
	for _, node := range unreachable {
		node.Node = names[node.Address]
		if _, ok := byName[node.Node]; !ok {
			report.Nodes = append(report.Nodes, node)
		}
	}
	slices.SortFunc(report.Nodes, func(a, b nodeReport) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Address, b.Address))
	})
	report.fillLag()
	return report
}

// answer is one node's answer.
type answer struct {
	status *adminv1.StatusResponse
	err    error
}

// askAll asks every known node that was not asked yet.
func askAll(ctx context.Context, c *client.Client, timeout time.Duration, asked map[string]bool) map[string]answer {
	ctx, cancel := statusContext(ctx, timeout)
	defer cancel()
	var mu sync.Mutex
	answers := map[string]answer{}
	var asking sync.WaitGroup
	for _, address := range c.Endpoints() {
		if asked[address] {
			continue
		}
		asked[address] = true
		asking.Go(func() {
			status, err := c.Status(ctx, address)
			mu.Lock()
			defer mu.Unlock()
			answers[address] = answer{status, err}
		})
	}
	asking.Wait()
	return answers
}

// problemOf shortens an error to what happened at the node.
func problemOf(err error) string {
	var e *client.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

// fillLag computes each replica's lag.
func (r *statusReport) fillLag() {
	highest := map[uint64]uint64{}
	for _, node := range r.Nodes {
		for _, g := range node.Groups {
			highest[g.Group] = max(highest[g.Group], g.CommitIndex)
		}
	}
	for _, node := range r.Nodes {
		for i := range node.Groups {
			g := &node.Groups[i]
			g.Lag = highest[g.Group] - min(highest[g.Group], g.AppliedIndex)
		}
	}
}

func reportNode(address string, s *adminv1.StatusResponse) nodeReport {
	n := nodeReport{
		Node: s.GetNode(), Address: cmp.Or(s.GetAddress(), address), ClusterID: s.GetClusterId(), HistoryEpoch: s.GetHistoryEpoch(),
		NodeIncarnation: s.GetNodeIncarnation(), Version: s.GetVersion(), Failure: s.GetFailure(), NoSpace: s.GetNoSpace(),
		Founding: s.GetFounding(), DiskAvailableBytes: s.GetDiskAvailableBytes(), DiskTotalBytes: s.GetDiskTotalBytes(),
		LogDiskBytes: s.GetLogDiskBytes(),
	}
	for _, g := range s.GetGroups() {
		report := groupReport{
			Group: g.GetGroup(), RaftID: g.GetRaftId(), Role: roleName(g.GetRole()), Term: g.GetTerm(), CommitIndex: g.GetCommitIndex(),
			AppliedIndex: g.GetAppliedIndex(), DurableAppliedIndex: g.GetDurableAppliedIndex(), FirstIndex: g.GetFirstIndex(),
			LastIndex: g.GetLastIndex(), LogBytes: g.GetLogBytes(), StateBytes: g.GetStateBytes(), LeaderNode: g.GetLeaderNode(),
			LeaderAddress: g.GetLeaderAddress(), PendingProposals: g.GetPendingProposals(), Failure: g.GetFailure(), Quarantined: g.GetQuarantined(),
		}
		for _, r := range g.GetReplicas() {
			report.Replicas = append(report.Replicas, replicaReport{
				RaftID: r.GetRaftId(), Node: r.GetNode(), Address: r.GetAddress(), Learner: r.GetLearner(),
				MatchIndex: r.GetMatchIndex(), RecentlyActive: r.GetRecentlyActive(), Progress: r.GetProgress(),
			})
		}
		n.Groups = append(n.Groups, report)
	}
	return n
}

// roleName returns a role in words: leader, follower, candidate, learner.
func roleName(role adminv1.Role) string {
	if role == adminv1.Role_ROLE_UNSPECIFIED {
		return "unknown"
	}
	return strings.ToLower(strings.TrimPrefix(role.String(), "ROLE_"))
}
