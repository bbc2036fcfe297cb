package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Stage is a part of a transfer whose time is counted.
type Stage string

// The stages. Installing and catching up are the replica's.
const (
	StageQueue   Stage = "queue"
	StageCapture Stage = "capture"
	StageSend    Stage = "send"
	StageVerify  Stage = "verify"
	StageInstall Stage = "install"
	StageCatchUp Stage = "catchup"
)

// Role of this node in a transfer.
type Role string

// The roles.
const (
	RoleSource   Role = "source"
	RoleReceiver Role = "receiver"
)

// TransferKey tells kinds of ended transfers (for a source: attempts) apart.
type TransferKey struct {
	Role   Role
	Kind   string // files, records or stream; "" if it ended before that was known
	Result string // ok, or the name of the code it ended with
}

// Counters count what transfers of a node do since they were made. Images,
// Source and Receiver of one node share them. The zero value is ready; all
// methods may be called from any goroutine.
type Counters struct {
	mu        sync.Mutex
	transfers map[TransferKey]uint64
	stages    map[Stage]StageTime
	credit    map[string]time.Duration
	decisions map[Choice]uint64
	restarts  map[string]uint64

	sent, received, sentRaw, receivedRaw, reused, resumed uint64
	checksums, orphans, staged                            uint64
}

// StageTime sums up one stage.
type StageTime struct {
	Count uint64
	Total time.Duration
}

// Metrics are the figures of Counters at one moment. server exports them as
// streamraft_snapshot_*, the name in lower case with underscores.
type Metrics struct {
	// Transfers that ended.
	Transfers map[TransferKey]uint64
	// SentBytes and ReceivedBytes are Chunk.data on the wire; the raw ones what
	// that holds of the files; ReusedBytes were not sent since a file of the same
	// name, size and digest was there already, from another image.
	SentBytes, ReceivedBytes, SentRawBytes, ReceivedRawBytes, ReusedBytes uint64
	// StageSeconds by stage.
	StageSeconds map[Stage]StageTime
	// CreditStall is the time sources had data and no credit ("credit") or waited
	// for their pacing ("pacing").
	CreditStall map[string]time.Duration
	// ResumeBytesSaved were staged already when an attempt began.
	ResumeBytesSaved uint64
	// Decisions of sources.
	Decisions map[Choice]uint64
	// Restarted counts transfers that lost staged bytes, by reason.
	Restarted map[string]uint64
	// ChecksumErrors are chunks and files that were damaged on their way or on
	// disk.
	ChecksumErrors uint64
	// OrphansRemoved are leftovers of crashes that were swept.
	OrphansRemoved uint64
	// StagedBytes are in inboxes of running transfers now.
	StagedBytes uint64
}

// Metrics returns the figures of now.
func (c *Counters) Metrics() Metrics {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Metrics{
		Transfers: maps.Clone(c.transfers), StageSeconds: maps.Clone(c.stages), CreditStall: maps.Clone(c.credit),
		Decisions: maps.Clone(c.decisions), Restarted: maps.Clone(c.restarts),
		SentBytes: c.sent, ReceivedBytes: c.received, SentRawBytes: c.sentRaw, ReceivedRawBytes: c.receivedRaw,
		ReusedBytes: c.reused, ResumeBytesSaved: c.resumed,
		ChecksumErrors: c.checksums, OrphansRemoved: c.orphans, StagedBytes: c.staged,
	}
}

// ObserveStage adds the time of a stage; the replica calls it for install and
// catch-up.
func (c *Counters) ObserveStage(stage Stage, d time.Duration) { c.stage(stage, d) }

func (c *Counters) stage(stage Stage, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stages == nil {
		c.stages = make(map[Stage]StageTime)
	}
	t := c.stages[stage]
	t.Count++
	t.Total += d
	c.stages[stage] = t
}

func (c *Counters) ended(role Role, kind string, err error) {
	result := "ok"
	if err != nil {
		result = codeName(codeOf(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	count(&c.transfers, TransferKey{role, kind, result})
}

func (c *Counters) decided(choice Choice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count(&c.decisions, choice)
}

func (c *Counters) restarted(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count(&c.restarts, reason)
}

func (c *Counters) stalled(cause string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.credit == nil {
		c.credit = make(map[string]time.Duration)
	}
	c.credit[cause] += d
}

// add adds to one of the plain counters.
func (c *Counters) add(counter *uint64, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*counter += n
}

// sub takes from one of the plain counters.
func (c *Counters) sub(counter *uint64, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*counter -= min(n, *counter)
}

// moved counts a chunk.
func (c *Counters) moved(role Role, wire, raw int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if role == RoleSource {
		c.sent += uint64(wire)
		c.sentRaw += uint64(raw)
		return
	}
	c.received += uint64(wire)
	c.receivedRaw += uint64(raw)
	c.staged += uint64(raw)
}

func count[K comparable](m *map[K]uint64, key K) {
	if *m == nil {
		*m = make(map[K]uint64)
	}
	(*m)[key]++
}

// String returns the figures as lines for people, always in the same order.
func (m Metrics) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "bytes: sent %d (raw %d), received %d (raw %d), reused %d, saved by resuming %d, staged %d\n",
		m.SentBytes, m.SentRawBytes, m.ReceivedBytes, m.ReceivedRawBytes, m.ReusedBytes, m.ResumeBytesSaved, m.StagedBytes)
	fmt.Fprintf(&s, "checksum errors %d, orphans removed %d\n", m.ChecksumErrors, m.OrphansRemoved)
	keys := slices.SortedFunc(maps.Keys(m.Transfers), func(a, b TransferKey) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	for _, k := range keys {
		kind := k.Kind
		if kind == "" {
			kind = "-"
		}
		fmt.Fprintf(&s, "transfers: %s %s %s %d\n", k.Role, kind, k.Result, m.Transfers[k])
	}
	for _, k := range slices.Sorted(maps.Keys(m.Decisions)) {
		fmt.Fprintf(&s, "decisions: %s %d\n", k, m.Decisions[k])
	}
	for _, k := range slices.Sorted(maps.Keys(m.Restarted)) {
		fmt.Fprintf(&s, "restarted: %s %d\n", k, m.Restarted[k])
	}
	for _, k := range slices.Sorted(maps.Keys(m.StageSeconds)) {
		fmt.Fprintf(&s, "stage: %s %d in %v\n", k, m.StageSeconds[k].Count, m.StageSeconds[k].Total)
	}
	for _, k := range slices.Sorted(maps.Keys(m.CreditStall)) {
		fmt.Fprintf(&s, "stalled: %s %v\n", k, m.CreditStall[k])
	}
	return s.String()
}
