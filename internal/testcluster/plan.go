package testcluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// faultKind is what a step of a plan does.
type faultKind string

const (
	faultCut         faultKind = "cut link"
	faultCutOneWay   faultKind = "cut link one way"
	faultIsolate     faultKind = "isolate"
	faultSlow        faultKind = "slow link"
	faultLossy       faultKind = "lossy network"
	faultCrash       faultKind = "crash"
	faultCrashAll    faultKind = "crash all"
	faultKillAll     faultKind = "kill all"
	faultSyncError   faultKind = "sync error"
	faultDiskFull    faultKind = "disk full"
	faultSkew        faultKind = "clock skew"
	faultTransfer    faultKind = "transfer"
	faultFlush       faultKind = "flush"
	faultStaleLeader faultKind = "isolate leader that takes writes"
	faultBehind      faultKind = "keep away until the logs are cut"

	faultLoseDisk faultKind = "lose a disk, join, replace"

	faultTrapVote        faultKind = "crash at a vote, isolate"
	faultTrapAcknowledge faultKind = "crash at an acknowledgement"
	faultTrapAnswer      faultKind = "crash at an answer"
	faultTrapSync        faultKind = "crash at a sync"
	faultTrapOperation   faultKind = "crash at an operation"
)

// crashKind is what a crash keeps of what was not synced.
type crashKind string

const (
	crashNone crashKind = "0 %"  // nothing
	crashHalf crashKind = "50 %" // some blocks of 4 KiB and directory entries
	crashTorn crashKind = "torn" // some sectors of 512 bytes of the log and of staged files
	crashKill crashKind = "kill" // everything: only the process ended
)

// target chooses a node when the step is carried out.
type target string

const (
	targetLeader   target = "leader"
	targetFollower target = "follower"
	targetAny      target = "any"
)

// step is one fault of a plan.
type step struct {
	at       time.Duration // since the beginning of the faults
	lasts    time.Duration // until it is healed
	kind     faultKind
	target   target
	crash    crashKind
	choice   uint64 // decides what is left open, such as which follower
	duration time.Duration
	rate     float64
}

func (s step) String() string {
	return fmt.Sprintf("%v, %s %s for %v", s.kind, s.target, s.crash, s.lasts)
}

// Plan is what a seed fixes: the cluster's options and its faults.
type Plan struct {
	Seed uint64
	// Nodes of the cluster.
	Nodes int
	// SegmentBytes and BudgetBytes of the log, so that it is cut often.
	SegmentBytes int64
	BudgetBytes  int64
	// JournalBytes is kv.Options.JournalBytes: with few of them a replica that was
	// away gets a full image, with many a delta.
	JournalBytes int64
	// ReserveBytes is Options.DiskReserveBytes.
	ReserveBytes int64
	// FaultsEnd is when everything is healed, since the faults began.
	FaultsEnd time.Duration

	steps []step
}

// faultWeights are how often each fault comes, relative to each other.
func faultWeights() []weighted[faultKind] {
	return []weighted[faultKind]{
		{faultCrash, 26}, {faultCut, 6}, {faultCutOneWay, 7}, {faultIsolate, 10}, {faultSlow, 4},
		{faultLossy, 8}, {faultCrashAll, 5}, {faultKillAll, 2}, {faultSyncError, 5}, {faultDiskFull, 5},
		{faultSkew, 7}, {faultTransfer, 8}, {faultFlush, 6}, {faultStaleLeader, 8}, {faultBehind, 16},
		{faultTrapVote, 8}, {faultTrapAcknowledge, 8}, {faultTrapAnswer, 6}, {faultTrapSync, 14}, {faultTrapOperation, 8},
	}
}

type weighted[T any] struct {
	value  T
	weight int
}

func choose[T any](r *rand.Rand, list []weighted[T]) T {
	total := 0
	for _, w := range list {
		total += w.weight
	}
	n := r.IntN(total)
	for _, w := range list {
		if n -= w.weight; n < 0 {
			return w.value
		}
	}
	return list[len(list)-1].value
}

// minFaults a plan has at least.
const minFaults = 14

// NewPlan returns the plan of a seed.
func NewPlan(seed uint64) *Plan {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	p := &Plan{
		Seed:         seed,
		Nodes:        choose(r, []weighted[int]{{3, 9}, {5, 1}}),
		SegmentBytes: choose(r, []weighted[int64]{{256 << 10, 2}, {128 << 10, 1}}),
		BudgetBytes:  choose(r, []weighted[int64]{{16 << 10, 2}, {64 << 10, 2}, {192 << 10, 1}}),
		ReserveBytes: choose(r, []weighted[int64]{{1 << 20, 2}, {-1, 1}}),
	}
	p.JournalBytes = choose(newRandom(seed, 0x10a1), []weighted[int64]{{256 << 10, 2}, {4 << 10, 1}})
	at := time.Duration(200+r.IntN(300)) * time.Millisecond
	for range minFaults + r.IntN(6) {
		s := step{
			at: at, kind: choose(r, faultWeights()), choice: r.Uint64(),
			lasts:  time.Duration(300+r.IntN(1700)) * time.Millisecond,
			target: choose(r, []weighted[target]{{targetLeader, 3}, {targetFollower, 2}, {targetAny, 1}}),
			crash:  choose(r, []weighted[crashKind]{{crashNone, 4}, {crashHalf, 3}, {crashTorn, 3}, {crashKill, 2}}),
			// Clocks may be wrong by minutes, tickers by a third.
			duration: time.Duration(r.IntN(1200)-600) * time.Second,
			rate:     0.7 + 0.6*r.Float64(),
		}
		if s.kind == faultBehind {
			s.target, s.lasts = targetFollower, 3*time.Second+s.lasts
		}
		p.steps = append(p.steps, s)
		if s.kind == faultBehind {
			// Leaders give up who is silent for some time; one must lead that long.
			at += 3 * time.Second
		}
		at += time.Duration(300+r.IntN(1300)) * time.Millisecond
	}
	p.FaultsEnd = at + 500*time.Millisecond
	// Half of the plans have one disk lost, while other faults go on.
	if more := newRandom(seed, 0xd15c); more.IntN(2) == 0 {
		i := 1 + more.IntN(len(p.steps)-2)
		p.steps = slices.Insert(p.steps, i, step{at: p.steps[i].at, kind: faultLoseDisk, target: targetFollower, crash: crashNone, choice: more.Uint64()})
	}
	return p
}

// String returns the plan for a person.
func (p *Plan) String() string {
	s := fmt.Sprintf("seed %d: %d nodes, segments of %d KiB, log budget %d KiB, journal %d KiB, disk reserve %d, %d faults in %v",
		p.Seed, p.Nodes, p.SegmentBytes>>10, p.BudgetBytes>>10, p.JournalBytes>>10, p.ReserveBytes, len(p.steps), p.FaultsEnd)
	for _, step := range p.steps {
		s += fmt.Sprintf("\n%9.3fs %v", step.at.Seconds(), step)
	}
	return s
}

// newRandom returns a generator for one purpose of a seed.
func newRandom(seed, purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, purpose)) }
