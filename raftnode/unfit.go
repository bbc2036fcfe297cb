package raftnode

import (
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
)

// entryLogBytes bounds what an entry takes in the log beside its data.
const entryLogBytes = 64

// logBytes is what entries take in the log.
func logBytes(entries []*raftpb.Entry) int64 {
	var size int64
	for _, e := range entries {
		size += int64(len(e.GetData())) + entryLogBytes
	}
	return size
}

// unfit tells why a message from a peer must not be stepped: raft would panic on
// it, or the log refuse it, and a replica would be lost to a peer's mistake.
func (g *Group) unfit(m *raftpb.Message) (reason string) {
	switch m.GetType() {
	case raftpb.MsgApp:
		if size := logBytes(m.GetEntries()); size > g.node.opts.maxBatchBytes()-entryLogBytes {
			return fmt.Sprintf("its entries take %d bytes in the log, a batch of this node holds %d; use the same log_segment_bytes and limits on all nodes",
				size, g.node.opts.maxBatchBytes())
		}
		index, term := m.GetIndex(), m.GetLogTerm()
		for _, e := range m.GetEntries() {
			if e.GetIndex() != index+1 || e.GetTerm() < term || e.GetTerm() > m.GetTerm() {
				return fmt.Sprintf("entry %d of term %d stands behind entry %d of term %d", e.GetIndex(), e.GetTerm(), index, term)
			}
			index, term = e.GetIndex(), e.GetTerm()
		}
	case raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp:
		if n := len(m.GetContext()); n != 0 && n != 8 {
			return fmt.Sprintf("its context has %d bytes, must be 0 or 8", n)
		}
	case raftpb.MsgReadIndex:
		if len(m.GetEntries()) != 1 || len(m.GetEntries()[0].GetData()) != 8 {
			return "it carries no read context of 8 bytes"
		}
	case raftpb.MsgReadIndexResp:
		if len(m.GetEntries()) != 1 {
			return "it carries no read context"
		}
	}
	return ""
}
