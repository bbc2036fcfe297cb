package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// SlotsOptions configures Slots.
type SlotsOptions struct {
	// Slots is how many transfers run at once. Default 2: one alone leaves link or
	// disk idle while it waits for the other, more share without gain.
	Slots int

	// SlowRate and SlowAfter are when a transfer is given up because others wait:
	// after less than SlowRate bytes a second over SlowAfter. Defaults 64 KiB and
	// one minute: at that rate a GiB takes five hours.
	SlowRate  int64
	SlowAfter time.Duration
}

// EnsureDefaults puts the defaults in place of zero values.
func (o *SlotsOptions) EnsureDefaults() {
	setDefault(&o.Slots, 2)
	setDefault(&o.SlowRate, 64<<10)
	setDefault(&o.SlowAfter, time.Minute)
}

// Validate tells the first field that is out of range.
func (o *SlotsOptions) Validate() error {
	if o.Slots < 1 || o.SlowRate < 1 || o.SlowAfter <= 0 {
		return fmt.Errorf("snapshot: slots: Slots %d, SlowRate %d and SlowAfter %v must be above 0", o.Slots, o.SlowRate, o.SlowAfter)
	}
	return nil
}

// Claim orders those who wait for a slot: by class, a missing voter first; then
// fewer bytes left first; then the longest waiting.
type Claim struct {
	// Class of the transfer.
	Class snapshotv1.Class
	// BytesLeft to transfer; 0: unknown, which goes last.
	BytesLeft uint64
}

func (c Claim) less(other Claim) int {
	class := func(c Claim) int {
		if c.Class == snapshotv1.Class_CLASS_MISSING_VOTER {
			return 0
		}
		return 1
	}
	// 0 - 1 is the largest number.
	return cmp.Or(cmp.Compare(class(c), class(other)), cmp.Compare(c.BytesLeft-1, other.BytesLeft-1))
}

// Slots admit transfers: those one node sends, or those it receives. All methods
// may be called from any goroutine. It has no goroutine of its own: those who
// wait look after those who hold.
type Slots struct {
	opts SlotsOptions

	mu      sync.Mutex
	holders map[*Slot]struct{}
	waiting []*waiter // in order of arrival
}

type waiter struct {
	claim   Claim
	granted chan *Slot
}

// Slot is the permission to run one attempt.
type Slot struct {
	slots   *Slots
	evicted chan struct{}

	// Guarded by slots.mu.
	isEvicted bool
	windowAt  time.Time
	window    int64 // bytes since windowAt
}

// NewSlots returns free slots.
func NewSlots(opts SlotsOptions) (*Slots, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return &Slots{opts: opts, holders: make(map[*Slot]struct{})}, nil
}

// Acquire waits for a slot. While it waits it calls position, if not nil, with
// the place in the queue, from 1, at once and each second. The error is ctx's.
func (s *Slots) Acquire(ctx context.Context, claim Claim, position func(int)) (*Slot, error) {
	s.mu.Lock()
	if len(s.waiting) == 0 && len(s.holders) < s.opts.Slots {
		defer s.mu.Unlock()
		return s.grant(), nil
	}
	w := &waiter{claim: claim, granted: make(chan *Slot, 1)}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()

	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		if at := s.look(w); at > 0 && position != nil {
			position(at)
		}
		select {
		case slot := <-w.granted:
			return slot, nil
		case <-tick.C:
		case <-ctx.Done():
			s.abandon(w)
			return nil, context.Cause(ctx)
		}
	}
}

// Queue returns how many hold slots and how many wait. A new claim would wait
// behind position-1 others; position 0: it would be admitted at once.
func (s *Slots) Queue(claim Claim) (holding, waiting, position int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 && len(s.holders) < s.opts.Slots {
		return len(s.holders), 0, 0
	}
	position = 1
	for _, w := range s.waiting {
		if w.claim.less(claim) <= 0 {
			position++
		}
	}
	return len(s.holders), len(s.waiting), position
}

// look returns a waiter's position, 0 if it was granted, and evicts holders that
// keep others waiting for nothing.
func (s *Slots) look(w *waiter) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for h := range s.holders {
		if age := now.Sub(h.windowAt); age >= s.opts.SlowAfter {
			if slow := float64(h.window) < float64(s.opts.SlowRate)*age.Seconds(); slow && !h.isEvicted {
				h.isEvicted = true
				close(h.evicted)
			}
			h.windowAt, h.window = now, 0
		}
	}
	s.order()
	return slices.Index(s.waiting, w) + 1
}

// order sorts those who wait; the sort is stable, so age decides last.
func (s *Slots) order() {
	slices.SortStableFunc(s.waiting, func(a, b *waiter) int { return a.claim.less(b.claim) })
}

func (s *Slots) grant() *Slot {
	slot := &Slot{slots: s, evicted: make(chan struct{}), windowAt: time.Now()}
	s.holders[slot] = struct{}{}
	return slot
}

func (s *Slots) abandon(w *waiter) {
	s.mu.Lock()
	i := slices.Index(s.waiting, w)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 { // granted meanwhile
		(<-w.granted).Release()
	}
}

// Progress tells that bytes were moved.
func (s *Slot) Progress(bytes int) {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	s.window += int64(bytes)
}

// Excuse tells that the holder is not slow but busy with something else than
// moving bytes, such as capturing or checking.
func (s *Slot) Excuse() {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	s.windowAt, s.window = time.Now(), 0
}

// Pause tells that the holder was held back for this long by its own node, to
// which no other holder would have been faster.
func (s *Slot) Pause(d time.Duration) {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	s.windowAt = s.windowAt.Add(d)
}

// Evicted is closed when the attempt must end so that others can have the slot;
// it ends with ErrGivenUp.
func (s *Slot) Evicted() <-chan struct{} { return s.evicted }

// Release frees the slot for the next in the queue. Again does nothing.
func (s *Slot) Release() {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if _, held := s.slots.holders[s]; !held {
		return
	}
	delete(s.slots.holders, s)
	s.slots.order()
	for len(s.slots.waiting) > 0 && len(s.slots.holders) < s.slots.opts.Slots {
		s.slots.waiting[0].granted <- s.slots.grant()
		s.slots.waiting = s.slots.waiting[1:]
	}
}

// errEvicted is why an attempt ends whose slot others wait for.
func errEvicted(opts SlotsOptions) error {
	return fmt.Errorf("%w: less than %d bytes a second for %v while others waited for the slot", ErrGivenUp, opts.SlowRate, opts.SlowAfter)
}
