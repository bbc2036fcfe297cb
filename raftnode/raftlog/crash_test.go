package raftlog

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// history is the states the log went through, one per Append (each is one batch
// here), and how far they are promised.
type history struct {
	mu     sync.Mutex
	states []string // states[i]: after i Appends
	synced int      // states up to here survive a crash
	begun  int      // states up to here may
}

func (h *history) window() (synced, begun int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.synced, h.begun
}

// crashClone is the disk as a crash at one moment left it.
type crashClone struct {
	fs            *vfs.MemFS
	synced, begun int
	op            string
}

// recorder clones the file system before every operation.
type recorder struct {
	mem     *vfs.MemFS
	history *history
	percent int

	mu     sync.Mutex
	rng    *rand.Rand
	clones []crashClone
	off    bool
}

func (r *recorder) hook(op, name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.off {
		return nil
	}
	// The promise is read before the clone is taken and what may be there
	// after, so that an Append beside it is judged fairly.
	synced, _ := r.history.window()
	fs := r.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.percent, RNG: r.rng})
	_, begun := r.history.window()
	r.clones = append(r.clones, crashClone{fs, synced, begun, op + " " + name})
	return nil
}

// run appends to l and keeps the history.
func (h *history) run(t *testing.T, l *Log, s *script, appends int) {
	t.Helper()
	for i := range appends {
		us := s.next()
		sync := s.rng.IntN(3) > 0
		h.mu.Lock()
		h.states = append(h.states, s.model.String())
		h.begun = len(h.states) - 1
		h.mu.Unlock()
		if err := l.Append(us, sync); err != nil {
			t.Fatalf("append %d: %v", i, err)
		}
		if s.rng.IntN(20) == 0 {
			sync = true
			if err := l.ProveEnd(); err != nil {
				t.Fatalf("prove the end: %v", err)
			}
		}
		if sync {
			h.mu.Lock()
			h.synced = h.begun
			h.mu.Unlock()
		}
	}
}

// check opens the clone and tells which of the possible states it holds.
func (c *crashClone) check(t *testing.T, h *history) (l *Log, found int) {
	t.Helper()
	l, err := Open(testOptions(c.fs))
	if err != nil {
		t.Fatalf("crash before %s: open: %v", c.op, err)
	}
	got := state(t, l).String()
	checkAccounts(t, l)
	for i := c.begun; i >= c.synced; i-- {
		if h.states[i] == got {
			return l, i
		}
	}
	t.Fatalf("crash before %s: the log holds none of the states %d to %d:\n%s\nstate %d:\n%s", c.op, c.synced, c.begun, got, c.synced, h.states[c.synced])
	return nil, 0
}

// TestCrash crashes a run before every file-system operation and opens what is
// left: everything synced is there, and what is there beyond it is whole batches
// in order. Some of the survivors go on, crash again and are opened again, with
// crashes during Open included.
func TestCrash(t *testing.T) {
	for _, percent := range []int{0, 50} {
		t.Run(fmt.Sprintf("unsynced%d", percent), func(t *testing.T) {
			t.Parallel()
			var moved, recycled int64
			crashes, again, lost := 0, 0, 0
			for seed := range uint64(2) {
				rng := rand.New(rand.NewPCG(seed, uint64(percent)))
				mem := vfs.NewCrashableMem()
				h := &history{states: []string{""}}
				r := &recorder{mem: mem, history: h, percent: percent, rng: rng}
				o := testOptions(hookFS{mem, r.hook})
				o.moveBytes = 4000
				l := mustOpen(t, o)
				s := &script{rng: rand.New(rand.NewPCG(seed, 9)), model: model{}, groups: 6, size: 1500, slow: 1}
				h.run(t, l, s, 130)
				r.mu.Lock()
				r.off = true
				r.mu.Unlock()
				m := l.Metrics()
				moved, recycled = moved+m.MovedEntries, recycled+m.Recycled
				mustClose(t, l)

				for i := range r.clones {
					c := &r.clones[i]
					crashes++
					if i%13 != 0 {
						l, found := c.check(t, h)
						lost += c.begun - found
						mustClose(t, l)
						continue
					}
					again += crashAgain(t, c, h, rng, percent)
				}
			}
			t.Logf("%d crashes, %d crashes of survivors, %d unsynced appends lost, %d entries moved, %d segments recycled", crashes, again, lost, moved, recycled)
			if crashes == 0 || again == 0 || lost == 0 || moved == 0 || recycled == 0 {
				t.Error("the run did not reach what it is for")
			}
		})
	}
}

// crashAgain opens the survivor of a crash, lets it go on, and crashes it before
// every operation, from the first one of Open on.
func crashAgain(t *testing.T, c *crashClone, h *history, rng *rand.Rand, percent int) (crashes int) {
	t.Helper()
	// The second run is judged from the state the first crash left. Until Open
	// has returned that is what the first one promised.
	second := &history{states: h.states, synced: c.synced, begun: c.begun}
	r := &recorder{mem: c.fs, history: second, percent: percent, rng: rng}
	l, err := Open(testOptions(hookFS{c.fs, r.hook}))
	if err != nil {
		t.Fatalf("crash before %s: open: %v", c.op, err)
	}
	have := state(t, l)
	third := &history{states: []string{have.String()}}
	r.mu.Lock()
	during := len(r.clones)
	r.history = third
	r.mu.Unlock()
	s := &script{rng: rand.New(rand.NewPCG(uint64(during), 3)), model: have, groups: 6, size: 1500, slow: 1}
	third.run(t, l, s, 12)
	r.mu.Lock()
	r.off = true
	r.mu.Unlock()
	mustClose(t, l)
	for i := range r.clones {
		judge := third
		if i < during {
			judge = second
		}
		l, _ := r.clones[i].check(t, judge)
		mustClose(t, l)
	}
	return len(r.clones)
}

// TestTornTail loses an unsynced batch whose successor survived: both go, what
// was synced stays, and the numbers are not used again.
func TestTornTail(t *testing.T) {
	mem := vfs.NewMem()
	o := testOptions(mem)
	l := mustOpen(t, o)
	m := model{}
	synced := Update{Group: 1, Entries: entries(1, 1, 3, 100), HardState: hard(1, 1, 0)}
	mustAppend(t, l, true, synced)
	m.apply(synced)
	from := l.active().offset
	mustAppend(t, l, false, Update{Group: 1, Entries: entries(1, 4, 3, 100)})
	through := l.active().offset
	mustAppend(t, l, false, Update{Group: 1, Entries: entries(1, 7, 3, 100)})
	next := l.nextBatch
	name := l.active().name
	// Not closed: that would sync.
	defer mustClose(t, l)

	for cut := from; cut < through; cut += 64 {
		clone := cloneFS(t, mem)
		overwrite(t, clone, name, cut, make([]byte, min(64, through-cut)))
		o.FS = clone
		l := mustOpen(t, o)
		checkState(t, l, m)
		if l.nextBatch <= next {
			t.Fatalf("the next batch is %d, %d may have been used", l.nextBatch, next)
		}
		more := Update{Group: 1, Entries: entries(2, 4, 1, 10)}
		mustAppend(t, l, true, more)
		mustClose(t, l)
		l = mustOpen(t, o)
		want := m.clone()
		want.apply(more)
		checkState(t, l, want)
		mustClose(t, l)
	}
}
