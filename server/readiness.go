package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/streamraft/streamraft/raftnode"
)

const (
	// maxApplyLag is how many entries a ready node may be behind the commit
	// index it knows.
	maxApplyLag = 1024
	// readinessPoll is how often readiness is looked at while it changes
	// without an event, by applying; readinessIdle how often otherwise.
	readinessPoll = 100 * time.Millisecond
	readinessIdle = time.Second
	// readinessGrace is how long a group may be without a leader before gRPC's
	// health says so: handing leadership over takes a few milliseconds, and
	// sending every client elsewhere for that would be worse than the gap.
	readinessGrace = 500 * time.Millisecond
)

// readiness is whether a node may be sent requests, and if not, why.
type readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

// healthiness is whether the process is well, and if not, why.
type healthiness struct {
	Healthy bool     `json:"healthy"`
	Reasons []string `json:"reasons"`
}

// Ready tells whether the node is founded, every group knows a leader and its
// state is close to what is committed; if not, the reasons.
func (s *Server) Ready() (bool, []string) {
	r := s.currentReadiness()
	return r.Ready, r.Reasons
}

// currentReadiness looks now.
func (s *Server) currentReadiness() readiness {
	reasons := []string{}
	add := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	node := s.node.Load()
	switch {
	case s.draining.Load():
		add("shutting down")
	case s.Err() != nil:
		add("failed: %v", s.Err())
	case node == nil && s.founding():
		add("waiting for the other founders")
	case node == nil:
		add("opening the log and the state")
	case node.Status().Removed:
		add("removed from the cluster")
	default:
		if _, joining := node.Joining(); joining {
			add("waiting for the cluster to take this node")
		}
		for _, g := range node.Groups() {
			switch st := g.Status(); {
			case st.Failure != "":
				add("group %d failed: %s", st.Group, st.Failure)
			case st.Quarantined != "":
				add("group %d is quarantined and gets another state: %s", st.Group, st.Quarantined)
			// Its address comes from the membership, which a replica learns by
			// applying; before that it could not tell a client where to go.
			case st.LeaderAddress == "":
				add("group %d knows no leader", st.Group)
			case st.Applied+maxApplyLag < st.Commit:
				add("group %d has applied index %d of %d", st.Group, st.Applied, st.Commit)
			}
		}
	}
	return readiness{Ready: len(reasons) == 0, Reasons: reasons}
}

// founding tells whether the directory belongs to no cluster yet.
func (s *Server) founding() bool {
	if s.transport == nil {
		return false
	}
	hello := s.transport.hello()
	return hello != nil && len(hello.GetClusterId()) == 0
}

// watchReadiness keeps gRPC's health up to date until the server stops.
func (s *Server) watchReadiness() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	was := false
	var lost time.Time // since when it is not ready, while health says it is
	for {
		select {
		case <-s.quit:
			return
		case <-s.changed:
		case <-timer.C:
		}
		now := s.currentReadiness()
		switch {
		case now.Ready || s.Err() != nil:
			lost = time.Time{}
		case was && lost.IsZero():
			lost = time.Now()
		}
		within := !lost.IsZero() && time.Since(lost) < readinessGrace
		if now.Ready != was && !within && !s.draining.Load() {
			was = now.Ready
			s.setHealth(now.Ready)
			if now.Ready {
				s.log.Info("ready")
			} else {
				s.log.Warn("not ready", "reasons", now.Reasons)
			}
		}
		if now.Ready {
			timer.Reset(readinessIdle)
		} else {
			timer.Reset(readinessPoll)
		}
	}
}

// healthz answers whether the process is well: 200, or 503 with the reasons. A
// node that is not well does not become so by itself; restart it.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	h := healthiness{Reasons: []string{}}
	if err := s.Err(); err != nil {
		h.Reasons = append(h.Reasons, fmt.Sprintf("failed: %v", err))
	}
	for _, g := range s.groups() {
		if st := g.Status(); st.Failure != "" {
			h.Reasons = append(h.Reasons, fmt.Sprintf("group %d failed: %s", st.Group, st.Failure))
		}
	}
	h.Healthy = len(h.Reasons) == 0
	answerJSON(w, h.Healthy, h)
}

// readyz answers whether the node may be sent requests: 200, or 503 with the
// reasons.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	r := s.currentReadiness()
	answerJSON(w, r.Ready, r)
}

func (s *Server) groups() []*raftnode.Group {
	if node := s.node.Load(); node != nil {
		return node.Groups()
	}
	return nil
}

func answerJSON(w http.ResponseWriter, well bool, body any) {
	w.Header().Set("Content-Type", "application/json")
	if !well {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	// An error is the reader's going away.
	_ = json.NewEncoder(w).Encode(body)
}
