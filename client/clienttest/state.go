package clienttest

import (
	"bytes"
	"maps"
	"slices"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// apply runs a write on the records. It is called with mu held.
func (c *Cluster) apply(w *kvv1.Write) (*kvv1.OperationResult, *kvv1.Failure) {
	if ref := w.GetSession(); ref != nil {
		replies := c.sessions[ref.GetId()]
		if replies == nil {
			return nil, &kvv1.Failure{Reason: kvv1.Reason_REASON_SESSION_EXPIRED, Message: "the client session is unknown"}
		}
		maps.DeleteFunc(replies, func(sequence uint64, _ *kvv1.OperationResult) bool { return sequence < ref.GetLowWaterMark() })
		if reply := replies[ref.GetSequence()]; reply != nil {
			return reply, nil
		}
		reply := c.run(w.GetOperation())
		replies[ref.GetSequence()] = reply
		return reply, nil
	}
	return c.run(w.GetOperation()), nil
}

func (c *Cluster) run(op *kvv1.Operation) *kvv1.OperationResult {
	c.index++
	r := &kvv1.OperationResult{Revision: c.index << 16}
	switch o := op.GetOperation().(type) {
	case *kvv1.Operation_Put:
		c.put(o.Put)
	case *kvv1.Operation_Delete:
		r.Existed = c.remove(o.Delete)
	case *kvv1.Operation_DeleteRange:
		c.removeRange(o.DeleteRange)
	case *kvv1.Operation_Batch:
		for _, step := range o.Batch.GetOperations() {
			switch s := step.GetOperation().(type) {
			case *kvv1.BatchOperation_Put:
				c.put(s.Put)
			case *kvv1.BatchOperation_Delete:
				c.remove(s.Delete)
			case *kvv1.BatchOperation_DeleteRange:
				c.removeRange(s.DeleteRange)
			}
		}
	case *kvv1.Operation_Txn:
		c.txn(o.Txn, r)
	}
	return r
}

func (c *Cluster) txn(txn *kvv1.Txn, r *kvv1.OperationResult) {
	r.Succeeded = !slices.ContainsFunc(txn.GetCompares(), func(compare *kvv1.Compare) bool { return !c.holds(compare) })
	steps := txn.GetFailure()
	if r.Succeeded {
		steps = txn.GetSuccess()
	}
	for _, step := range steps {
		result := &kvv1.TxnOperationResult{}
		switch s := step.GetOperation().(type) {
		case *kvv1.TxnOperation_Put:
			c.put(s.Put)
		case *kvv1.TxnOperation_Delete:
			result.Existed = c.remove(s.Delete)
		case *kvv1.TxnOperation_DeleteRange:
			c.removeRange(s.DeleteRange)
		case *kvv1.TxnOperation_Get:
			result.Record = c.records[string(s.Get.GetKey())]
		}
		r.Txn = append(r.Txn, result)
	}
}

func (c *Cluster) holds(compare *kvv1.Compare) bool {
	record := c.records[string(compare.GetKey())]
	switch condition := compare.GetCondition().(type) {
	case *kvv1.Compare_ValueEquals:
		return record != nil && bytes.Equal(record.GetValue(), condition.ValueEquals)
	case *kvv1.Compare_Exists:
		return (record != nil) == condition.Exists
	case *kvv1.Compare_Revision:
		have, want := record.GetModRevision(), condition.Revision.GetRevision()
		switch condition.Revision.GetOperator() {
		case kvv1.RevisionCompare_OPERATOR_EQUAL:
			return have == want
		case kvv1.RevisionCompare_OPERATOR_NOT_EQUAL:
			return have != want
		case kvv1.RevisionCompare_OPERATOR_LESS:
			return have < want
		case kvv1.RevisionCompare_OPERATOR_GREATER:
			return have > want
		}
	}
	return false
}

func (c *Cluster) put(p *kvv1.Put) {
	c.records[string(p.GetKey())] = &kvv1.KeyValue{Key: p.GetKey(), Value: p.GetValue(), ModRevision: c.index << 16}
}

func (c *Cluster) remove(d *kvv1.Delete) bool {
	_, existed := c.records[string(d.GetKey())]
	delete(c.records, string(d.GetKey()))
	return existed
}

func (c *Cluster) removeRange(d *kvv1.DeleteRange) {
	maps.DeleteFunc(c.records, func(key string, _ *kvv1.KeyValue) bool {
		return inRange([]byte(key), d.GetStart(), d.GetEnd())
	})
}

func inRange(key, start, end []byte) bool {
	return bytes.Compare(key, start) >= 0 && (len(end) == 0 || bytes.Compare(key, end) < 0)
}
