package server

import (
	"fmt"
	"log/slog"
	"time"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

const (
	// transferLogEvery is the time between two log lines about a transfer that
	// moves.
	transferLogEvery = 2 * time.Second
	// transferLogIdle is the same for one in which nothing changes.
	transferLogIdle = 30 * time.Second
)

// keepTransferLog tells of the images that this node receives: an operator who
// watches a node join or come back sees nothing but its log.
func (s *Server) keepTransferLog() {
	ticker := time.NewTicker(transferLogEvery)
	defer ticker.Stop()
	told := make(transferLog)
	for {
		select {
		case now := <-ticker.C:
			told = told.tell(s.log, s.transfers(now), now)
		case <-s.quit:
			return
		}
	}
}

// transferLog is what was told of each transfer, and when.
type transferLog map[string]toldTransfer

type toldTransfer struct {
	state string
	at    time.Time
	over  bool
}

// tell logs what changed since, and returns what is told now.
func (l transferLog) tell(log *slog.Logger, transfers []*adminv1.Transfer, now time.Time) transferLog {
	next := make(transferLog)
	for _, t := range transfers {
		if t.GetRole() != adminv1.TransferRole_TRANSFER_ROLE_RECEIVER {
			continue
		}
		// What was staged by one that ended is gone on with under the same id.
		key := fmt.Sprintf("%d/%x/%d", t.GetGroup(), t.GetTransfer(), t.GetStartedUnixMs())
		last, known := l[key]
		if t.GetEndedUnixMs() > 0 {
			// Of one that came and went between two looks too.
			if !last.over {
				logEndedTransfer(log, t)
			}
			next[key] = toldTransfer{over: true}
			continue
		}
		state := fmt.Sprint(t.GetPhase(), t.GetBytesDone(), t.GetAppliedIndex(), t.GetProblem(), t.GetPaced(), t.GetPosition())
		if known && state == last.state && now.Sub(last.at) < transferLogIdle {
			next[key] = last
			continue
		}
		logTransfer(log, t)
		next[key] = toldTransfer{state: state, at: now}
	}
	return next
}

func logTransfer(log *slog.Logger, t *adminv1.Transfer) {
	attributes := []any{"group", t.GetGroup(), "source", t.GetPeer(), "phase", phaseText(t.GetPhase())}
	if t.GetPosition() > 0 {
		attributes = append(attributes, "position", t.GetPosition())
	}
	if total := t.GetBytesTotal(); total > 0 {
		done := min(t.GetBytesDone(), total)
		attributes = append(attributes, "percent", 100*done/total, "bytes", done, "of", total)
		if rate := t.GetBytesPerSecond(); rate > 0 && t.GetPhase() == snapshotv1.Phase_PHASE_SEND {
			left := time.Duration(float64(total-done) / float64(rate) * float64(time.Second))
			attributes = append(attributes, "megabytes_per_second", fmt.Sprintf("%.1f", float64(rate)/1e6), "left", left.Round(100*time.Millisecond))
		}
	}
	if t.GetPhase() == snapshotv1.Phase_PHASE_CATCH_UP {
		attributes = append(attributes, "applied", t.GetAppliedIndex(), "target", t.GetTargetIndex())
	}
	if t.GetPaced() {
		attributes = append(attributes, "paced", true)
	}
	if t.GetProblem() != "" {
		attributes = append(attributes, "waiting", t.GetProblem())
	}
	log.Info("receiving an image", attributes...)
}

func logEndedTransfer(log *slog.Logger, t *adminv1.Transfer) {
	took := time.Duration(t.GetEndedUnixMs()-t.GetStartedUnixMs()) * time.Millisecond
	if t.GetOutcome() != snapshotv1.Outcome_OUTCOME_INSTALLED {
		return // raftnode told why, at once
	}
	log.Info("an image is installed and the replica has caught up", "group", t.GetGroup(), "source", t.GetPeer(), "index", t.GetIndex(),
		"applied", t.GetAppliedIndex(), "bytes", t.GetBytesTotal(), "wire_bytes", t.GetWireBytes(), "took", took)
}

// phaseText is a phase as logs have it.
func phaseText(p snapshotv1.Phase) string {
	switch p {
	case snapshotv1.Phase_PHASE_QUEUED:
		return "queued"
	case snapshotv1.Phase_PHASE_CAPTURE:
		return "capture"
	case snapshotv1.Phase_PHASE_SEND:
		return "send"
	case snapshotv1.Phase_PHASE_VERIFY:
		return "verify"
	case snapshotv1.Phase_PHASE_READY:
		return "ready"
	case snapshotv1.Phase_PHASE_INSTALL:
		return "install"
	case snapshotv1.Phase_PHASE_CATCH_UP:
		return "catch up"
	}
	return "unknown"
}
