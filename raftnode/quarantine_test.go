package raftnode_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamraft/streamraft/raftnode"
)

// imageLoad writes to an image cluster and counts.
type imageLoad struct {
	t       *testing.T
	c       *cluster
	machine func(*member) *filed
	total   int
}

func newImageLoad(t *testing.T, adjust ...func(*filed)) *imageLoad {
	t.Helper()
	c, machine := imageCluster(t, &atomic.Bool{}, adjust...)
	c.openAll()
	return &imageLoad{t: t, c: c, machine: machine}
}

func (l *imageLoad) put(n int) {
	l.t.Helper()
	for range n {
		l.c.propose(raftnode.FirstDataGroup, string(make([]byte, 1000)))
		l.total++
	}
}

// cutPast writes until no log reaches a member that has an index.
func (l *imageLoad) cutPast(away *member, has uint64) {
	l.t.Helper()
	eventually(l.t, "no log reaches the member any more", func() bool {
		l.put(10)
		for _, m := range l.c.members {
			if m != away && m.node != nil && m.group(l.t, raftnode.FirstDataGroup).Status().FirstIndex <= has+1 {
				return false
			}
		}
		return true
	})
}

// level waits until all have everything, and compares.
func (l *imageLoad) level() {
	l.t.Helper()
	_, want, _ := l.machine(l.c.leader(raftnode.FirstDataGroup)).state()
	for _, m := range l.c.members {
		if m.node == nil {
			continue
		}
		eventually(l.t, m.name+" has everything", func() bool { _, _, n := l.machine(m).state(); return n == l.total })
		if _, got, _ := l.machine(m).state(); got != want {
			l.t.Errorf("%s has checksum %x, want %x", m.name, got, want)
		}
		eventually(l.t, m.name+" serves the state machine that is at work", func() bool {
			f, ok := m.group(l.t, raftnode.FirstDataGroup).StateMachine().(*filed)
			return ok && f == l.machine(m)
		})
	}
}

func (l *imageLoad) group(m *member) *raftnode.Group {
	return m.group(l.t, raftnode.FirstDataGroup)
}

// TestFailedInstallReopens: an installation fails, before the switch of the state
// or after it. The replica is opened anew in place and gets there without a
// restart; what it told to be applied never goes back.
func TestFailedInstallReopens(t *testing.T) {
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprint("before=", before), func(t *testing.T) {
			refusals := &atomic.Int32{}
			l := newImageLoad(t, func(f *filed) { f.refusals, f.refuseBefore = refusals, before })
			l.put(20)
			away := l.c.other(l.c.leader(raftnode.FirstDataGroup))
			eventually(t, "the member is level", func() bool { _, _, n := l.machine(away).state(); return n == l.total })
			has := l.group(away).Status().LastIndex
			l.c.stop(away)
			l.cutPast(away, has)
			refusals.Store(1)
			l.c.openAll()
			l.put(20)
			l.level()
			if refusals.Load() >= 0 && before {
				t.Errorf("no Install was refused and repeated")
			}
			if s := l.group(away).Status(); s.Failure != "" || s.Quarantined != "" {
				t.Errorf("status after it: %+v", s)
			}
			l.c.stop(away)
			l.c.openAll()
			l.put(10)
			l.level()
		})
	}
}

// TestQuarantine: the state of a follower turns out to be unsound. It goes on
// voting and acknowledging, serves nothing, never leads, cuts no log, and is
// level again once it got an image, without a restart.
func TestQuarantine(t *testing.T) {
	l := newImageLoad(t)
	l.put(20)
	sick := l.c.other(l.c.leader(raftnode.FirstDataGroup))
	l.level()
	l.c.hold.Store(true)
	l.group(sick).Quarantine(errors.New("a bit flipped"))
	eventually(t, "it is told", func() bool { return l.group(sick).Status().Quarantined != "" })
	refused := func() {
		t.Helper()
		for _, level := range []raftnode.ReadLevel{raftnode.Linearizable, raftnode.Stale} {
			if _, err := l.group(sick).Read(t.Context(), raftnode.ReadOptions{Level: level}); !errors.Is(err, raftnode.ErrQuarantined) {
				t.Errorf("read at level %v: %v", level, err)
			}
		}
	}
	refused()

	// Its acknowledgements make the quorum, and its vote makes a leader.
	third := l.c.other(l.c.leader(raftnode.FirstDataGroup), sick)
	l.c.stop(third)
	l.put(5)
	if err := l.c.open(t.Context(), third); err != nil {
		t.Fatal(err)
	}
	first := l.group(sick).Status().FirstIndex // what was being cut before is cut
	eventually(t, "the third is level", func() bool { _, _, n := l.machine(third).state(); return n == l.total })
	l.c.stop(l.c.leader(raftnode.FirstDataGroup))
	l.put(10)
	if leader := l.c.leader(raftnode.FirstDataGroup); leader == sick {
		t.Errorf("the quarantined replica leads")
	}
	refused()
	if s := l.group(sick).Status(); s.FirstIndex != first {
		t.Errorf("it cut its log from %d to %d", first, s.FirstIndex)
	}

	// And so over a restart.
	l.c.stop(sick)
	if err := l.c.open(t.Context(), sick); err != nil {
		t.Fatal(err)
	}
	if s := l.group(sick).Status(); s.Quarantined == "" {
		t.Fatal("a restart forgot the quarantine")
	}
	refused()
	l.put(10)

	l.c.hold.Store(false)
	eventually(t, "it got an image", func() bool { return l.group(sick).Status().Quarantined == "" })
	l.c.openAll()
	l.put(20)
	l.level()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := l.group(sick).Read(ctx, raftnode.ReadOptions{}); err != nil {
		t.Errorf("read after it: %v", err)
	}
	l.c.stop(sick)
	l.c.openAll()
	l.put(10)
	l.level()
	if s := l.group(sick).Status(); s.Quarantined != "" {
		t.Errorf("after a restart: %+v", s)
	}
}

// TestQuarantinedLeader: a leader whose state is unsound lets another one lead.
func TestQuarantinedLeader(t *testing.T) {
	l := newImageLoad(t)
	l.put(20)
	l.c.hold.Store(true)
	sick := l.c.leader(raftnode.FirstDataGroup)
	l.group(sick).Quarantine(errors.New("a bit flipped"))
	eventually(t, "another one leads", func() bool {
		for _, m := range l.c.members {
			if m != sick && l.group(m).Status().Role == raftnode.RoleLeader {
				return true
			}
		}
		return false
	})
	eventually(t, "it is no leader", func() bool { return l.group(sick).Status().Role == raftnode.RoleFollower })
	l.put(20)
	l.c.hold.Store(false)
	eventually(t, "it got an image", func() bool { return l.group(sick).Status().Quarantined == "" })
	l.put(5)
	l.level()
}

// TestUnsoundState: what a start finds in the place of the state is damaged, or
// older than the log begins, or ends where the logs of the others begin long
// after. The replica is quarantined and gets another one.
func TestUnsoundState(t *testing.T) {
	old := map[string][]byte{}
	for name, test := range map[string]struct {
		spoil func(t *testing.T, path string)
		away  bool // and the others' logs are cut meanwhile
	}{
		"damaged": {func(t *testing.T, path string) { write(t, path, []byte("{")) }, false},
		"behind":  {func(t *testing.T, path string) { write(t, path, old[path]) }, false},
		"damaged and behind the logs of the others": {func(t *testing.T, path string) { write(t, path, []byte("{")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newImageLoad(t)
			l.put(5)
			sick := l.c.other(l.c.leader(raftnode.FirstDataGroup))
			path := filepath.Join(sick.dir, "groups", fmt.Sprint(raftnode.FirstDataGroup), "state", "state.json")
			l.level()
			if err := l.machine(sick).Flush(); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			old[path] = data
			has := l.group(sick).Status().LastIndex
			eventually(t, "it cut its log", func() bool { l.put(10); return l.group(sick).Status().FirstIndex > has+1 })
			last := l.group(sick).Status().LastIndex
			l.c.stop(sick)
			if test.away {
				l.cutPast(sick, last+10)
			}
			test.spoil(t, path)
			if err := l.c.open(t.Context(), sick); err != nil {
				t.Fatal(err)
			}
			l.put(5)
			eventually(t, "it got an image", func() bool { return l.group(sick).Status().Quarantined == "" })
			l.put(5)
			l.level()
			if n := sick.node.Metrics().Groups[1].Installs; n != 1 {
				t.Errorf("%d images were installed, want 1", n)
			}
		})
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestDigests: a replica whose digest is not that of the majority is quarantined
// and healed; where there is no majority it is only told.
func TestDigests(t *testing.T) {
	l := newImageLoad(t)
	l.put(20)
	l.level()
	sick := l.c.other(l.c.leader(raftnode.FirstDataGroup))
	alarms := func() (n uint64) {
		for _, m := range l.c.members {
			n += m.node.Metrics().Groups[1].DigestAlarms
		}
		return n
	}
	// Reports may be lost, as to a leader that changes, so each round has another
	// index until one is judged.
	index := uint64(100)
	eventually(t, "no majority is told", func() bool {
		index++
		for i, m := range l.c.members {
			(*l.machine(m).report.Load())(index, []byte{byte(i)})
		}
		return alarms() > 0
	})
	for _, m := range l.c.members {
		if s := l.group(m).Status(); s.Quarantined != "" {
			t.Errorf("%s is quarantined without a majority: %s", m.name, s.Quarantined)
		}
	}
	l.c.hold.Store(true)
	eventually(t, "the minority is quarantined", func() bool {
		index++
		for _, m := range l.c.members {
			digest := []byte{1}
			if m == sick {
				digest = []byte{2}
			}
			(*l.machine(m).report.Load())(index, digest)
		}
		return l.group(sick).Status().Quarantined != ""
	})
	for _, m := range l.c.members {
		if s := l.group(m).Status(); (s.Quarantined != "") != (m == sick) {
			t.Errorf("%s: quarantined %q", m.name, s.Quarantined)
		}
	}
	if n := sick.node.Metrics().Groups[1].DigestMismatches; n == 0 {
		t.Error("no mismatch was counted")
	}
	l.c.hold.Store(false)
	eventually(t, "it got an image", func() bool { return l.group(sick).Status().Quarantined == "" })
	l.put(5)
	l.level()
}

// TestDigestsWithoutVoter: two digests of three differ and the third voter is away.
// That is told after a while, once, and nobody is quarantined.
func TestDigestsWithoutVoter(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		leader := v.leader()
		alarms := func() (n uint64) {
			for _, g := range v.nodes[leader].Metrics().Groups {
				n += g.DigestAlarms
			}
			return n
		}
		report := func(index uint64, digests map[string]byte) {
			for name, digest := range digests {
				(*v.machines[name].report.Load())(index, []byte{digest})
			}
		}
		pass := func(d time.Duration) { <-time.NewTimer(d).C } // virtual time
		names := []string{leader}
		for name := range v.nodes {
			if name != leader {
				names = append(names, name)
			}
		}
		v.net.Isolate(names[2])
		if err := <-v.submit(leader, "on two"); err != nil { // who acknowledged it knows the leader
			t.Fatal(err)
		}
		report(100, map[string]byte{names[0]: 1, names[1]: 2})
		report(101, map[string]byte{names[0]: 1, names[1]: 1})
		pass(50 * time.Second)
		if n := alarms(); n != 0 {
			t.Fatalf("%d alarms while the third voter may still report", n)
		}
		pass(5 * time.Minute)
		if n := alarms(); n != 1 {
			t.Errorf("%d alarms, want 1", n)
		}
		v.net.HealAll()
		for name := range v.nodes {
			if s := v.group(name).Status(); s.Quarantined != "" || s.Failure != "" {
				t.Errorf("%s: %+v", name, s)
			}
		}
	})
}
