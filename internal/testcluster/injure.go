package testcluster

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/streamraft/streamraft/internal/faultnet"
	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
)

// injurer carries out a plan.
type injurer struct {
	c         *cluster
	heals     []heal
	beside    sync.WaitGroup // what takes time and must not hold up the plan
	lossyTill time.Duration
}

// heal ends a fault.
type heal struct {
	at time.Duration
	do func()
}

// injure carries out all steps of the plan, each healed when its time is over.
// What is not healed by then is healed by recover.
func (c *cluster) injure(ctx context.Context) {
	in := &injurer{c: c}
	defer in.beside.Wait()
	begin := time.Now()
	steps := c.plan.steps
	for len(steps) > 0 || len(in.heals) > 0 {
		slices.SortStableFunc(in.heals, func(a, b heal) int { return cmp.Compare(a.at, b.at) })
		healNext := len(in.heals) > 0 && (len(steps) == 0 || in.heals[0].at <= steps[0].at)
		next := c.plan.FaultsEnd
		if healNext {
			next = in.heals[0].at
		} else if len(steps) > 0 {
			next = steps[0].at
		}
		if next >= c.plan.FaultsEnd || !pause(ctx, max(0, next-time.Since(begin))) {
			pause(ctx, max(0, c.plan.FaultsEnd-time.Since(begin)))
			return
		}
		for _, r := range c.up() {
			r.look()
		}
		if healNext {
			in.heals[0].do()
			in.heals = in.heals[1:]
			continue
		}
		c.trace.add("fault: %v", steps[0])
		c.checker.count(func(t *Totals) { t.Faults++ })
		in.carryOut(ctx, steps[0])
		steps = steps[1:]
	}
}

// later heals at the end of a step.
func (in *injurer) later(s step, do func()) {
	in.heals = append(in.heals, heal{s.at + s.lasts, do})
}

// choose picks a node that is up, nil if none is.
func (in *injurer) choose(s step) *member {
	leader := in.c.leader(raftnode.FirstDataGroup)
	if s.target == targetLeader && leader != nil {
		return leader
	}
	var list []*member
	for _, r := range in.c.up() {
		if s.target != targetFollower || r.member != leader {
			list = append(list, r.member)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[s.choice%uint64(len(list))]
}

// other picks another node than m.
func (in *injurer) other(s step, m *member) *member {
	i := slices.Index(in.c.members, m)
	return in.c.members[(i+1+int(s.choice>>8%uint64(len(in.c.members)-1)))%len(in.c.members)]
}

func (in *injurer) carryOut(ctx context.Context, s step) {
	c, m := in.c, in.choose(s)
	if m == nil {
		return // all are down until their restart
	}
	switch s.kind {
	case faultCut, faultCutOneWay, faultIsolate, faultSlow, faultLossy:
		in.injureNetwork(s, m)
	case faultCrash:
		in.crash(m, s.crash)
		in.later(s, func() { c.restart(m) })
	case faultCrashAll, faultKillAll:
		kind := s.crash
		if s.kind == faultKillAll {
			kind = crashKill
		}
		in.crashAll(s, kind)
	case faultStaleLeader:
		in.staleLeader(ctx, s)
	case faultBehind:
		in.behind(s, m)
	case faultLoseDisk:
		in.loseDisk(m)
	case faultTrapVote:
		// Whoever votes for the next leader crashes.
		for _, r := range c.up() {
			in.trap(s, r, trapVote)
		}
		c.network.Isolate(m.name)
		c.checker.count(func(t *Totals) { t.Cuts++ })
		s.lasts += time.Second
		in.later(s, func() { c.network.Rejoin(m.name) })
	case faultTrapAcknowledge:
		in.trap(s, m.current(), trapAcknowledge)
	case faultTrapAnswer:
		in.trap(s, m.current(), trapAnswer)
	case faultTrapOperation:
		in.trap(s, m.current(), trapOperation)
	case faultTrapSync:
		if s.crash != crashHalf || s.choice>>32%2 == 0 {
			s.crash = crashTorn // the others leave no half of a batch
		}
		if s.choice%3 == 0 {
			in.trap(s, m.current(), trapSync)
			break
		}
		// A node that has to catch up writes large batches.
		c.network.Isolate(m.name)
		c.checker.count(func(t *Totals) { t.Cuts++ })
		in.later(s, func() {
			if r := m.current(); r != nil {
				in.trap(s, r, trapSync)
			}
			c.network.Rejoin(m.name)
		})
	case faultSyncError:
		r := m.current()
		r.failSync(1 + int(s.choice%20))
		in.later(s, func() {
			if r.failure() != nil {
				in.crash(m, s.crash)
				c.restart(m)
			} else {
				m.disk.failSyncAt(0, nil)
			}
		})
	case faultDiskFull:
		d := m.disk
		d.setFull(true, s.choice%2 == 0 || c.plan.ReserveBytes < 0)
		in.later(s, func() {
			d.setFull(false, false)
			c.trace.add("%s has space again", m.name)
		})
	case faultSkew:
		m.clock.skew(s.duration, s.rate)
		c.checker.count(func(t *Totals) { t.ClockSkews++ })
	case faultTransfer:
		if leader := c.leader(raftnode.FirstDataGroup); leader != nil {
			in.transfer(ctx, leader, in.other(s, leader))
		}
	case faultFlush:
		in.beside.Go(func() {
			if r := m.current(); r != nil {
				in.flush(r)
			}
		})
	}
}

// injureNetwork carries out the faults of links.
func (in *injurer) injureNetwork(s step, m *member) {
	c, n := in.c, in.c.network
	peer := in.other(s, m)
	if s.kind != faultSlow && s.kind != faultLossy {
		c.checker.count(func(t *Totals) { t.Cuts++ })
	}
	switch s.kind {
	case faultCut:
		n.Cut(m.name, peer.name)
		in.later(s, func() { n.Heal(m.name, peer.name) })
	case faultCutOneWay:
		from, to := m.name, peer.name
		if s.choice%2 == 0 {
			from, to = to, from
		}
		n.CutOneWay(from, to)
		in.later(s, func() { n.Heal(m.name, peer.name) })
	case faultIsolate:
		n.Isolate(m.name)
		in.later(s, func() { n.Rejoin(m.name) })
	case faultSlow:
		n.SlowLink(m.name, peer.name, time.Duration(20+s.choice%300)*time.Millisecond)
		in.later(s, func() { n.SlowLink(m.name, peer.name, 0) })
	case faultLossy:
		r := rand.New(rand.NewPCG(s.choice, 1))
		in.setOdds(faultnet.Probabilities{Drop: 0.2 * r.Float64(), Duplicate: 0.3 * r.Float64(), Reorder: 0.3 * r.Float64()})
		in.lossyTill = max(in.lossyTill, s.at+s.lasts)
		in.later(s, func() {
			if s.at+s.lasts >= in.lossyTill {
				in.setOdds(faultnet.Probabilities{})
			}
		})
	}
}

func (in *injurer) setOdds(p faultnet.Probabilities) {
	if err := in.c.network.SetProbabilities(p); err != nil {
		in.c.checker.violation("%v", err)
	}
}

func (in *injurer) crash(m *member, kind crashKind) {
	if m.current() == nil {
		return
	}
	in.c.checker.count(func(t *Totals) { t.countCrash(kind) })
	m.crash(kind)
}

// crashAll crashes every node that is up and has them start again, one after
// the other.
func (in *injurer) crashAll(s step, kind crashKind) {
	in.c.checker.count(func(t *Totals) { t.ClusterCrashes++ })
	for i, m := range in.c.members {
		in.crash(m, kind)
		// Half as long as others: nothing happens while all are down.
		again := s
		again.lasts = s.lasts/2 + time.Duration((s.choice>>(8*i))%400)*time.Millisecond
		in.later(again, func() { in.c.restart(m) })
	}
}

// trap sets a trap for the time of the step, and starts the node again that it
// crashed.
func (in *injurer) trap(s step, r *run, kind trapKind) {
	count := 1
	switch kind {
	case trapVote:
		s.lasts += time.Second
	case trapSync:
		count += int(s.choice >> 16 % 2)
		s.at, s.lasts = s.at+s.lasts, s.lasts/2
	case trapOperation:
		count += int(s.choice >> 16 % 200)
	case trapInstall, trapInstalled: // the first
	default:
		count += int(s.choice >> 16 % 20)
	}
	r.arm(&trap{
		kind: kind, count: count, crash: s.crash, random: newRandom(s.choice, uint64(r.number)),
		many: kind == trapSync && s.choice>>24%4 > 0,
	})
	in.later(s, func() {
		if r.disarm() && r.member.last() == r {
			r.member.crash(s.crash)
			in.c.restart(r.member)
		}
	})
}

// behind keeps a node away for longer than the others keep the log for it, so
// that it gets an image when it is back, and injures that.
func (in *injurer) behind(s step, m *member) {
	c := in.c
	away := s.choice>>32%3 == 0
	if away {
		c.network.Isolate(m.name)
		c.checker.count(func(t *Totals) { t.Cuts++ })
	} else {
		in.crash(m, s.crash)
	}
	in.later(s, func() {
		if away {
			c.network.Rejoin(m.name)
		} else {
			c.restart(m)
		}
		s.at, s.lasts = s.at+s.lasts, 2*time.Second
		kind := choose(newRandom(s.choice, 7), []weighted[trapKind]{
			{trapImageSent, 3}, {trapImageReceived, 3}, {trapInstall, 2}, {trapInstalled, 3}, {trapOperation, 1}, {"", 3},
		})
		for _, r := range c.up() {
			if kind != "" && (r.member == m) != (kind == trapImageSent) {
				in.trap(s, r, kind)
			}
		}
	})
}

// staleLeader cuts the leader off and has it take writes that will be
// overwritten: by then the others have elected a leader whose log is shorter.
func (in *injurer) staleLeader(ctx context.Context, s step) {
	c := in.c
	m := c.leader(raftnode.FirstDataGroup)
	if m == nil {
		return
	}
	c.network.Isolate(m.name)
	c.checker.count(func(t *Totals) { t.Cuts++ })
	r := m.current()
	in.beside.Go(func() {
		for i := range 30 {
			c.submit(r, kv.EncodePut(nil, fmt.Appendf(nil, "stale/%d", i%4), fmt.Appendf(nil, "%s %x %d", r, s.choice, i), nil))
			if !pause(ctx, 10*time.Millisecond) {
				return
			}
		}
	})
	s.lasts = 800*time.Millisecond + s.lasts/2
	in.later(s, func() {
		if s.choice%2 == 0 {
			in.crashAll(s, s.crash)
		}
		c.network.Rejoin(m.name)
	})
}

// transfer moves the leadership of both groups, where m has it, to another node.
func (in *injurer) transfer(ctx context.Context, m, to *member) {
	r := m.current()
	for _, group := range groups() {
		g, err := r.node.Group(group)
		if err != nil {
			in.c.checker.violation("%v", err)
			return
		}
		in.beside.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			err := g.TransferLeader(ctx, to.name)
			in.c.trace.add("%s transfer of group %d to %s: %v", r, group, to.name, err)
			if err == nil {
				in.c.checker.count(func(t *Totals) { t.Transfers++ })
			}
		})
	}
}

// flush makes the state machines of a node durable.
func (in *injurer) flush(r *run) {
	for _, group := range groups() {
		// It fails where the node crashes meanwhile.
		if err := r.machine(group).Flush(); err != nil && !r.isCrashed() && r.failure() == nil {
			in.c.checker.violation("flush group %d of %s: %v", group, r, err)
		}
	}
}

// recover heals everything.
func (c *cluster) recover() {
	c.trace.add("everything is healed")
	c.network.HealAll()
	if err := c.network.SetProbabilities(faultnet.Probabilities{}); err != nil {
		c.checker.violation("%v", err)
	}
	for _, m := range c.members {
		m.disk.failSyncAt(0, nil)
		m.disk.setFull(false, false)
		m.clock.skew(0, 1)
		if r := m.last(); r != nil && (r.disarm() || r.failure() != nil) {
			m.crash(crashNone)
		}
		c.restart(m)
	}
	c.awaitReplacement()
}
