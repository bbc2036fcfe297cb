package server

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamraft/streamraft/kv"
	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/raftnode/transport"
)

// figure is a metric that is read from a T when somebody looks. The Ts are
// figures kept in memory, so that looking works on a failed node and waits for
// nothing.
type figure[T any] struct {
	family
	value func(*T) float64
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// nodeFigures are those of the process, present from the first moment on.
func nodeFigures() []figure[Server] {
	return []figure[Server]{
		{family{"streamraft_node_ready", "gauge", nil, "1 while the node may be sent requests."}, func(s *Server) float64 { ready, _ := s.Ready(); return oneIf(ready) }},
		{family{"streamraft_node_failed", "gauge", nil, "1 after the node failed for good."}, func(s *Server) float64 { return oneIf(s.Err() != nil) }},
		{family{"streamraft_writes_inflight_bytes", "gauge", nil, "Writes of clients that wait for their outcome; over max_inflight_bytes they are not read."}, func(s *Server) float64 { return float64(s.inflight.used.Load()) }},
		{family{"streamraft_ranges_inflight", "gauge", nil, "Ranges that are being read."}, func(s *Server) float64 { return float64(s.ranges.used.Load()) }},
	}
}

// statusFigures are those of the disk and the log.
func statusFigures() []figure[raftnode.Status] {
	return []figure[raftnode.Status]{
		{family{"streamraft_node_no_space", "gauge", nil, "1 while writes are refused for want of disk space."}, func(s *raftnode.Status) float64 { return oneIf(s.NoSpace) }},
		{family{"streamraft_disk_available_bytes", "gauge", nil, "Free space of the data directory's file system, as last looked at."}, func(s *raftnode.Status) float64 { return float64(s.Disk.AvailBytes) }},
		{family{"streamraft_disk_total_bytes", "gauge", nil, "Size of the data directory's file system."}, func(s *raftnode.Status) float64 { return float64(s.Disk.TotalBytes) }},
	}
}

// logFigures are those of the raft log of all groups.
func logFigures() []figure[raftnode.Metrics] {
	return []figure[raftnode.Metrics]{
		{family{"streamraft_log_disk_bytes", "gauge", nil, "Size of all log files, spare ones included."}, func(m *raftnode.Metrics) float64 { return float64(m.Log.DiskBytes) }},
		{family{"streamraft_log_live_bytes", "gauge", nil, "Bytes of entries in the log that are still needed."}, func(m *raftnode.Metrics) float64 { return float64(m.Log.LiveBytes) }},
		{family{"streamraft_log_writing_seconds", "gauge", nil, "How long the batch of the log under way has taken so far; a disk that hangs shows here."}, func(m *raftnode.Metrics) float64 { return m.LogWriting.Seconds() }},
		{family{"streamraft_log_segments", "gauge", nil, "Log segments in use."}, func(m *raftnode.Metrics) float64 { return float64(m.Log.Segments) }},
		{family{"streamraft_log_segments_recycled_total", "counter", nil, "Log segments used again for a later one."}, func(m *raftnode.Metrics) float64 { return float64(m.Log.Recycled) }},
		{family{"streamraft_log_batches_total", "counter", nil, "Batches written to the log."}, func(m *raftnode.Metrics) float64 { return float64(m.Log.Batches) }},
		{family{"streamraft_log_written_bytes_total", "counter", nil, "Bytes written to the log."}, func(m *raftnode.Metrics) float64 { return float64(m.Log.BytesWritten) }},
		{family{"streamraft_log_syncs_total", "counter", nil, "Syncs of the log."}, func(m *raftnode.Metrics) float64 { return float64(m.Log.Syncs) }},
		{family{"streamraft_log_moved_bytes_total", "counter", nil, "Bytes of entries written again to free an old segment."}, func(m *raftnode.Metrics) float64 { return float64(m.Log.MovedBytes) }},
		{family{"streamraft_log_cache_hits_total", "counter", nil, "Entries read from the log's cache."}, func(m *raftnode.Metrics) float64 { return float64(m.Log.CacheHits) }},
		{family{"streamraft_log_cache_misses_total", "counter", nil, "Entries read from the log's files."}, func(m *raftnode.Metrics) float64 { return float64(m.Log.CacheMisses) }},
		{family{"streamraft_log_segment_waits_total", "counter", nil, "Batches that waited for a segment to be made."}, func(m *raftnode.Metrics) float64 { return float64(m.Log.PreallocWaits) }},
	}
}

// groupFigures are those of a replica.
func groupFigures() []figure[raftnode.GroupStatus] {
	labels := []string{"group"}
	return []figure[raftnode.GroupStatus]{
		{family{"streamraft_group_is_leader", "gauge", labels, "1 on the leader of the group."}, func(g *raftnode.GroupStatus) float64 { return oneIf(g.Role == raftnode.RoleLeader) }},
		{family{"streamraft_group_has_leader", "gauge", labels, "1 while this replica knows a leader."}, func(g *raftnode.GroupStatus) float64 { return oneIf(g.Leader != 0) }},
		{family{"streamraft_group_quarantined", "gauge", labels, "1 while the state of this replica is unsound and it gets another one."}, func(g *raftnode.GroupStatus) float64 { return oneIf(g.Quarantined != "") }},
		{family{"streamraft_group_failed", "gauge", labels, "1 after this replica stopped for good."}, func(g *raftnode.GroupStatus) float64 { return oneIf(g.Failure != "") }},
		{family{"streamraft_group_term", "gauge", labels, "Raft term."}, func(g *raftnode.GroupStatus) float64 { return float64(g.Term) }},
		{family{"streamraft_group_commit_index", "gauge", labels, "Highest index known to be committed."}, func(g *raftnode.GroupStatus) float64 { return float64(g.Commit) }},
		{family{"streamraft_group_applied_index", "gauge", labels, "Highest index applied here."}, func(g *raftnode.GroupStatus) float64 { return float64(g.Applied) }},
		{family{"streamraft_group_durable_applied_index", "gauge", labels, "Highest index whose effect survives a crash without the log."}, func(g *raftnode.GroupStatus) float64 { return float64(g.DurableApplied) }},
		{family{"streamraft_group_first_index", "gauge", labels, "First index in the log."}, func(g *raftnode.GroupStatus) float64 { return float64(g.FirstIndex) }},
		{family{"streamraft_group_last_index", "gauge", labels, "Last index in the log."}, func(g *raftnode.GroupStatus) float64 { return float64(g.LastIndex) }},
		{family{"streamraft_group_log_bytes", "gauge", labels, "Bytes of the group's entries in the log."}, func(g *raftnode.GroupStatus) float64 { return float64(g.LogBytes) }},
		{family{"streamraft_group_replicas", "gauge", labels, "Replicas of the group."}, func(g *raftnode.GroupStatus) float64 { return float64(len(g.Replicas)) }},
		{family{"streamraft_group_pending_proposals", "gauge", labels, "Proposals that wait for their result here."}, func(g *raftnode.GroupStatus) float64 { return float64(g.PendingProposals) }},
		{family{"streamraft_group_pending_bytes", "gauge", labels, "Bytes of proposals that wait for their result here."}, func(g *raftnode.GroupStatus) float64 { return float64(g.PendingBytes) }},
	}
}

// groupCounters count what a replica did since the node was opened.
func groupCounters() []figure[raftnode.GroupMetrics] {
	labels := []string{"group"}
	return []figure[raftnode.GroupMetrics]{
		{family{"streamraft_group_entries_proposed_total", "counter", labels, "Log entries this replica made as leader."}, func(g *raftnode.GroupMetrics) float64 { return float64(g.Entries) }},
		{family{"streamraft_group_commands_proposed_total", "counter", labels, "Commands in those entries."}, func(g *raftnode.GroupMetrics) float64 { return float64(g.Commands) }},
		{family{"streamraft_group_commands_applied_total", "counter", labels, "Commands applied, of any leader."}, func(g *raftnode.GroupMetrics) float64 { return float64(g.Applied) }},
		{family{"streamraft_group_overloaded_total", "counter", labels, "Proposals refused because too many bytes waited."}, func(g *raftnode.GroupMetrics) float64 { return float64(g.Overloaded) }},
		{family{"streamraft_group_read_rounds_total", "counter", labels, "Rounds of heartbeats for linearizable reads; reads share them."}, func(g *raftnode.GroupMetrics) float64 { return float64(g.ReadRounds) }},
		{family{"streamraft_group_step_errors_total", "counter", labels, "Messages that raft did not take."}, func(g *raftnode.GroupMetrics) float64 { return float64(g.StepErrors) }},
		{family{"streamraft_group_installs_total", "counter", labels, "Images installed on this replica."}, func(g *raftnode.GroupMetrics) float64 { return float64(g.Installs) }},
		{family{"streamraft_group_digest_mismatches_total", "counter", labels, "Digests of this replica's state that most voters had otherwise; each leads to quarantine."}, func(g *raftnode.GroupMetrics) float64 { return float64(g.DigestMismatches) }},
		{family{"streamraft_group_digest_alarms_total", "counter", labels, "Rounds of digests without a majority, seen by the leader: nobody can tell which state is right."}, func(g *raftnode.GroupMetrics) float64 { return float64(g.DigestAlarms) }},
		{family{"streamraft_snapshot_log_pin_bytes", "gauge", labels, "Log that this leader keeps for replicas that are getting an image; past four times log_budget it is cut."}, func(g *raftnode.GroupMetrics) float64 { return float64(g.LogPinBytes) }},
		{family{"streamraft_group_inbox_dropped_total", "counter", labels, "Messages dropped because the group's inbox was full."}, func(g *raftnode.GroupMetrics) float64 { return float64(g.InboxDropped) }},
	}
}

// storeFigures are those of a group's records.
func storeFigures() []figure[kv.Metrics] {
	labels := []string{"group"}
	return []figure[kv.Metrics]{
		{family{"streamraft_kv_state_bytes", "gauge", labels, "Size of the state's tables on disk, as of the last flush or compaction."}, func(m *kv.Metrics) float64 { return float64(m.StateBytes) }},
		{family{"streamraft_kv_memtable_bytes", "gauge", labels, "State that is only in memory (and in the raft log)."}, func(m *kv.Metrics) float64 { return float64(m.MemTableBytes) }},
		{family{"streamraft_kv_journal_bytes", "gauge", labels, "Size of the change journal, part of the state."}, func(m *kv.Metrics) float64 { return float64(m.JournalBytes) }},
		{family{"streamraft_kv_journal_low_index", "gauge", labels, "The change journal holds every index above this one."}, func(m *kv.Metrics) float64 { return float64(m.JournalLow) }},
		{family{"streamraft_kv_l0_files", "gauge", labels, "Tables that wait for compaction."}, func(m *kv.Metrics) float64 { return float64(m.L0Files) }},
		{family{"streamraft_kv_l0_sublevels", "gauge", labels, "Sublevels of L0."}, func(m *kv.Metrics) float64 { return float64(m.L0Sublevels) }},
		{family{"streamraft_kv_read_amplification", "gauge", labels, "Places a read looks at."}, func(m *kv.Metrics) float64 { return float64(m.ReadAmplification) }},
		{family{"streamraft_kv_write_stalled", "gauge", labels, "1 while the store holds writes up, until memtables or L0 have room."}, func(m *kv.Metrics) float64 { return oneIf(m.WriteStalled) }},
		{family{"streamraft_kv_flushes_total", "counter", labels, "Flushes of memtables."}, func(m *kv.Metrics) float64 { return float64(m.Flushes) }},
		{family{"streamraft_kv_compactions_total", "counter", labels, "Compactions."}, func(m *kv.Metrics) float64 { return float64(m.Compactions) }},
		{family{"streamraft_kv_background_errors_total", "counter", labels, "Flushes and compactions that failed and are tried again."}, func(m *kv.Metrics) float64 { return float64(m.BackgroundErrors) }},
		{family{"streamraft_kv_cache_hits_total", "counter", labels, "Block cache hits of all groups, as of this group's last flush or compaction."}, func(m *kv.Metrics) float64 { return float64(m.CacheHits) }},
		{family{"streamraft_kv_cache_misses_total", "counter", labels, "Block cache misses, likewise."}, func(m *kv.Metrics) float64 { return float64(m.CacheMisses) }},
		{family{"streamraft_kv_commands_total", "counter", labels, "Commands applied."}, func(m *kv.Metrics) float64 { return float64(m.Commands) }},
		{family{"streamraft_kv_refused_total", "counter", labels, "Commands the state refused."}, func(m *kv.Metrics) float64 { return float64(m.Refused) }},
		{family{"streamraft_kv_repeated_total", "counter", labels, "Commands answered with the recorded reply of a client session."}, func(m *kv.Metrics) float64 { return float64(m.Repeated) }},
		{family{"streamraft_kv_batches_total", "counter", labels, "Batches the commands were written in."}, func(m *kv.Metrics) float64 { return float64(m.Batches) }},
		{family{"streamraft_kv_client_sessions", "gauge", labels, "Open client sessions."}, func(m *kv.Metrics) float64 { return float64(m.Sessions) }},
		{family{"streamraft_kv_client_session_replies", "gauge", labels, "Replies recorded for client sessions."}, func(m *kv.Metrics) float64 { return float64(m.Replies) }},
		{family{"streamraft_kv_client_sessions_expired_total", "counter", labels, "Client sessions that expired."}, func(m *kv.Metrics) float64 { return float64(m.ExpiredSessions) }},
		{family{"streamraft_kv_digests_total", "counter", labels, "Digests taken."}, func(m *kv.Metrics) float64 { return float64(m.Digests) }},
	}
}

// laneFigures are those of the connections to a peer.
func laneFigures() []figure[transport.LaneMetrics] {
	labels := []string{"peer", "lane"}
	return []figure[transport.LaneMetrics]{
		{family{"streamraft_transport_connected", "gauge", labels, "1 while this node can send to the peer."}, func(l *transport.LaneMetrics) float64 { return oneIf(l.Connected) }},
		{family{"streamraft_transport_accepted", "gauge", labels, "1 while the peer can send to this node."}, func(l *transport.LaneMetrics) float64 { return oneIf(l.Accepted) }},
		{family{"streamraft_transport_connects_total", "counter", labels, "Connections made to the peer."}, func(l *transport.LaneMetrics) float64 { return float64(l.Connects) }},
		{family{"streamraft_transport_queued_messages", "gauge", labels, "Raft messages that wait to be sent."}, func(l *transport.LaneMetrics) float64 { return float64(l.Queued) }},
		{family{"streamraft_transport_sent_messages_total", "counter", labels, "Raft messages sent."}, func(l *transport.LaneMetrics) float64 { return float64(l.SentMessages) }},
		{family{"streamraft_transport_sent_bytes_total", "counter", labels, "Bytes of raft messages sent."}, func(l *transport.LaneMetrics) float64 { return float64(l.SentBytes) }},
		{family{"streamraft_transport_dropped_messages_total", "counter", labels, "Raft messages dropped: no connection, or a full queue. Raft sends again."}, func(l *transport.LaneMetrics) float64 { return float64(l.Dropped) }},
		{family{"streamraft_transport_received_messages_total", "counter", labels, "Raft messages received."}, func(l *transport.LaneMetrics) float64 { return float64(l.ReceivedMessages) }},
		{family{"streamraft_transport_received_bytes_total", "counter", labels, "Bytes of raft messages received."}, func(l *transport.LaneMetrics) float64 { return float64(l.ReceivedBytes) }},
	}
}

// infoFamily names the node; its value is 1.
func infoFamily() family {
	return family{"streamraft_node_info", "gauge", []string{"node", "version", "cluster"}, "1; the labels say what runs here. cluster is empty until founded."}
}

// families returns every metric of a server, as docs/metrics.md lists them.
func families() []family {
	list := []family{infoFamily()}
	list = appendFamilies(list, nodeFigures())
	list = appendFamilies(list, statusFigures())
	list = append(list, ownFamilies()...)
	list = appendFamilies(list, logFigures())
	list = appendFamilies(list, groupFigures())
	list = appendFamilies(list, groupCounters())
	list = appendFamilies(list, storeFigures())
	list = appendFamilies(list, laneFigures())
	for _, f := range snapshotFamilies() {
		list = append(list, f.family)
	}
	return list
}

func appendFamilies[T any](list []family, figures []figure[T]) []family {
	for _, f := range figures {
		list = append(list, f.family)
	}
	return list
}

// nodeCollector exports the figures.
type nodeCollector struct {
	s      *Server
	info   *prometheus.Desc
	node   exporter[Server]
	status exporter[raftnode.Status]
	log    exporter[raftnode.Metrics]
	group  exporter[raftnode.GroupStatus]
	counts exporter[raftnode.GroupMetrics]
	store  exporter[kv.Metrics]
	lane   exporter[transport.LaneMetrics]
}

func newNodeCollector(s *Server) *nodeCollector {
	return &nodeCollector{
		s: s, info: infoFamily().desc(),
		node: newExporter(nodeFigures()), status: newExporter(statusFigures()), log: newExporter(logFigures()),
		group: newExporter(groupFigures()), counts: newExporter(groupCounters()),
		store: newExporter(storeFigures()), lane: newExporter(laneFigures()),
	}
}

// Describe implements prometheus.Collector.
func (c *nodeCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.info
	c.node.describe(out)
	c.status.describe(out)
	c.log.describe(out)
	c.group.describe(out)
	c.counts.describe(out)
	c.store.describe(out)
	c.lane.describe(out)
}

// Collect implements prometheus.Collector.
func (c *nodeCollector) Collect(out chan<- prometheus.Metric) {
	c.node.collect(out, c.s)
	cluster := ""
	if node := c.s.node.Load(); node != nil {
		st, m := node.Status(), node.Metrics()
		cluster = st.ClusterID
		c.status.collect(out, &st)
		c.log.collect(out, &m)
		for i := range st.Groups {
			c.group.collect(out, &st.Groups[i], id(st.Groups[i].Group))
		}
		for i := range m.Groups {
			c.counts.collect(out, &m.Groups[i], id(m.Groups[i].Group))
		}
	}
	for _, r := range c.s.replicas() {
		m := r.store.Metrics()
		c.store.collect(out, &m, id(m.Group))
	}
	if t := c.s.transport; t != nil {
		lanes := t.Metrics().Lanes
		for i := range lanes {
			c.lane.collect(out, &lanes[i], lanes[i].Node, laneLabel(lanes[i].Lane))
		}
	}
	out <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, c.s.config.Name, c.s.options.Version, cluster)
}

func id(group uint64) string { return strconv.FormatUint(group, 10) }

func laneLabel(l raftv1.Lane) string {
	if l == raftv1.Lane_LANE_APPEND {
		return "append"
	}
	return "urgent"
}

func (f family) desc() *prometheus.Desc {
	return prometheus.NewDesc(f.name, f.help, f.labels, nil)
}

// exporter exports the figures of a T.
type exporter[T any] struct {
	figures []figure[T]
	descs   []*prometheus.Desc
}

func newExporter[T any](figures []figure[T]) exporter[T] {
	e := exporter[T]{figures: figures}
	for _, f := range figures {
		e.descs = append(e.descs, f.desc())
	}
	return e
}

func (e *exporter[T]) describe(out chan<- *prometheus.Desc) {
	for _, d := range e.descs {
		out <- d
	}
}

func (e *exporter[T]) collect(out chan<- prometheus.Metric, from *T, labels ...string) {
	for i, f := range e.figures {
		kind := prometheus.GaugeValue
		if f.kind == "counter" {
			kind = prometheus.CounterValue
		}
		out <- prometheus.MustNewConstMetric(e.descs[i], kind, f.value(from), labels...)
	}
}
