package testcluster

import (
	"math"
	"testing"
	"time"
)

// TestModels has the check decide small histories, right and wrong ones: a check
// that finds nothing wrong proves nothing.
func TestModels(t *testing.T) {
	put := func(value string, call, ret int64, revision uint64) operation {
		return operation{model: modelRegister, input: registerInput{kind: registerPut, value: value}, output: &registerOutput{written: revision}, call: call, ret: ret}
	}
	lost := func(value string, call int64) operation {
		return operation{model: modelRegister, input: registerInput{kind: registerPut, value: value}, call: call, ret: math.MaxInt64}
	}
	get := func(value string, call, ret int64, revision uint64) operation {
		return operation{model: modelRegister, input: registerInput{kind: registerGet}, output: &registerOutput{found: value != "", value: value, revision: revision}, call: call, ret: ret}
	}
	compare := func(value string, expected uint64, call, ret int64, out registerOutput) operation {
		return operation{model: modelRegister, input: registerInput{kind: registerCompare, value: value, revision: expected}, output: &out, call: call, ret: ret}
	}
	swap := func(value, previous string, revisionBefore uint64, call, ret int64, revision uint64) operation {
		return operation{model: modelRegister, input: registerInput{kind: registerSwap, value: value}, output: &registerOutput{
			written: revision, found: previous != "", value: previous, revision: revisionBefore}, call: call, ret: ret}
	}
	remove := func(existed bool, call, ret int64, revision uint64) operation {
		return operation{model: modelRegister, input: registerInput{kind: registerDelete}, output: &registerOutput{written: revision, found: existed}, call: call, ret: ret}
	}
	set := func(in setInput, elements uint64, call, ret int64) operation {
		return operation{model: modelSet, input: in, output: &setOutput{elements}, call: call, ret: ret}
	}
	lostSet := func(in setInput, call int64) operation {
		return operation{model: modelSet, input: in, call: call, ret: math.MaxInt64}
	}
	for _, test := range []struct {
		name    string
		right   bool
		history []operation
	}{
		{"read what was written", true, []operation{put("a", 1, 2, 10), get("a", 3, 4, 10)}},
		{"read before the write ends", true, []operation{put("a", 1, 4, 10), get("a", 2, 3, 10), get("a", 5, 6, 10)}},
		{"stale read", false, []operation{put("a", 1, 2, 10), put("b", 3, 4, 11), get("a", 5, 6, 10)}},
		{"lost write", false, []operation{put("a", 1, 2, 10), get("", 3, 4, 0)}},
		{"revision of another write", false, []operation{put("a", 1, 2, 10), get("a", 3, 4, 11)}},
		{"revisions that fall", false, []operation{put("a", 1, 2, 10), put("b", 3, 4, 9)}},
		{"uncertain write seen", true, []operation{put("a", 1, 2, 10), lost("b", 3), get("a", 4, 5, 10), get("b", 6, 7, 11)}},
		{"uncertain write never seen", true, []operation{put("a", 1, 2, 10), lost("b", 3), get("a", 4, 5, 10)}},
		{"uncertain write seen and gone", false, []operation{put("a", 1, 2, 10), lost("b", 3), get("b", 4, 5, 11), get("a", 6, 7, 10)}},
		{"uncertain write deleted", true, []operation{lost("a", 1), remove(true, 2, 3, 10)}},
		{"nothing deleted", false, []operation{remove(true, 2, 3, 10)}},
		{"delete", true, []operation{put("a", 1, 2, 10), remove(true, 3, 4, 11), get("", 5, 6, 0)}},
		{"compare holds", true, []operation{put("a", 1, 2, 10), compare("b", 10, 3, 4, registerOutput{written: 11, succeeded: true}), get("b", 5, 6, 11)}},
		{"compare of none", true, []operation{compare("b", 0, 3, 4, registerOutput{written: 11, succeeded: true})}},
		{"compare fails", true, []operation{put("a", 1, 2, 10), compare("b", 9, 3, 4, registerOutput{written: 11, found: true, value: "a", revision: 10}), get("a", 5, 6, 10)}},
		{"compare held twice", false, []operation{put("a", 1, 2, 10), compare("b", 10, 3, 4, registerOutput{written: 11, succeeded: true}), compare("c", 10, 5, 6, registerOutput{written: 12, succeeded: true})}},
		{"compare failed though it held", false, []operation{put("a", 1, 2, 10), compare("b", 10, 3, 4, registerOutput{written: 11, found: true, value: "a", revision: 10})}},
		{"swaps", true, []operation{swap("a", "", 0, 1, 2, 10), swap("b", "a", 10, 3, 4, 11)}},
		{"swap applied twice", false, []operation{swap("a", "", 0, 1, 2, 10), swap("b", "a", 10, 3, 4, 11), swap("c", "a", 12, 5, 6, 13)}},
		{"swap not applied", false, []operation{swap("a", "", 0, 1, 2, 10), swap("b", "", 0, 3, 4, 11)}},
		{"set", true, []operation{set(setInput{add: 3}, 0, 1, 2), set(setInput{}, 3, 3, 4)}},
		{"half a batch", false, []operation{set(setInput{add: 3}, 0, 1, 4), set(setInput{}, 1, 2, 3)}},
		{"uncertain add seen", true, []operation{lostSet(setInput{add: 4}, 1), set(setInput{}, 0, 2, 3), set(setInput{}, 4, 4, 5)}},
		{"uncertain add never seen", true, []operation{lostSet(setInput{add: 4}, 1), set(setInput{}, 0, 2, 3)}},
		{"uncertain add seen and gone", false, []operation{lostSet(setInput{add: 4}, 1), set(setInput{}, 4, 2, 3), set(setInput{}, 0, 4, 5)}},
		{"half an uncertain batch", false, []operation{lostSet(setInput{add: 12}, 1), set(setInput{}, 4, 2, 3)}},
		{"uncertain clear", true, []operation{set(setInput{add: 1}, 0, 1, 2), lostSet(setInput{clear: true}, 3), set(setInput{}, 0, 4, 5)}},
		{"element that came back", false, []operation{set(setInput{add: 1}, 0, 1, 2), set(setInput{clear: true}, 0, 3, 4), set(setInput{}, 1, 5, 6)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := &history{operations: test.history}
			if problems := h.check(10 * time.Second); (len(problems) == 0) != test.right {
				t.Errorf("linearizable: %v, want %v: %v", len(problems) == 0, test.right, problems)
			}
		})
	}
}

// TestPlans: a seed makes one plan, another seed another.
func TestPlans(t *testing.T) {
	seen := map[string]uint64{}
	kinds := map[faultKind]bool{}
	for seed := range uint64(50) {
		p := NewPlan(seed)
		if p.String() != NewPlan(seed).String() {
			t.Errorf("seed %d makes two plans", seed)
		}
		if other, ok := seen[p.String()]; ok {
			t.Errorf("seeds %d and %d make one plan", seed, other)
		}
		seen[p.String()] = seed
		if len(p.steps) < minFaults {
			t.Errorf("seed %d has %d faults", seed, len(p.steps))
		}
		for _, s := range p.steps {
			kinds[s.kind] = true
		}
	}
	for _, w := range faultWeights() {
		if !kinds[w.value] {
			t.Errorf("50 plans have no %q", w.value)
		}
	}
}
