package bench

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/streamraft/streamraft/internal/localcluster"
)

// memoryEvery is the pause between two looks at the memory of the nodes.
const memoryEvery = 10 * time.Millisecond

// memorySeen is the anonymous memory of a process over some time, in bytes.
type memorySeen struct{ peak, median uint64 }

// memoryWatch samples the anonymous memory of a cluster's processes. Where the
// system does not tell (it is read from /proc), it sees nothing.
type memoryWatch struct {
	cluster *localcluster.Cluster
	stop    chan struct{}
	done    sync.WaitGroup
	mu      sync.Mutex
	samples map[string][]float64
}

func startMemoryWatch(cluster *localcluster.Cluster) *memoryWatch {
	w := &memoryWatch{cluster: cluster, stop: make(chan struct{}), samples: make(map[string][]float64)}
	w.done.Go(w.run)
	return w
}

func (w *memoryWatch) run() {
	ticker := time.NewTicker(memoryEvery)
	defer ticker.Stop()
	for {
		for _, name := range w.cluster.Names() {
			if pid := w.cluster.PID(name); pid != 0 {
				if bytes, err := anonymousMemory(pid); err == nil {
					w.mu.Lock()
					w.samples[name] = append(w.samples[name], float64(bytes))
					w.mu.Unlock()
				}
			}
		}
		select {
		case <-w.stop:
			return
		case <-ticker.C:
		}
	}
}

// take returns what was seen since the last call.
func (w *memoryWatch) take() map[string]memorySeen {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := make(map[string]memorySeen)
	for name, samples := range w.samples {
		spread := SpreadOf(samples)
		seen[name] = memorySeen{peak: uint64(spread.Max), median: uint64(spread.Median)}
	}
	clear(w.samples)
	return seen
}

func (w *memoryWatch) end() {
	close(w.stop)
	w.done.Wait()
}

// anonymousMemory returns RssAnon of a process.
func anonymousMemory(pid int) (uint64, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	text := fieldOf(path, "RssAnon")
	kib, err := strconv.ParseUint(strings.TrimSuffix(text, " kB"), 10, 54)
	if err != nil {
		return 0, fmt.Errorf("%s: RssAnon: %q", path, text)
	}
	return kib << 10, nil
}
