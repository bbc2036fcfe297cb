package cliui

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
)

// Progress shows how far a transfer of bytes is: a bar with rate and remaining
// time on a terminal, elsewhere a line now and then. Add may be called from any
// goroutine.
type Progress struct {
	label   string
	total   uint64
	started time.Time
	bytes   atomic.Uint64

	bar     progress.Writer
	tracker *progress.Tracker
	// rendered is closed when the bar is drawn for the last time.
	rendered chan struct{}
	stop     chan struct{}
	running  sync.WaitGroup
}

// plainInterval is the time between two plain lines: short enough to see that
// something moves, long enough for a log.
const plainInterval = 5 * time.Second

// StartProgress begins to show progress on w. total is the bytes that will be
// moved; 0: unknown. Stop must be called.
func StartProgress(w io.Writer, label string, total uint64) *Progress {
	p := &Progress{label: label, total: total, started: time.Now(), stop: make(chan struct{})}
	if IsTerminal(w) {
		p.startBar(w)
		return p
	}
	p.running.Go(func() {
		ticker := time.NewTicker(plainInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				fmt.Fprintln(w, p.Line(time.Now()))
			case <-p.stop:
				return
			}
		}
	})
	return p
}

func (p *Progress) startBar(w io.Writer) {
	p.bar = progress.NewWriter()
	p.bar.SetOutputWriter(w)
	p.bar.SetUpdateFrequency(100 * time.Millisecond)
	p.bar.SetTrackerLength(30)
	p.bar.SetStyle(progress.StyleBlocks)
	style := p.bar.Style()
	style.Visibility.ETA = true
	style.Visibility.Speed = true
	style.Visibility.TrackerOverall = false
	style.Options.SpeedSuffix = "/s"
	p.tracker = &progress.Tracker{Message: p.label, Total: int64(min(p.total, 1<<62)), Units: progress.UnitsBytes}
	p.bar.AppendTracker(p.tracker)
	p.rendered = make(chan struct{})
	p.running.Go(func() {
		defer close(p.rendered)
		p.bar.Render()
	})
}

// Add tells that n more bytes are done.
func (p *Progress) Add(n uint64) {
	p.bytes.Add(n)
	if p.tracker != nil {
		p.tracker.Increment(int64(n))
	}
}

// Stop ends the display and waits until nothing is written any more.
func (p *Progress) Stop(failed bool) {
	close(p.stop)
	if p.bar != nil {
		if failed {
			p.tracker.MarkAsErrored()
		} else {
			p.tracker.MarkAsDone()
		}
		p.stopBar()
	}
	p.running.Wait()
}

// stopBar stops the bar until it has: a stop before the rendering has begun is
// lost.
func (p *Progress) stopBar() {
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for {
		p.bar.Stop()
		select {
		case <-p.rendered:
			return
		case <-again.C:
		}
	}
}

// Line returns the progress in one line, as of now: "importing: 12 MiB of 40
// MiB (30 %), 6.2 MB/s, 4.7s left".
func (p *Progress) Line(now time.Time) string {
	n, elapsed := p.bytes.Load(), now.Sub(p.started)
	line := p.label + ": " + Bytes(n)
	if p.total > 0 {
		line += fmt.Sprintf(" of %s (%d %%)", Bytes(p.total), min(100*n/p.total, 100))
	}
	line += ", " + Rate(n, elapsed)
	if p.total > n && n > 0 {
		left := time.Duration(float64(elapsed) * float64(p.total-n) / float64(n))
		line += ", " + Duration(left) + " left"
	}
	return line
}
