package raftnode

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/raftnode/transport"
)

// MetaGroup is the group that holds the node directory, the group map and the
// registry. Groups from FirstDataGroup on hold data.
const (
	MetaGroup      uint64 = 1
	FirstDataGroup uint64 = 2
)

// Founder is one node of the list a cluster is founded with.
type Founder struct {
	// Node is the node's name, unique in the cluster.
	Node string
	// Address is host:port where its peers reach it.
	Address string
}

// Options configures a node. Fields without a note have no default and must be
// set. Open works on a copy.
type Options struct {
	// Node is this node's name: 1 to 64 characters of [A-Za-z0-9._-]. The
	// directory remembers it; opening it under another name is refused.
	Node string

	// Dir is the node's directory; created if missing. One node at a time has
	// it open.
	Dir string

	// FS is the file system Dir lives on. nil: the operating system's.
	FS vfs.FS

	// Founders is the list the cluster is founded with, the same on each node
	// and in the same order, this node included. Only an empty directory looks
	// at it: once founded, members come from the membership. It may be given at
	// each start.
	Founders []Founder

	// Join lets an empty directory join a cluster that exists instead of founding
	// one; Founders must be empty then. A directory that belongs to a cluster
	// already does not look at it.
	Join *Join

	// Address is host:port where peers reach this node. It is told to them in the
	// hello, so that one that does not know this node yet can answer it. Empty:
	// that of Founders. What the membership says of this node comes first.
	Address string

	// Groups are the groups founded with the cluster, the same on each node.
	// Empty: MetaGroup and FirstDataGroup.
	Groups []uint64

	// NewStateMachine makes the state machine of a group, a new one each time. It
	// is called once per group in Open, from the goroutine of Open, and again, from
	// a goroutine of the group and after the one before was closed, where a replica
	// is opened anew in place.
	NewStateMachine func(group uint64) StateMachine

	// Transport carries the messages; Open starts it and Close closes it.
	Transport transport.Transport

	// Clock is the node's time. nil: the system's.
	Clock Clock

	// TickInterval is raft's unit of time. 0: 25 ms.
	TickInterval time.Duration
	// HeartbeatTicks between two heartbeats of a leader. 0: 4 (100 ms).
	HeartbeatTicks int
	// ElectionTicks without a leader before a replica campaigns; randomised up
	// to twice that. More than HeartbeatTicks. 0: 24 (600 ms).
	ElectionTicks int

	// MaxCommandBytes bounds one command. 0: 4 MiB.
	MaxCommandBytes int
	// MaxEntryBytes bounds the commands packed into one log entry; a single
	// larger command has an entry of its own. 0: 512 KiB.
	MaxEntryBytes int
	// MaxEntryCommands bounds the commands packed into one log entry, at most
	// MaxOrdinals. 0: 4096.
	MaxEntryCommands int
	// MaxPendingBytes bounds, per group, the commands that wait for their
	// result; over it Propose answers ErrOverloaded. 0: 64 MiB.
	MaxPendingBytes int64
	// MaxMessageBytes bounds the entries of one append message, by their protobuf
	// size. 0: 1 MiB, or an eighth of a log batch if that is less.
	MaxMessageBytes uint64
	// MaxInflightBytes bounds, per follower, what was sent and is not
	// acknowledged yet. 0: 32 MiB.
	MaxInflightBytes uint64
	// MaxInboxBytes bounds, per group, the received messages that wait to be
	// stepped; over it messages are dropped as a network would. 0: 32 MiB.
	MaxInboxBytes int64
	// MaxApplyBytes bounds the entries handed to the state machine in one
	// Apply. 0: 4 MiB.
	MaxApplyBytes uint64

	// LogBudgetBytes is the log a group may keep above the durable applied
	// index before its state machine is flushed so that the log can be cut.
	// Measured in bytes of live entries. 0: 64 MiB.
	LogBudgetBytes int64
	// LogSegmentBytes is the size of a log segment. 0: 64 MiB.
	LogSegmentBytes int64
	// LogCacheBytes bounds the cache of recent entries of all groups.
	// 0: 64 MiB.
	LogCacheBytes int64

	// DiskReserveBytes is the free space below which the node refuses writes
	// and hands its leaderships away, so that what is running can end cleanly.
	// 0: 256 MiB. Negative: no reserve, space is not watched.
	DiskReserveBytes int64
	// DiskCheckInterval is the time between two looks at the free space. 0: 1 s.
	DiskCheckInterval time.Duration

	// Snapshots configures how images travel to replicas that the log no longer
	// reaches. nil: none do, and the log is kept until every member has it.
	Snapshots *SnapshotOptions

	// StateFormat is told to peers in the hello; 0 if the state machine has no
	// versioned format.
	StateFormat uint32

	// Logger gets what an operator should read. nil: nothing is logged.
	Logger *slog.Logger
	// Listener gets the node's events; nil fields are skipped.
	Listener EventListener
}

// EnsureDefaults fills the fields that were left zero.
func (o *Options) EnsureDefaults() {
	setDefault(&o.TickInterval, 25*time.Millisecond)
	setDefault(&o.HeartbeatTicks, 4)
	setDefault(&o.ElectionTicks, 24)
	setDefault(&o.MaxCommandBytes, 4<<20)
	setDefault(&o.MaxEntryBytes, 512<<10)
	setDefault(&o.MaxEntryCommands, 4096)
	setDefault(&o.MaxPendingBytes, 64<<20)
	setDefault(&o.MaxInflightBytes, 32<<20)
	setDefault(&o.MaxInboxBytes, 32<<20)
	setDefault(&o.MaxApplyBytes, 4<<20)
	setDefault(&o.LogBudgetBytes, 64<<20)
	setDefault(&o.LogSegmentBytes, 64<<20)
	setDefault(&o.MaxMessageBytes, min(1<<20, uint64(max(o.maxBatchBytes(), 0)/8)))
	setDefault(&o.LogCacheBytes, 64<<20)
	setDefault(&o.DiskReserveBytes, 256<<20)
	setDefault(&o.DiskCheckInterval, time.Second)
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Clock == nil {
		o.Clock = systemClock{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if len(o.Groups) == 0 {
		o.Groups = []uint64{MetaGroup, FirstDataGroup}
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports every field that cannot work, in one error. It expects
// defaults to be filled.
func (o *Options) Validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if err := checkNodeName(o.Node); err != nil {
		bad("Node: %w", err)
	}
	if o.Dir == "" {
		bad("Dir: empty; set the node's directory")
	}
	if o.NewStateMachine == nil {
		bad("NewStateMachine: nil")
	}
	if o.Snapshots != nil && o.Snapshots.Receiver == nil {
		bad("Snapshots.Receiver: nil")
	}
	if o.Transport == nil {
		bad("Transport: nil")
	}
	if o.ElectionTicks <= o.HeartbeatTicks || o.HeartbeatTicks < 1 {
		bad("ElectionTicks %d must be greater than HeartbeatTicks %d, both positive", o.ElectionTicks, o.HeartbeatTicks)
	}
	if o.TickInterval < time.Millisecond {
		bad("TickInterval %v is below 1 ms", o.TickInterval)
	}
	if o.MaxEntryCommands < 1 || o.MaxEntryCommands > MaxOrdinals {
		bad("MaxEntryCommands %d is not in 1..%d", o.MaxEntryCommands, MaxOrdinals)
	}
	if o.MaxCommandBytes < 1 || o.MaxCommandBytes > 8<<20 {
		bad("MaxCommandBytes %d is not in 1..8 MiB", o.MaxCommandBytes)
	}
	if o.MaxEntryBytes < 1 || o.MaxEntryBytes > 4<<20 {
		bad("MaxEntryBytes %d is not in 1..4 MiB", o.MaxEntryBytes)
	}
	if o.MaxPendingBytes < int64(o.MaxCommandBytes) {
		bad("MaxPendingBytes %d is below MaxCommandBytes %d", o.MaxPendingBytes, o.MaxCommandBytes)
	}
	if o.MaxMessageBytes > 4<<20 {
		bad("MaxMessageBytes %d is over 4 MiB", o.MaxMessageBytes)
	}
	// One update of the log must fit one batch; see maxStepBytes.
	const overhead = maxPayloadHeader + 2*entryLogBytes
	if largest := int64(max(o.MaxCommandBytes, o.MaxEntryBytes)) + overhead; largest > o.maxBatchBytes()-o.maxStepBytes() {
		bad("LogSegmentBytes %d holds log batches of %d bytes; MaxCommandBytes %d and MaxEntryBytes %d must be at most %d, or the segment larger",
			o.LogSegmentBytes, o.maxBatchBytes(), o.MaxCommandBytes, o.MaxEntryBytes, o.maxBatchBytes()-o.maxStepBytes()-overhead)
	}
	// Raft counts entries by their protobuf size; small ones take up to three
	// times that in the log.
	if o.MaxMessageBytes > uint64(o.maxBatchBytes()/8) {
		bad("MaxMessageBytes %d must be at most %d, an eighth of a log batch, or LogSegmentBytes larger", o.MaxMessageBytes, o.maxBatchBytes()/8)
	}
	if largest := max(o.MaxCommandBytes, o.MaxEntryBytes) + 64<<10; largest > transport.MaxMessageBytes {
		bad("MaxCommandBytes %d and MaxEntryBytes %d must be at most %d: a message between nodes must hold them", o.MaxCommandBytes, o.MaxEntryBytes, transport.MaxMessageBytes-64<<10)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"DiskCheckInterval", int64(o.DiskCheckInterval)}, {"LogBudgetBytes", o.LogBudgetBytes}, {"MaxInboxBytes", o.MaxInboxBytes},
	} {
		if f.value <= 0 {
			bad("%s is %d, must be above 0", f.name, f.value)
		}
	}
	groups := make(map[uint64]bool)
	for _, g := range o.Groups {
		if g == 0 || groups[g] {
			bad("Groups: %d is zero or listed twice", g)
		}
		groups[g] = true
	}
	if err := o.Join.validate(o); err != nil {
		bad("Join: %w", err)
	}
	if err := validateFounders(o.Node, o.Founders); err != nil {
		bad("Founders: %w", err)
	}
	if len(problems) > 0 {
		return fmt.Errorf("raftnode: invalid options: %w", errors.Join(problems...))
	}
	return nil
}

// maxBatchBytes is what one batch of the log holds.
func (o *Options) maxBatchBytes() int64 { return min(16<<20, o.LogSegmentBytes/4*3) }

// maxStepBytes bounds the entries taken from peers or proposers between two
// Ready of raft: all of them become one update of the log, together with one
// message or entry that may be larger, and an update must fit a batch.
func (o *Options) maxStepBytes() int64 { return o.maxBatchBytes() / 4 }

func validateFounders(self string, founders []Founder) error {
	if len(founders) == 0 {
		return nil
	}
	names, addresses, found := map[string]bool{}, map[string]bool{}, false
	for _, f := range founders {
		if err := checkNodeName(f.Node); err != nil {
			return err
		}
		if f.Address == "" {
			return fmt.Errorf("node %s has no address", f.Node)
		}
		if names[f.Node] {
			return fmt.Errorf("node %s is listed twice", f.Node)
		}
		if addresses[f.Address] {
			return fmt.Errorf("address %s is listed twice", f.Address)
		}
		names[f.Node], addresses[f.Address] = true, true
		found = found || f.Node == self
	}
	if !found {
		return fmt.Errorf("this node, %q, is not in the list %s; add it, or correct its name", self, founderList(founders))
	}
	return nil
}

// founderList writes the list as the command line takes it.
func founderList(founders []Founder) string {
	parts := make([]string, len(founders))
	for i, f := range founders {
		parts[i] = f.Node + "=" + f.Address
	}
	return strings.Join(parts, ",")
}

func checkNodeName(name string) error {
	if name == "" || len(name) > 64 {
		return fmt.Errorf("name %q must have 1 to 64 characters", name)
	}
	for _, r := range name {
		if !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-", r) {
			return fmt.Errorf("name %q has %q in it; allowed are A-Z a-z 0-9 . _ -", name, r)
		}
	}
	return nil
}
