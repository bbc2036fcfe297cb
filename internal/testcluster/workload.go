package testcluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
)

// Clients of a run.
const (
	plainClients   = 5
	sessionClients = 2
	// sharedKeys and sharedSets are the records and sets clients meet on.
	sharedKeys = 4
	sharedSets = 2
)

// startLoad starts the clients.
func startLoad(ctx context.Context, c *cluster, h *history) *load {
	l := &load{c: c, history: h, ctx: ctx, stopped: make(chan struct{}), keys: keys{uses: make(map[string]int)}}
	for i := range plainClients + sessionClients {
		cl := &client{
			load: l, number: i, random: rand.New(rand.NewPCG(c.plan.Seed, uint64(i)+1000)),
			revisions: make(map[string]uint64),
		}
		loop := cl.work
		if i >= plainClients {
			loop = (&sessionClient{client: cl}).work
		}
		l.clients.Go(loop)
	}
	quiet := &client{load: l, number: plainClients + sessionClients, random: rand.New(rand.NewPCG(c.plan.Seed, 999))}
	l.clients.Go(quiet.writeMeta)
	return l
}

// stop ends the clients and waits for them.
func (l *load) stop() {
	close(l.stopped)
	l.clients.Wait()
}

// work is the loop of a plain client.
func (cl *client) work() {
	kinds := []weighted[func()]{
		{cl.put, 24}, {cl.getOne, 26}, {cl.delete, 5}, {cl.compare, 13}, {cl.batch, 8},
		{cl.addToSet, 8}, {cl.readSet, 9}, {cl.clearSet, 1}, {cl.readOwnWrite, 6},
	}
	for cl.load.running() {
		choose(cl.random, kinds)()
		cl.load.c.checker.count(func(t *Totals) { t.Operations++ })
		if !pause(cl.load.ctx, time.Duration(5+cl.random.IntN(80))*time.Millisecond) {
			return
		}
	}
}

// writeMeta writes to the meta group now and then: its votes and entries stand
// in segments that the data group fills and would like to free.
func (cl *client) writeMeta() {
	for cl.load.running() {
		cl.write(raftnode.MetaGroup, func() []byte {
			id, value := cl.value()
			return cl.encode(kv.EncodeRegistryWrite(nil, &kvv1.RegistryWrite{Operations: []*kvv1.BatchOperation{putOf("meta/"+id, value)}}))
		})
		if !pause(cl.load.ctx, time.Duration(2000+cl.random.IntN(4000))*time.Millisecond) {
			return
		}
	}
}

// encode takes what an encoder returned.
func (cl *client) encode(command []byte, err error) []byte {
	if err != nil {
		cl.load.c.checker.violation("encode a command: %v", err)
	}
	return command
}

func putOf(key string, value []byte) *kvv1.BatchOperation {
	return &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_Put{Put: &kvv1.Put{Key: []byte(key), Value: value}}}
}

// sharedKey returns the present name of a key that clients share.
func (cl *client) sharedKey() string {
	name, _ := cl.load.keys.use("register/" + strconv.Itoa(cl.random.IntN(sharedKeys)))
	return name
}

// record adds a write on registers to the history, unless it was refused.
func (cl *client) record(call int64, keys []string, in []registerInput, answer *kvv1.OperationResult, known outcome, out registerOutput) {
	if known == refused {
		return
	}
	ret := cl.load.history.now()
	for i, key := range keys {
		o := operation{client: cl.number, model: modelRegister, partition: key, input: in[i], call: call, ret: ret}
		if known == applied {
			out := out
			out.written = answer.GetRevision()
			o.output = &out
			cl.revisions[key] = out.written
		}
		cl.load.history.add(o)
	}
}

func (cl *client) put() {
	key, call, id := cl.sharedKey(), cl.load.history.now(), ""
	answer, known := cl.write(raftnode.FirstDataGroup, func() []byte {
		var value []byte
		id, value = cl.value()
		return kv.EncodePut(nil, []byte(key), value, nil)
	})
	cl.record(call, []string{key}, []registerInput{{kind: registerPut, value: id}}, answer, known, registerOutput{})
}

func (cl *client) delete() {
	key, call := cl.sharedKey(), cl.load.history.now()
	answer, known := cl.write(raftnode.FirstDataGroup, func() []byte {
		// A second, blind delete makes the command unique.
		id, _ := cl.value()
		return cl.encode(kv.EncodeTxn(nil, &kvv1.Txn{Success: []*kvv1.TxnOperation{
			{Operation: &kvv1.TxnOperation_Delete{Delete: &kvv1.Delete{Key: []byte(key)}}},
			{Operation: &kvv1.TxnOperation_Delete{Delete: &kvv1.Delete{Key: []byte("nothing/" + id)}}},
		}}, nil))
	})
	out := registerOutput{}
	if known == applied {
		out.found = answer.GetTxn()[0].GetExisted()
	}
	cl.record(call, []string{key}, []registerInput{{kind: registerDelete}}, answer, known, out)
	delete(cl.revisions, key)
}

// batch puts two records at once.
func (cl *client) batch() {
	first, second := cl.sharedKey(), cl.sharedKey()
	if first == second {
		return
	}
	call := cl.load.history.now()
	var ids [2]string
	answer, known := cl.write(raftnode.FirstDataGroup, func() []byte {
		var values [2][]byte
		ids[0], values[0] = cl.value()
		ids[1], values[1] = cl.value()
		return cl.encode(kv.EncodeBatch(nil, &kvv1.Batch{Operations: []*kvv1.BatchOperation{putOf(first, values[0]), putOf(second, values[1])}}, nil))
	})
	cl.record(call, []string{first, second}, []registerInput{{kind: registerPut, value: ids[0]}, {kind: registerPut, value: ids[1]}}, answer, known, registerOutput{})
}

// compare puts a record if it still has the revision this client saw last.
func (cl *client) compare() {
	key := cl.sharedKey()
	expected, call, id := cl.revisions[key], cl.load.history.now(), ""
	answer, known := cl.write(raftnode.FirstDataGroup, func() []byte {
		var value []byte
		id, value = cl.value()
		return cl.encode(kv.EncodeTxn(nil, &kvv1.Txn{
			Compares: []*kvv1.Compare{{Key: []byte(key), Condition: &kvv1.Compare_Revision{Revision: &kvv1.RevisionCompare{
				Operator: kvv1.RevisionCompare_OPERATOR_EQUAL, Revision: expected,
			}}}},
			Success: []*kvv1.TxnOperation{{Operation: &kvv1.TxnOperation_Put{Put: &kvv1.Put{Key: []byte(key), Value: value}}}},
			Failure: []*kvv1.TxnOperation{{Operation: &kvv1.TxnOperation_Get{Get: &kvv1.TxnGet{Key: []byte(key)}}}},
		}, nil))
	})
	out := registerOutput{}
	if known == applied {
		if out.succeeded = answer.GetSucceeded(); !out.succeeded {
			out.setRead(answer.GetTxn()[0].GetRecord())
		}
	}
	cl.record(call, []string{key}, []registerInput{{kind: registerCompare, value: id, revision: expected}}, answer, known, out)
	if known == applied && !out.succeeded {
		cl.revisions[key] = out.revision
	}
}

// setRead fills in a record that was read; nil for none.
func (o *registerOutput) setRead(record *kvv1.KeyValue) {
	if record != nil {
		o.found, o.value, o.revision = true, identity(record.GetValue()), record.GetModRevision()
	}
}

func (cl *client) getOne() { cl.getKey(cl.sharedKey()) }

// getKey reads a record and adds the read to the history.
func (cl *client) getKey(key string) {
	call := cl.load.history.now()
	result, ok := cl.get(key, raftnode.ReadOptions{Level: raftnode.Linearizable})
	if !ok {
		return
	}
	out := &registerOutput{}
	if result.Found {
		out.found, out.value, out.revision = true, identity(result.Record.Value), result.Record.ModRevision
	}
	cl.revisions[key] = out.revision
	cl.load.history.add(operation{
		client: cl.number, model: modelRegister, partition: key, input: registerInput{kind: registerGet},
		output: out, call: call, ret: cl.load.history.now(),
	})
}

// readOwnWrite puts a record that only this client writes, and reads it at some
// node, as old as it is, but not older than the write.
func (cl *client) readOwnWrite() {
	key, id := fmt.Sprintf("own/%d", cl.number), ""
	answer, known := cl.write(raftnode.FirstDataGroup, func() []byte {
		var value []byte
		id, value = cl.value()
		return kv.EncodePut(nil, []byte(key), value, nil)
	})
	if known != applied {
		return
	}
	result, ok := cl.get(key, raftnode.ReadOptions{Level: raftnode.Stale, MinIndex: answer.GetRevision() >> 16})
	if ok && (!result.Found || identity(result.Record.Value) != id && result.Record.ModRevision <= answer.GetRevision()) {
		cl.load.c.checker.violation("client %d wrote %s at revision %d and read %q of revision %d from an index that has it",
			cl.number, id, answer.GetRevision(), identity(result.Record.Value), result.Record.ModRevision)
	}
}

// sharedSet returns the present name of a set and an element nobody added yet.
func (cl *client) sharedSet() (name string, element int) {
	return cl.load.keys.use("set/" + strconv.Itoa(cl.random.IntN(sharedSets)))
}

// addToSet adds one to three elements at once.
func (cl *client) addToSet() {
	set, first := cl.sharedSet()
	count := 1 + cl.random.IntN(3)
	call := cl.load.history.now()
	var add uint64
	_, known := cl.write(raftnode.FirstDataGroup, func() []byte {
		id, value := cl.value()
		operations := []*kvv1.BatchOperation{putOf("attempt/"+id, nil)}
		for i := range count {
			// The others of a batch have a range of their own.
			element := (first + i*operationsPerKey) % 64
			if i > 0 {
				element = operationsPerKey + (first*2+i)%(64-operationsPerKey)
			}
			add |= 1 << element
			operations = append(operations, putOf(fmt.Sprintf("%s/%02d", set, element), value))
		}
		return cl.encode(kv.EncodeBatch(nil, &kvv1.Batch{Operations: operations}, nil))
	})
	cl.recordSet(call, set, setInput{add: add}, &setOutput{}, known)
}

// clearSet removes all elements.
func (cl *client) clearSet() {
	set, _ := cl.sharedSet()
	call := cl.load.history.now()
	_, known := cl.write(raftnode.FirstDataGroup, func() []byte {
		id, _ := cl.value()
		return cl.encode(kv.EncodeBatch(nil, &kvv1.Batch{Operations: []*kvv1.BatchOperation{
			putOf("attempt/"+id, nil),
			{Operation: &kvv1.BatchOperation_DeleteRange{DeleteRange: &kvv1.DeleteRange{Start: []byte(set + "/"), End: []byte(set + "0")}}},
		}}, nil))
	})
	cl.recordSet(call, set, setInput{clear: true}, &setOutput{}, known)
}

func (cl *client) recordSet(call int64, set string, in setInput, out *setOutput, known outcome) {
	if known == refused {
		return
	}
	o := operation{client: cl.number, model: modelSet, partition: set, input: in, call: call, ret: cl.load.history.now()}
	if known == applied {
		o.output = out
	}
	cl.load.history.add(o)
}

func (cl *client) readSet() {
	set, _ := cl.sharedSet()
	cl.readSetOf(set)
}

// readSetOf reads a whole set and adds the read to the history.
func (cl *client) readSetOf(set string) {
	call := cl.load.history.now()
	r, store := cl.readAt(raftnode.ReadOptions{Level: raftnode.Linearizable})
	if store == nil {
		return
	}
	result, err := store.Range(cl.load.ctx, kv.RangeOptions{Start: []byte(set + "/"), End: []byte(set + "0"), KeysOnly: true})
	if err != nil || r.isCrashed() {
		return
	}
	out := &setOutput{}
	for _, record := range result.Records {
		element, err := strconv.Atoi(string(record.Key[len(set)+1:]))
		if err != nil || element > 63 {
			cl.load.c.checker.violation("set %s holds %q", set, record.Key)
			return
		}
		out.elements |= 1 << element
	}
	cl.recordSet(call, set, setInput{}, out, applied)
}
