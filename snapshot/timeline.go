package snapshot

import (
	"maps"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// Stages returns the stages in the order in which a transfer comes through them.
func Stages() []Stage {
	return []Stage{StageQueue, StageCapture, StageSend, StageVerify, StageInstall, StageCatchUp}
}

// stageOf is the stage that the time of a phase counts for; "" once it is over.
func stageOf(phase snapshotv1.Phase) Stage {
	switch phase {
	case snapshotv1.Phase_PHASE_QUEUED:
		return StageQueue
	case snapshotv1.Phase_PHASE_CAPTURE:
		return StageCapture
	case snapshotv1.Phase_PHASE_SEND:
		return StageSend
	case snapshotv1.Phase_PHASE_VERIFY:
		return StageVerify
	case snapshotv1.Phase_PHASE_READY, snapshotv1.Phase_PHASE_INSTALL:
		return StageInstall
	case snapshotv1.Phase_PHASE_CATCH_UP:
		return StageCatchUp
	}
	return ""
}

// timeline counts the time something is in each stage.
type timeline struct {
	stage Stage
	since time.Time
	spent map[Stage]time.Duration
}

// enter notes that a stage begins; the same again changes nothing.
func (t *timeline) enter(stage Stage, now time.Time) {
	if stage == t.stage {
		return
	}
	t.spent = t.times(now)
	t.stage, t.since = stage, now
}

// times returns the time in each stage until now; the caller owns it.
func (t *timeline) times(now time.Time) map[Stage]time.Duration {
	spent := maps.Clone(t.spent)
	if spent == nil {
		spent = make(map[Stage]time.Duration)
	}
	if t.stage != "" {
		spent[t.stage] += now.Sub(t.since)
	}
	return spent
}

// The rate of the moment is that of the last meterSlots * meterSlot: long enough
// to be read, short enough to show a stall.
const (
	meterSlots = 10
	meterSlot  = 500 * time.Millisecond
)

// meter measures bytes per second over the last few seconds.
type meter struct {
	slots [meterSlots]uint64
	last  int64     // number of the newest slot
	began time.Time // of the first byte
}

// add counts bytes.
func (m *meter) add(now time.Time, n uint64) {
	if m.began.IsZero() {
		m.began = now
	}
	m.advance(now)
	m.slots[m.last%meterSlots] += n
}

// advance empties the slots of the time that has passed.
func (m *meter) advance(now time.Time) {
	slot := now.Sub(m.began).Nanoseconds() / meterSlot.Nanoseconds()
	for ; m.last < slot; m.last++ {
		if slot-m.last > meterSlots {
			m.last = slot - meterSlots
		}
		m.slots[(m.last+1)%meterSlots] = 0
	}
}

// rate returns the bytes per second of the last few seconds.
func (m *meter) rate(now time.Time) uint64 {
	if m.began.IsZero() {
		return 0
	}
	m.advance(now)
	var sum uint64
	for _, n := range m.slots {
		sum += n
	}
	// The newest slot is not over yet; a time close to 0 would show anything.
	window := min(now.Sub(m.began), (meterSlots-1)*meterSlot+now.Sub(m.began)%meterSlot)
	return perSecond(sum, max(window, meterSlot/5))
}

// perSecond returns a rate; 0 where no time has passed.
func perSecond(n uint64, d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return uint64(float64(n) / d.Seconds())
}
