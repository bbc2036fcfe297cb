package server

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// family is one metric as docs/metrics.md lists it.
type family struct {
	name   string
	kind   string // counter, gauge or histogram
	labels []string
	help   string
}

// metrics are the server's own figures, and the collector that asks the node
// for the others when somebody looks.
type metrics struct {
	registry   *prometheus.Registry
	collectors []prometheus.Collector

	calls         *prometheus.CounterVec
	callSeconds   *prometheus.HistogramVec
	streams       *prometheus.CounterVec
	writeStreams  prometheus.Gauge
	streamWrites  *prometheus.CounterVec
	leaderChanges *prometheus.CounterVec
	commit        *prometheus.HistogramVec
	logSync       prometheus.Histogram
	logSyncBytes  prometheus.Histogram
}

// ownFamilies are the metrics the server counts itself, in the order newMetrics
// makes them.
func ownFamilies() []family {
	return []family{
		{"streamraft_grpc_calls_total", "counter", []string{"method", "code"}, "Unary calls that ended, by gRPC status code."},
		{"streamraft_grpc_call_seconds", "histogram", []string{"method"}, "Time of unary calls on this node."},
		{"streamraft_grpc_streams_total", "counter", []string{"method", "code"}, "Streams that ended, by gRPC status code."},
		{"streamraft_write_streams", "gauge", nil, "Write streams that are open."},
		{"streamraft_write_stream_writes_total", "counter", []string{"outcome"}, "Writes answered on Write streams: ok or failed."},
		{"streamraft_group_leader_changes_total", "counter", []string{"group"}, "Changes of leader, role or term that this replica saw."},
		{"streamraft_group_commit_seconds", "histogram", []string{"group"}, "Time from taking a command to having applied it on a majority's word, on the leader; the oldest command of each entry."},
		{"streamraft_log_sync_seconds", "histogram", nil, "Time to write and sync one batch of the raft log."},
		{"streamraft_log_sync_bytes", "histogram", nil, "Size of batches of the raft log."},
	}
}

// newMetrics makes the metrics and registers them. An error tells that the
// registry holds another server's.
func newMetrics(s *Server, registry *prometheus.Registry) (*metrics, error) {
	f := ownFamilies()
	seconds := prometheus.ExponentialBuckets(0.0001, 2, 16) // 0.1 ms to 3.3 s
	counter := func(f family) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.name, Help: f.help}, f.labels)
	}
	histogram := func(f family, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: f.name, Help: f.help, Buckets: buckets})
	}
	m := &metrics{
		registry:      registry,
		calls:         counter(f[0]),
		callSeconds:   prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: f[1].name, Help: f[1].help, Buckets: seconds}, f[1].labels),
		streams:       counter(f[2]),
		writeStreams:  prometheus.NewGauge(prometheus.GaugeOpts{Name: f[3].name, Help: f[3].help}),
		streamWrites:  counter(f[4]),
		leaderChanges: counter(f[5]),
		commit:        prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: f[6].name, Help: f[6].help, Buckets: seconds}, f[6].labels),
		logSync:       histogram(f[7], seconds),
		logSyncBytes:  histogram(f[8], prometheus.ExponentialBuckets(512, 4, 8)), // 512 B to 8 MiB
	}
	for _, c := range []prometheus.Collector{
		m.calls, m.callSeconds, m.streams, m.writeStreams, m.streamWrites, m.leaderChanges, m.commit, m.logSync, m.logSyncBytes,
		newNodeCollector(s), newSnapshotCollector(s),
	} {
		if err := registry.Register(c); err != nil {
			m.unregister()
			return nil, errors.Join(errors.New("server: the registry holds metrics of another server; give each a registry of its own"), err)
		}
		m.collectors = append(m.collectors, c)
	}
	return m, nil
}

// unregister takes the metrics out of the registry, so that it can be used for
// the next opening of the node.
func (m *metrics) unregister() {
	for _, c := range m.collectors {
		m.registry.Unregister(c)
	}
	m.collectors = nil
}

func (m *metrics) called(method string, code codes.Code, took time.Duration) {
	m.calls.WithLabelValues(method, code.String()).Inc()
	m.callSeconds.WithLabelValues(method).Observe(took.Seconds())
}

func (m *metrics) streamed(method string, code codes.Code) {
	m.streams.WithLabelValues(method, code.String()).Inc()
}
