package proctest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamraft/streamraft/client"
)

// load writes from several goroutines until it is stopped, and remembers every
// write that was acknowledged.
type load struct {
	client  *client.Client
	prefix  string
	cancel  context.CancelFunc
	stop    chan struct{}
	once    sync.Once
	running sync.WaitGroup

	mu    sync.Mutex
	acked map[string]string
	// failed are writes that are certainly not applied, uncertain those that
	// may be.
	failed, uncertain int
	lastError         error
	lastAck           time.Time
	gap               time.Duration // the longest since resetGap
}

const loadWriters = 8

// startLoad starts writers of keys under a prefix, each value a little over
// valueBytes long.
func startLoad(t *testing.T, c *client.Client, prefix string, valueBytes int) *load {
	t.Helper()
	return startPacedLoad(t, c, prefix, valueBytes, 0)
}

// startPacedLoad is startLoad with a pause before each write, for tests in which
// the machine has other work.
func startPacedLoad(t *testing.T, c *client.Client, prefix string, valueBytes int, pause time.Duration) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{client: c, prefix: prefix, cancel: cancel, stop: make(chan struct{}), acked: map[string]string{}}
	filler := strings.Repeat("x", valueBytes)
	for w := range loadWriters {
		l.running.Go(func() {
			turns := make(chan time.Time)
			var turn <-chan time.Time = turns
			if pause > 0 {
				ticker := time.NewTicker(pause)
				defer ticker.Stop()
				turn = ticker.C
			} else {
				close(turns) // it is always its turn
			}
			for i := 0; ; i++ {
				select {
				case <-l.stop:
					return
				case <-ctx.Done():
					return
				case <-turn:
				}
				key := fmt.Sprintf("%s/%d/%08d", prefix, w, i)
				l.write(ctx, key, key+filler)
			}
		})
	}
	t.Cleanup(l.abort)
	return l
}

func (l *load) write(ctx context.Context, key, value string) {
	_, err := l.client.Put(ctx, []byte(key), []byte(value))
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			l.lastError = err
			if errors.Is(err, client.ErrUncertain) {
				l.uncertain++
			} else {
				l.failed++
			}
		}
		return
	}
	l.acked[key] = value
	if !l.lastAck.IsZero() {
		l.gap = max(l.gap, now.Sub(l.lastAck))
	}
	l.lastAck = now
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// awaitMore waits until that many further writes are acknowledged.
func (l *load) awaitMore(t *testing.T, more int, limit time.Duration) {
	t.Helper()
	goal := l.count() + more
	await(t, fmt.Sprintf("%d more writes", more), limit, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.acked) < goal {
			return fmt.Errorf("%d of %d; last error: %w", len(l.acked), goal, orNone(l.lastError))
		}
		return nil
	})
}

var errNone = errors.New("none")

func orNone(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

// resetGap begins a new measurement of the longest time between two
// acknowledgements.
func (l *load) resetGap() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gap = 0
}

func (l *load) longestGap() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gap
}

// finish lets the writes under way end and stops.
func (l *load) finish() {
	l.once.Do(func() { close(l.stop) })
	l.running.Wait()
}

// abort gives up the writes under way and stops.
func (l *load) abort() {
	l.cancel()
	l.running.Wait()
}

// check reads all keys of the load and wants every acknowledged write among
// them. It must be stopped.
func (l *load) check(t *testing.T) {
	t.Helper()
	found := map[string]string{}
	prefix := []byte(l.prefix + "/")
	for record, err := range l.client.Range(within(t, 60*time.Second), client.RangeOptions{Start: prefix, End: client.PrefixEnd(prefix)}) {
		if err != nil {
			t.Fatal(err)
		}
		found[string(record.Key)] = string(record.Value)
	}
	lost := 0
	for key, value := range l.acked {
		if found[key] != value {
			if lost++; lost <= 3 {
				t.Errorf("acknowledged write of %s is lost", key)
			}
		}
	}
	t.Logf("%s: %d writes acknowledged, %d lost, %d uncertain, %d failed, %d found", l.prefix, len(l.acked), lost, l.uncertain, l.failed, len(found))
}
