// Package raftnode keeps state machines identical on several machines.
//
// A Node is one member process. It holds a replica of one or more raft groups;
// each group has a state machine, which the user brings (StateMachine), and all
// groups of a node share one log on disk (package raftlog) and one transport
// (package transport). The raft core is etcd-raft.
//
//	node, err := raftnode.Open(ctx, raftnode.Options{
//		Node: "n1", Dir: "data/n1",
//		Founders:        []raftnode.Founder{{Node: "n1", Address: "10.0.0.1:7601"}, ...},
//		NewStateMachine: func(group uint64) raftnode.StateMachine { return newMachine() },
//		Transport:       grpcTransport,
//	})
//	group, err := node.Group(raftnode.FirstDataGroup)
//	result, err := group.Propose(ctx, command)     // on the leader
//	_, err = group.Read(ctx, raftnode.ReadOptions{}) // anywhere; then read the state machine
//
// # What holds
//
// A proposal that returned without error is on the disks of a quorum, applied
// on the leader, and never lost. Its command is applied once by every replica,
// in the same order everywhere. Two replicas with the same applied index have
// seen the same calls of Apply with the same arguments. An error says what is
// known of the outcome (errors.go).
//
// # The way of a write
//
//	Propose ── proposal.go      admission by bytes, outcome
//	   │ mailbox
//	step goroutine ── group.go, propose.go     packs commands into entries, steps raft
//	   ├── transport            entries to the followers, at once
//	   │ append queue
//	append goroutine ── append.go     one synced batch for all groups of the node
//	   │ responses, only after the sync: to raft, to the leader
//	step goroutine              commit index advances
//	   │ apply queue
//	apply goroutine ── apply.go      StateMachine.Apply, then the answer to Propose
//
// # Goroutines
//
// Per node: one that appends, one that ticks, one that watches the disk and cuts
// the logs. Per group: one that steps, one that applies. None waits for another
// with a lock held. The append and apply goroutines wait for the disk; the step
// goroutine only where a member is so far behind that entries for it are no
// longer in the log's cache.
//
// # What is durable when
//
// An entry, a term and a vote are durable before any message that vouches for
// them leaves the node. A commit index is not: after a crash it is raised to the
// applied index. The state machine decides itself when it becomes durable
// (StateMachine.DurableApplied); the log is cut only below that and only below
// what every member has.
//
// # Membership
//
// Group.ChangeMembership adds learners, promotes and removes, several at once by
// joint consensus; it refuses what would leave no majority that answers. An empty
// directory joins with Options.Join, under raft ids that were never used; a
// removed raft id never comes back, and its node is told (Status.Removed).
//
// # Failure
//
// A write or sync error of the log stops the node at once and for good: it no
// longer ticks, sends or acknowledges. An error of a state machine, or a message
// that breaks raft's invariants, stops one replica. The library never exits the
// process; Node.Failed and GroupStatus.Failure tell.
//
// With SnapshotOptions and a state machine that takes images two failures cost no
// replica. After an installation that failed it is opened anew in place, and the
// image is tried again. And where the log is sound and the state is not (ErrUnsound
// from the state machine, a state older than its log, a report of damage, a digest
// unlike the majority's, Group.Quarantine) the replica is quarantined: it votes and
// acknowledges, never leads, serves no reads (ErrQuarantined), is no source, cuts
// no log, and replaces its state by an image from the leader. GroupStatus.Quarantined
// tells. Group.StateMachine is another one afterwards, so it is asked for after
// each Read. A damaged log is never repaired so: it may have lost votes.
package raftnode
