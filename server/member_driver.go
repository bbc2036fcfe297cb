package server

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	"github.com/streamraft/streamraft/raftnode"
)

const (
	// planRetry is the pause between two rounds while a plan is not done: a
	// learner is caught up some time, and nothing tells when.
	planRetry = 200 * time.Millisecond
	// stepTimeout bounds one step.
	stepTimeout = 10 * time.Second
)

// keepPlans carries out the plans whenever this node leads the meta group.
func (s *Server) keepPlans() {
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-s.plansDue:
		case <-retry.C:
		}
		if s.runPlans(s.calls) {
			retry.Reset(planRetry)
		}
	}
}

// runPlans does one round and tells whether another is due.
func (s *Server) runPlans(ctx context.Context) (again bool) {
	meta, err := s.replicaOf(raftnode.MetaGroup)
	if err != nil || leads(meta.group) != nil {
		s.problems.clear()
		return false // the change of leaders wakes us
	}
	round, cancel := context.WithTimeout(ctx, directoryTimeout)
	defer cancel()
	if err := leadsNow(round, meta.group); err != nil {
		return true
	}
	all, err := plans(round, meta)
	if err != nil {
		s.log.Error("the plans of membership changes cannot be read", "error", err)
		return true
	}
	for _, p := range all {
		if planDone(p.NodePlan) {
			continue
		}
		if err := s.runPlan(ctx, meta, p); err != nil {
			s.problems.set(p.GetNode(), err)
			s.log.Debug("a membership change is tried again", "changed_node", p.GetNode(), "reason", err)
			again = true
		} else {
			s.problems.set(p.GetNode(), nil)
		}
	}
	return again
}

// runPlan does the steps of a plan that are due, as far as it can, and notes
// them. An error means that some are left.
func (s *Server) runPlan(ctx context.Context, meta replica, p storedPlan) error {
	var problem error
	var action adminv1.StepAction // a step waits for those of another action before it
	did := false
	for _, step := range p.GetSteps() {
		if step.GetDone() {
			continue
		}
		if action != 0 && step.GetAction() != action {
			break
		}
		action = step.GetAction()
		stepCtx, cancel := context.WithTimeout(ctx, stepTimeout)
		done, err := s.askGroup(stepCtx, stepRequest(p.NodePlan, step))
		cancel()
		if err != nil {
			problem = err // the other groups need not wait
			continue
		}
		step.Done = done
		did = did || done
	}
	if !did {
		return problem
	}
	writeCtx, cancel := context.WithTimeout(ctx, directoryTimeout)
	defer cancel()
	done := planDone(p.NodePlan)
	if err := s.writePlan(writeCtx, meta, p, done && p.GetKind() != adminv1.PlanKind_PLAN_KIND_REMOVE); err != nil {
		return err
	}
	if done {
		s.log.Info("membership change is done", "kind", kindName(p.GetKind()), "changed_node", p.GetNode())
		return nil
	}
	// What follows the steps just done is for the next round, which is due now.
	s.duePlans()
	return problem
}

// duePlans wakes who carries out the plans.
func (s *Server) duePlans() {
	select {
	case s.plansDue <- struct{}{}:
	default:
	}
}

// problemText shortens the error of a step to what a person needs.
func problemText(err error) string {
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}

func actionName(a adminv1.StepAction) string {
	return strings.ToLower(strings.TrimPrefix(a.String(), "STEP_ACTION_"))
}

func kindName(k adminv1.PlanKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "PLAN_KIND_"))
}
