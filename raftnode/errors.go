package raftnode

import (
	"errors"
	"fmt"
)

// Outcome errors. They say what is known about a proposal; test with
// errors.Is. A proposal that failed with anything but ErrUncertain was certainly
// not applied and never will be.
var (
	// ErrNotLeader: this replica does not lead the group; certainly not applied.
	// errors.As with *NotLeaderError tells where the leader is.
	ErrNotLeader = errors.New("raftnode: not the leader of the group")

	// ErrDropped: the proposal was given up before it could be replicated, or
	// another leader's entry took its place; certainly not applied. Safe to
	// propose again.
	ErrDropped = errors.New("raftnode: proposal dropped, certainly not applied")

	// ErrUncertain: the proposal was replicated to some extent and its fate is
	// not known here; it may be applied later. Proposing it again may apply it
	// twice.
	ErrUncertain = errors.New("raftnode: outcome uncertain, may be applied")

	// ErrOverloaded: the bytes waiting in the group reached
	// Options.MaxPendingBytes; certainly not applied. Try again later.
	ErrOverloaded = errors.New("raftnode: too many bytes are waiting, certainly not applied")

	// ErrNoSpace: free disk space is below Options.DiskReserveBytes; certainly
	// not applied. The node goes on by itself once space returns.
	ErrNoSpace = errors.New("raftnode: disk is full, certainly not applied")

	// ErrFailed: the node or the replica failed for good (disk error, state
	// machine error) before the proposal was packed; certainly not applied. One
	// that was packed ends with ErrUncertain instead. Close the node and open a
	// new one. Node.Err and GroupStatus.Failure tell the cause.
	ErrFailed = errors.New("raftnode: failed")

	// ErrClosed: the node was closed before the proposal was packed; certainly
	// not applied. One that was packed ends with ErrUncertain instead.
	ErrClosed = errors.New("raftnode: closed")

	// ErrTooLarge: the command is over Options.MaxCommandBytes; certainly not
	// applied.
	ErrTooLarge = errors.New("raftnode: command too large")

	// ErrQuarantined: the state of the replica is unsound and being replaced; read
	// from another node. GroupStatus.Quarantined tells the cause.
	ErrQuarantined = errors.New("raftnode: replica is quarantined")

	// ErrUnknownGroup: the node has no replica of that group.
	ErrUnknownGroup = errors.New("raftnode: unknown group")
)

// Identity errors of Open.
var (
	// ErrRefused: the directory or the node does not belong to the cluster it
	// was started for. The message says what differs and what to run.
	ErrRefused = errors.New("raftnode: refused")

	// ErrLocked: another process has the directory open.
	ErrLocked = errors.New("raftnode: directory is in use by a running node")

	// ErrVersion: the directory was written by a newer version.
	ErrVersion = errors.New("raftnode: directory has a newer format")

	// ErrUnsound: the state is damaged, incomplete or older than its log begins.
	// StateMachine.Open and Apply return it, wrapped, to be quarantined: the
	// replica then gets another state from its leader.
	ErrUnsound = errors.New("raftnode: the state is unsound")

	// ErrDataLoss: the log does not go with the state; the log store lost data.
	ErrDataLoss = errors.New("raftnode: log and state do not fit")
)

// NotLeaderError is the ErrNotLeader of a replica; it names the leader as far
// as the replica knows.
type NotLeaderError struct {
	// Group is the raft group.
	Group uint64
	// LeaderNode and LeaderAddress are empty while no leader is known.
	LeaderNode    string
	LeaderAddress string
}

// Error says where to go instead.
func (e *NotLeaderError) Error() string {
	if e.LeaderNode == "" {
		return fmt.Sprintf("raftnode: group %d: not the leader, and no leader is known yet; try again or ask another node", e.Group)
	}
	return fmt.Sprintf("raftnode: group %d: not the leader; the leader is %s at %s", e.Group, e.LeaderNode, e.LeaderAddress)
}

// Unwrap makes errors.Is(err, ErrNotLeader) hold.
func (e *NotLeaderError) Unwrap() error { return ErrNotLeader }
