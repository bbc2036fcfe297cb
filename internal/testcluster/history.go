package testcluster

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// history is what the clients did and saw, the input of the linearizability
// check. Its methods may be called from any goroutine.
type history struct {
	// stamp orders calls and returns. Virtual time does not: much happens at one
	// instant of it.
	stamp atomic.Int64

	mu         sync.Mutex
	operations []operation
}

// modelKind names the model that an operation belongs to.
type modelKind string

const (
	modelRegister modelKind = "register"
	modelSet      modelKind = "set"
)

// operation is one operation of a client on one partition.
type operation struct {
	client    int
	model     modelKind
	partition string
	input     any
	output    any // nil: uncertain, it may take effect at any later time or never
	call      int64
	ret       int64
}

// now returns the next stamp.
func (h *history) now() int64 { return h.stamp.Add(1) }

// add records an operation that ended.
func (h *history) add(o operation) {
	if o.output == nil {
		o.ret = math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, o)
}

// keys hands out the names that clients share. A name is used for a bounded
// number of operations, since checking takes exponential time in the worst case.
type keys struct {
	mu   sync.Mutex
	uses map[string]int
}

// operationsPerKey bounds the operations on one key or set.
const operationsPerKey = 36

// use returns the name that base has now, and how often it was used before.
func (k *keys) use(base string) (name string, use int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.uses[base]
	k.uses[base] = n + 1
	return keyName(base, n/operationsPerKey), n % operationsPerKey
}

// keyName is the n-th name of base.
func keyName(base string, n int) string { return fmt.Sprintf("%s.%d", base, n) }
