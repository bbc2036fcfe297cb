package snapshot

import (
	"testing"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

func TestTimeline(t *testing.T) {
	var line timeline
	at := time.Unix(1_700_000_000, 0)
	for _, step := range []struct {
		stage Stage
		lasts time.Duration
	}{{StageQueue, 2}, {StageSend, 3}, {StageSend, 4}, {StageQueue, 1}, {"", 100}} {
		line.enter(step.stage, at)
		at = at.Add(step.lasts * time.Second)
	}
	got := line.times(at)
	if len(got) != 2 || got[StageQueue] != 3*time.Second || got[StageSend] != 7*time.Second {
		t.Fatalf("got %v", got)
	}
	seen := map[Stage]bool{}
	for phase := range snapshotv1.Phase_name {
		seen[stageOf(snapshotv1.Phase(phase))] = true
	}
	for _, stage := range Stages() {
		if !seen[stage] {
			t.Errorf("no phase counts for %s", stage)
		}
	}
}

func TestMeter(t *testing.T) {
	var m meter
	at := time.Unix(1_700_000_000, 0)
	if m.rate(at) != 0 {
		t.Fatal("a rate before the first byte")
	}
	near := func(want uint64) {
		t.Helper()
		if got := m.rate(at); got < want*8/10 || got > want*12/10 {
			t.Fatalf("%d bytes a second, want about %d", got, want)
		}
	}
	for range 300 { // 30 s at 1000 B/s
		m.add(at, 100)
		at = at.Add(100 * time.Millisecond)
		if since := at.Sub(m.began); since >= time.Second {
			near(1000)
		}
	}
	at = at.Add(2500 * time.Millisecond)
	near(500)
	at = at.Add(time.Hour)
	if m.rate(at) != 0 {
		t.Fatal("a rate after an hour of nothing")
	}
	m.add(at, 5000)
	near(1000)
}
