package testcluster

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// registerKind is an operation on one record.
type registerKind string

const (
	registerPut    registerKind = "put"
	registerGet    registerKind = "get"
	registerDelete registerKind = "delete"
	// registerCompare puts if the record has a revision, else reads.
	registerCompare registerKind = "compare"
	// registerSwap reads and puts at once.
	registerSwap registerKind = "swap"
)

// registerInput is what a client asked for. Values are unique.
type registerInput struct {
	kind     registerKind
	value    string // put, compare, swap
	revision uint64 // compare: of the record, 0 for none
	// written is the revision of an uncertain write if somebody has read it,
	// else one that nobody knows; checkHistory fills it in.
	written uint64
}

// registerOutput is what a client was answered.
type registerOutput struct {
	written   uint64 // revision of the operation, 0 for get
	succeeded bool   // compare
	found     bool   // get, delete, swap, compare that failed: there was a record
	value     string // get, swap, compare that failed: its value
	revision  uint64 // and its revision
}

// registerState is a record; the zero value is none.
type registerState struct {
	value    string
	revision uint64
}

// unseenRevision and those above it stand for revisions that no client has seen.
const unseenRevision = 1 << 63

// registerStep is the sequential meaning of a record. output is nil for an
// operation whose outcome the client does not know.
func registerStep(s registerState, in registerInput, out *registerOutput) (bool, registerState) {
	exists := s != registerState{}
	after := registerState{in.value, in.written}
	if out != nil {
		after.revision = out.written
		// Revisions rise with the order of application.
		if in.kind != registerGet && s.revision < unseenRevision && out.written <= s.revision {
			return false, s
		}
	}
	read := func() bool {
		return out.found == exists && out.value == s.value && out.revision == s.revision
	}
	switch in.kind {
	case registerPut:
		return true, after
	case registerGet:
		return read(), s
	case registerDelete:
		return out == nil || out.found == exists, registerState{}
	case registerCompare:
		holds := s.revision == in.revision
		switch {
		case out != nil && out.succeeded != holds:
			return false, s
		case holds:
			return true, after
		default:
			return out == nil || read(), s
		}
	case registerSwap:
		return out == nil || read(), after
	}
	return false, s
}

// setInput adds elements (bits), clears the set, or reads it if both are zero.
type setInput struct {
	add   uint64
	clear bool
}

// setOutput is the elements that were read.
type setOutput struct{ elements uint64 }

// setStep is the sequential meaning of a set.
func setStep(s uint64, in setInput, out *setOutput) (bool, uint64) {
	switch {
	case in.clear:
		return true, 0
	case in.add != 0:
		return true, s | in.add
	default:
		return out.elements == s, s
	}
}

func registerModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return registerState{} },
		Step: func(state, input, output any) (bool, any) {
			out, _ := output.(*registerOutput)
			return registerStep(state.(registerState), input.(registerInput), out)
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
		DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
	}
}

func setModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return uint64(0) },
		Step: func(state, input, output any) (bool, any) {
			out, _ := output.(*setOutput)
			return setStep(state.(uint64), input.(setInput), out)
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
		DescribeState:     func(state any) string { return fmt.Sprintf("%b", state) },
	}
}

// check tells every partition that is not linearizable, or that could not be
// decided within limit (of real time), which is as bad.
func (h *history) check(limit time.Duration) (problems []error) {
	type partitionKey struct {
		model modelKind
		name  string
	}
	partitions := make(map[partitionKey][]operation)
	for _, o := range h.operations {
		key := partitionKey{o.model, o.partition}
		partitions[key] = append(partitions[key], o)
	}
	order := slices.SortedFunc(maps.Keys(partitions), func(a, b partitionKey) int {
		return cmp.Or(cmp.Compare(a.model, b.model), cmp.Compare(a.name, b.name))
	})
	for _, key := range order {
		model := registerModel()
		if key.model == modelSet {
			model = setModel()
		}
		list := partitions[key]
		switch porcupine.CheckOperationsTimeout(model, toPorcupine(list), limit) {
		case porcupine.Ok:
		case porcupine.Unknown:
			problems = append(problems, fmt.Errorf("%s %s: not decided within %v over %d operations", key.model, key.name, limit, len(list)))
		default:
			problems = append(problems, fmt.Errorf("%s %s is not linearizable:\n%s", key.model, key.name, describe(list)))
		}
	}
	return problems
}

// describe lists operations by their call.
func describe(list []operation) string {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b operation) int { return cmp.Compare(a.call, b.call) })
	s := ""
	for _, o := range list {
		ret, output := fmt.Sprint(o.ret), fmt.Sprintf("%+v", o.output)
		if o.output == nil {
			ret, output = "open", "uncertain"
		}
		s += fmt.Sprintf("  client %d, %d to %s: %+v -> %s\n", o.client, o.call, ret, o.input, output)
	}
	return s
}

// toPorcupine converts the operations of one partition.
//
// An uncertain write has no known revision. Values are unique, so whoever read
// the value has seen its revision; a revision that nobody has seen cannot be
// compared with either, and any unique one will do.
func toPorcupine(list []operation) []porcupine.Operation {
	saw := observe(list)
	result := make([]porcupine.Operation, 0, len(list))
	for i, o := range list {
		if o.output == nil && saw.never(o.input) {
			continue
		}
		if in, ok := o.input.(registerInput); ok && o.output == nil {
			if in.written = saw.revisions[in.value]; in.written == 0 {
				in.written = math.MaxUint64 - uint64(i)
			}
			o.input = in
		}
		result = append(result, porcupine.Operation{ClientId: o.client, Input: o.input, Output: o.output, Call: o.call, Return: o.ret})
	}
	return result
}

// observed is what the answers in one partition show.
type observed struct {
	revisions map[string]uint64 // of values that were read
	existence bool              // a delete told that there was a record
	elements  []uint64          // sets that were read
}

func observe(list []operation) observed {
	saw := observed{revisions: make(map[string]uint64)}
	for _, o := range list {
		switch out := o.output.(type) {
		case *registerOutput:
			if out.value != "" {
				saw.revisions[out.value] = out.revision
			}
			saw.existence = saw.existence || o.input.(registerInput).kind == registerDelete && out.found
		case *setOutput:
			if o.input == (setInput{}) {
				saw.elements = append(saw.elements, out.elements)
			}
		}
	}
	return saw
}

// never tells that nothing shows an uncertain write, so that the history is
// linearizable with it if and only if it is without: between its effect and the
// next write over it stands no answer that depends on it. The check takes
// exponential time in the number of uncertain operations; leaving these out is
// what keeps it short.
func (saw *observed) never(input any) bool {
	switch in := input.(type) {
	case registerInput:
		_, read := saw.revisions[in.value]
		return !read && !saw.existence && (in.kind == registerPut || in.kind == registerSwap)
	case setInput:
		// A read after it, and before a clear, holds all of its elements.
		return in.add != 0 && !slices.ContainsFunc(saw.elements, func(e uint64) bool { return e&in.add == in.add })
	}
	return false
}
