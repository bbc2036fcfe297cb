package snapshot

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// Foreground tells how ordinary work fares while images are sent. Its methods
// may be called from any goroutine, several times a second, and must not block.
type Foreground interface {
	// Base is over the last 5 minutes without a transfer.
	Base() Latencies
	// Recent is over about the last d, at most a second.
	Recent(d time.Duration) Latencies
	// WriteStalled tells that a store or a disk holds writes up now.
	WriteStalled() bool
	// L0Sublevels is the worst count of the node's stores.
	L0Sublevels() int
}

// Latencies are 99th percentiles over some time; 0 where nothing happened in it.
// Each is compared with its own kind: a leader's commits include a sync and a
// round trip, and a node that is no leader knows syncs only.
type Latencies struct {
	// Commit is from taking a command to having applied it, on leaders.
	Commit time.Duration
	// LogSync is a batch of the raft log.
	LogSync time.Duration
}

// Pacer slows sources down for the sake of foreground work. One Pacer serves all
// transfers a node sends. Its methods may be called from any goroutine.
type Pacer interface {
	// Begin joins a transfer of the given class; End of the result is called
	// when it ends.
	Begin(class snapshotv1.Class) Pace
}

// Pace is a transfer's share of a Pacer.
type Pace interface {
	// Wait returns when bytes may go on the wire, or with ctx's error.
	Wait(ctx context.Context, bytes int) error
	// End leaves the pacer. It is called once.
	End()
}

// PacingMode chooses how a RatePacer finds its rate.
type PacingMode int

// The modes.
const (
	// PacingLatency follows the foreground's latency. The default.
	PacingLatency PacingMode = iota
	// PacingOff lets transfers run at full speed, or at PacingOptions.Rate.
	PacingOff
)

// PacingOptions configures a RatePacer.
type PacingOptions struct {
	// Mode; default PacingLatency, which needs Foreground.
	Mode PacingMode
	// Rate is an upper bound in wire bytes a second over all transfers, in either
	// mode. Default 0: none.
	Rate int64
	// Foreground is asked in mode PacingLatency.
	Foreground Foreground

	// Start is the rate a first transfer begins with, Step what is added each
	// Interval while the foreground is well, Floor the lowest rate; bytes a second.
	// Defaults 64 MiB, 8 MiB and 1 MiB.
	Start, Step, Floor int64
	// Interval between changes of the rate. Default 250 ms: long enough for a
	// change to show in P99.
	Interval time.Duration
	// Factor and Margin: the foreground suffers when one of its latencies is above
	// its base times Factor, and above the base by more than Margin. Defaults 1.5,
	// 2 ms.
	Factor float64
	Margin time.Duration
	// MaxSublevels is the count of L0 sublevels above which stores lag behind.
	// Default 8.
	MaxSublevels int
}

// EnsureDefaults puts the defaults in place of zero values.
func (o *PacingOptions) EnsureDefaults() {
	setDefault(&o.Start, 64<<20)
	setDefault(&o.Step, 8<<20)
	setDefault(&o.Floor, 1<<20)
	setDefault(&o.Interval, 250*time.Millisecond)
	setDefault(&o.Factor, 1.5)
	setDefault(&o.Margin, 2*time.Millisecond)
	setDefault(&o.MaxSublevels, 8)
}

// Validate tells the first field that is out of range.
func (o *PacingOptions) Validate() error {
	switch {
	case o.Mode == PacingLatency && o.Foreground == nil:
		return fmt.Errorf("snapshot: pacing by latency needs a Foreground; set one or Mode PacingOff")
	case o.Mode != PacingLatency && o.Mode != PacingOff:
		return fmt.Errorf("snapshot: pacing: unknown mode %d", o.Mode)
	case o.Rate < 0 || o.Start <= 0 || o.Step <= 0 || o.Floor <= 0 || o.Interval < refill || !(o.Factor >= 1) || o.Margin < 0 || o.MaxSublevels < 1:
		return fmt.Errorf("snapshot: pacing: Rate must not be negative, Start, Step, Floor and MaxSublevels above 0, Interval at least %v, Factor at least 1", refill)
	}
	return nil
}

// refill is how often tokens come: often enough not to send in bursts, behind
// which clients wait (at 64 MiB/s, 50 ms are three chunks at once), seldom enough
// not to cost.
const refill = 10 * time.Millisecond

// RatePacer is the Pacer of the specification: a token rate, halved while
// foreground work suffers and raised by a step while it does not. It has no
// goroutine: those who wait move the clock.
type RatePacer struct {
	opts PacingOptions

	mu      sync.Mutex
	rate    float64 // bytes a second; +Inf: no bound
	tokens  float64
	ticked  time.Time // when tokens were last added
	changed time.Time // when the rate was last looked at
	sent    float64   // since changed
	peak    float64   // most bytes a second seen since the first transfer began
	base    Latencies
	active  map[*ratePace]struct{}
	count   atomic.Int32 // of active, for those who must not wait
}

type ratePace struct {
	pacer *RatePacer
	class snapshotv1.Class
}

// NewRatePacer returns a pacer for the sends of a node.
func NewRatePacer(opts PacingOptions) (*RatePacer, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return &RatePacer{opts: opts, rate: math.Inf(1), active: make(map[*ratePace]struct{})}, nil
}

// Begin implements Pacer. The first transfer after a pause freezes the base.
func (p *RatePacer) Begin(class snapshotv1.Class) Pace {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.active) == 0 {
		now := time.Now()
		p.ticked, p.changed, p.tokens, p.sent, p.peak = now, now, 0, 0, 0
		p.rate = math.Inf(1)
		if p.opts.Mode == PacingLatency {
			p.base = p.opts.Foreground.Base()
			p.rate = float64(p.opts.Start)
		}
		p.bound()
	}
	pace := &ratePace{pacer: p, class: class}
	p.active[pace] = struct{}{}
	p.count.Store(int32(len(p.active)))
	return pace
}

// Rate returns the rate of now in bytes a second: 0 while nothing is sent, +Inf
// if nothing bounds it.
func (p *RatePacer) Rate() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.active) == 0 {
		return 0
	}
	return p.rate
}

// Active returns how many transfers are being sent.
func (p *RatePacer) Active() int { return int(p.count.Load()) }

// Wait implements Pace.
func (r *ratePace) Wait(ctx context.Context, bytes int) error {
	p := r.pacer
	for {
		pause, ok := p.take(bytes)
		if ok {
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// End implements Pace.
func (r *ratePace) End() {
	r.pacer.mu.Lock()
	defer r.pacer.mu.Unlock()
	delete(r.pacer.active, r)
	r.pacer.count.Store(int32(len(r.pacer.active)))
}

// take takes tokens, or tells when there may be some. A chunk may be larger than
// what comes in one refill, so it goes when there are any and leaves a debt.
func (p *RatePacer) take(bytes int) (pause time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.adjust(now)
	if ticks := now.Sub(p.ticked) / refill; ticks > 0 {
		p.ticked = p.ticked.Add(ticks * refill)
		if !math.IsInf(p.rate, 1) {
			perTick := p.rate * refill.Seconds()
			// What was not used in a tick is lost, else a pause would buy a burst.
			p.tokens = min(p.tokens+perTick*float64(ticks), perTick)
		}
	}
	if !math.IsInf(p.rate, 1) {
		if p.tokens <= 0 {
			return p.ticked.Add(refill).Sub(now), false
		}
		p.tokens -= float64(bytes)
	}
	p.sent += float64(bytes)
	return 0, true
}

// adjust looks at the foreground once an interval.
func (p *RatePacer) adjust(now time.Time) {
	elapsed := now.Sub(p.changed)
	if elapsed < p.opts.Interval {
		return
	}
	p.peak = max(p.peak, p.sent/elapsed.Seconds())
	p.changed, p.sent = now, 0
	if p.opts.Mode == PacingOff {
		return
	}
	switch p.state() {
	case suffers:
		p.rate = max(p.rate/2, p.floor())
	case isWell:
		p.rate += float64(p.opts.Step)
	}
	p.bound()
}

// state of the foreground.
type state int

const (
	isWell   state = iota
	recovers       // it suffered within the last second, and no longer
	suffers
)

// state judges the foreground. Its last second tells whether it suffers, and its
// last interval whether it still does: else one moment would be judged by every
// interval that still sees it, and cost sixteen times the rate instead of twice.
func (p *RatePacer) state() state {
	f := p.opts.Foreground
	if f.WriteStalled() || f.L0Sublevels() > p.opts.MaxSublevels {
		return suffers
	}
	switch {
	case !p.slow(f.Recent(time.Second)):
		return isWell
	case !p.slow(f.Recent(p.opts.Interval)):
		return recovers
	}
	return suffers
}

func (p *RatePacer) slow(l Latencies) bool {
	return p.above(l.Commit, p.base.Commit) || p.above(l.LogSync, p.base.LogSync)
}

// above compares a latency with its base. Without one there was no foreground
// work to compare with, and nobody to protect.
func (p *RatePacer) above(recent, base time.Duration) bool {
	return base > 0 && recent > time.Duration(float64(base)*p.opts.Factor) && recent > base+p.opts.Margin
}

// floor is the lowest rate. A voter that the quorum has no margin without is
// worth some latency: half of what the transfer has shown it can do.
func (p *RatePacer) floor() float64 {
	floor := float64(p.opts.Floor)
	for pace := range p.active {
		if pace.class == snapshotv1.Class_CLASS_MISSING_VOTER {
			return max(floor, p.peak/2)
		}
	}
	return floor
}

func (p *RatePacer) bound() {
	if p.opts.Rate > 0 {
		p.rate = min(p.rate, float64(p.opts.Rate))
	}
}

// noPacer does not slow anything down.
type noPacer struct{}

func (noPacer) Begin(snapshotv1.Class) Pace     { return noPacer{} }
func (noPacer) Wait(context.Context, int) error { return nil }
func (noPacer) End()                            {}
