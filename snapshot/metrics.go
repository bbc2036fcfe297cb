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
	stages    map[Stage]*Durations
	credit    map[string]time.Duration
	decisions map[Decision]uint64
	restarts  map[string]uint64
	// staging are the transfers between the begin and the end of Receive.
	staging map[*Transfer]struct{}

	installBlock, recovery *Durations // nil: none yet

	sent, received, sentRaw, receivedRaw, reused, resumed uint64
	checksums, orphans, repeatedFull                      uint64
}

// Decision is what was served to whom, and why.
type Decision struct {
	// Choice that was made.
	Choice Choice
	// Reason is "staged" for a resumed image, "behind" for a delta; for a full one
	// "no_state" where the receiver had nothing to add to, "no_delta" where a delta
	// was not legal or too large.
	Reason string
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
	// StageSeconds by stage; one counts when it has come to its end.
	StageSeconds map[Stage]Durations
	// CreditStall is the time sources had data and no credit ("credit") or waited
	// for their pacing ("pacing").
	CreditStall map[string]time.Duration
	// ResumeBytesSaved were staged already when an attempt began.
	ResumeBytesSaved uint64
	// Decisions of sources, one for each attempt that got an image.
	Decisions map[Decision]uint64
	// Restarted counts transfers that lost staged bytes, by reason.
	Restarted map[string]uint64
	// ChecksumErrors are chunks and files that were damaged on their way or on
	// disk.
	ChecksumErrors uint64
	// OrphansRemoved are leftovers of crashes that were swept.
	OrphansRemoved uint64
	// StagedBytes are in inboxes of the transfers that are received now.
	StagedBytes uint64
	// InstallBlock is how long installations held up their group's log: from the
	// moment raft accepts the image until it is in state and log.
	InstallBlock Durations
	// Recovery is how long replicas took from the first transfer until they had
	// caught up.
	Recovery Durations
	// RepeatedFull counts full images that a replica got although it had got
	// another one in the same recovery. It stays 0: what is missing behind a full
	// image comes from the log or as a delta.
	RepeatedFull uint64
}

// Metrics returns the figures of now.
func (c *Counters) Metrics() Metrics {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := Metrics{
		Transfers: maps.Clone(c.transfers), StageSeconds: make(map[Stage]Durations), CreditStall: maps.Clone(c.credit),
		Decisions: maps.Clone(c.decisions), Restarted: maps.Clone(c.restarts),
		SentBytes: c.sent, ReceivedBytes: c.received, SentRawBytes: c.sentRaw, ReceivedRawBytes: c.receivedRaw,
		ReusedBytes: c.reused, ResumeBytesSaved: c.resumed,
		ChecksumErrors: c.checksums, OrphansRemoved: c.orphans, RepeatedFull: c.repeatedFull,
		InstallBlock: newDurations(shortBounds()), Recovery: newDurations(longBounds()),
	}
	for stage, d := range c.stages {
		m.StageSeconds[stage] = d.clone()
	}
	if c.installBlock != nil {
		m.InstallBlock = c.installBlock.clone()
	}
	if c.recovery != nil {
		m.Recovery = c.recovery.clone()
	}
	for t := range c.staging {
		m.StagedBytes += t.stagedBytes()
	}
	return m
}

// ObserveInstallBlock adds the time an installation held up its group's log; the
// replica calls it.
func (c *Counters) ObserveInstallBlock(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	observe(&c.installBlock, shortBounds, d)
}

// ObserveRecovery adds the time of a recovery; the replica calls it when it has
// caught up.
func (c *Counters) ObserveRecovery(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	observe(&c.recovery, longBounds, d)
}

// CountRepeatedFull counts a full image that should have been a delta; the
// replica calls it.
func (c *Counters) CountRepeatedFull() { c.add(&c.repeatedFull, 1) }

// observe adds to a histogram that may not be there yet.
func observe(h **Durations, bounds func() []time.Duration, d time.Duration) {
	if *h == nil {
		*h = new(newDurations(bounds()))
	}
	(*h).observe(d)
}

// ObserveStage adds the time of a stage; the replica calls it for install and
// catch-up.
func (c *Counters) ObserveStage(stage Stage, d time.Duration) { c.stage(stage, d) }

func (c *Counters) stage(stage Stage, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stages == nil {
		c.stages = make(map[Stage]*Durations)
	}
	t := c.stages[stage]
	observe(&t, longBounds, d)
	c.stages[stage] = t
}

// beginStaging: what the transfer has staged counts as StagedBytes until
// endStaging.
func (c *Counters) beginStaging(t *Transfer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.staging == nil {
		c.staging = make(map[*Transfer]struct{})
	}
	c.staging[t] = struct{}{}
}

func (c *Counters) endStaging(t *Transfer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.staging, t)
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

func (c *Counters) decided(choice Choice, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count(&c.decisions, Decision{choice, reason})
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
	fmt.Fprintf(&s, "checksum errors %d, orphans removed %d, full images repeated %d\n", m.ChecksumErrors, m.OrphansRemoved, m.RepeatedFull)
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
	decisions := slices.SortedFunc(maps.Keys(m.Decisions), func(a, b Decision) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	for _, k := range decisions {
		fmt.Fprintf(&s, "decisions: %s %s %d\n", k.Choice, k.Reason, m.Decisions[k])
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
	if m.Recovery.Count > 0 || m.InstallBlock.Count > 0 {
		fmt.Fprintf(&s, "recoveries: %d in %v, installations blocked %d times for %v\n",
			m.Recovery.Count, m.Recovery.Total, m.InstallBlock.Count, m.InstallBlock.Total)
	}
	return s.String()
}
