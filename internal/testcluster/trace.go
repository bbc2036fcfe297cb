package testcluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// maxTraceEvents bounds the memory of a trace; a run has a few thousand events.
const maxTraceEvents = 200_000

// trace is the list of events of a run, in virtual time.
type trace struct {
	begin time.Time

	mu     sync.Mutex
	events []string
	lost   int
}

func newTrace() *trace { return &trace{begin: time.Now()} }

// add appends one event.
func (t *trace) add(format string, args ...any) {
	line := fmt.Sprintf("%9.3fs ", time.Since(t.begin).Seconds()) + fmt.Sprintf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.events) == maxTraceEvents {
		t.lost++
		return
	}
	t.events = append(t.events, line)
}

// writeTo writes all events, a line each.
func (t *trace) writeTo(w io.Writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := io.WriteString(w, strings.Join(t.events, "\n")+"\n"); err != nil {
		return err
	}
	if t.lost > 0 {
		_, err := fmt.Fprintf(w, "%d later events were not kept\n", t.lost)
		return err
	}
	return nil
}

// tail returns the last n events.
func (t *trace) tail(n int) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.events[max(0, len(t.events)-n):]...)
}

// logHandler puts what a node logs into the trace.
type logHandler struct {
	trace *trace
	level slog.Level
	node  string
	attrs string
}

// Enabled keeps debug messages out unless a single run is looked at.
func (h logHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

// Handle adds one event.
func (h logHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	h.trace.add("%s %s: %s%s%s", h.node, strings.ToLower(r.Level.String()), r.Message, h.attrs, b.String())
	return nil
}

// WithAttrs returns a handler that adds attrs to each event.
func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if a.Key != "node" {
			h.attrs += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		}
	}
	return h
}

// WithGroup returns the handler itself: nodes do not group what they log.
func (h logHandler) WithGroup(string) slog.Handler { return h }
