package kv

import (
	"bytes"
	"fmt"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// command applies one decoded command and returns its result data.
func (w *writer) command(c *command) ([]byte, error) {
	if c.invalid != nil {
		return failureData(kvv1.Reason_REASON_INVALID, c.invalid.Error())
	}
	if c.session.present {
		return w.inSession(c)
	}
	return w.execute(c)
}

// execute carries out a valid command; the client session has been seen to.
func (w *writer) execute(c *command) ([]byte, error) {
	if c.isPut {
		return nil, w.put(spaceRecords, c.key, c.value)
	}
	switch o := c.message.GetCommand().(type) {
	case *kvv1.Command_Delete:
		existed, err := w.deleteExisting(spaceRecords, o.Delete.GetKey())
		if err != nil || !existed {
			return nil, err
		}
		return successData(&kvv1.OperationResult{Revision: w.revision, Existed: true})
	case *kvv1.Command_DeleteRange:
		return nil, w.deleteRange(spaceRecords, o.DeleteRange.GetStart(), o.DeleteRange.GetEnd())
	case *kvv1.Command_Txn:
		return w.txn(o.Txn)
	case *kvv1.Command_Batch:
		return nil, w.operations(spaceRecords, o.Batch.GetOperations())
	case *kvv1.Command_RegistryWrite:
		return w.registryWrite(o.RegistryWrite)
	case *kvv1.Command_OpenClientSession:
		return nil, w.openSession(o.OpenClientSession.GetTimeToLiveMs())
	case *kvv1.Command_CloseClientSession:
		return w.closeSession(o.CloseClientSession.GetId())
	case *kvv1.Command_SetFeedMode:
		// index looked at it already.
		return nil, nil
	case *kvv1.Command_TakeDigest:
		w.digest = true
		return nil, nil
	}
	return nil, fmt.Errorf("kv: a command passed its check but is not known: %T", c.message.GetCommand())
}

// operations runs blind writes in order.
func (w *writer) operations(space string, ops []*kvv1.BatchOperation) error {
	for _, op := range ops {
		var err error
		switch o := op.GetOperation().(type) {
		case *kvv1.BatchOperation_Put:
			err = w.put(space, o.Put.GetKey(), o.Put.GetValue())
		case *kvv1.BatchOperation_Delete:
			err = w.delete(space, o.Delete.GetKey())
		case *kvv1.BatchOperation_DeleteRange:
			err = w.deleteRange(space, o.DeleteRange.GetStart(), o.DeleteRange.GetEnd())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// registryWrite writes the registry space if the compares hold.
func (w *writer) registryWrite(r *kvv1.RegistryWrite) ([]byte, error) {
	holds, err := w.compare(spaceRegistry, r.GetCompares())
	if err != nil {
		return nil, err
	}
	if holds {
		if err := w.operations(spaceRegistry, r.GetOperations()); err != nil {
			return nil, err
		}
	}
	return successData(&kvv1.OperationResult{Revision: w.revision, Succeeded: holds})
}

// txn runs the branch that the compares choose.
func (w *writer) txn(t *kvv1.Txn) ([]byte, error) {
	holds, err := w.compare(spaceRecords, t.GetCompares())
	if err != nil {
		return nil, err
	}
	steps := t.GetSuccess()
	if !holds {
		steps = t.GetFailure()
	}
	size, err := w.resultBound(steps)
	if err != nil {
		return nil, err
	}
	if size > MaxResultBytes {
		err := &LimitError{What: "result of the transaction's gets", Size: size, Limit: MaxResultBytes}
		return failureData(kvv1.Reason_REASON_INVALID, err.Error())
	}
	result := &kvv1.OperationResult{Revision: w.revision, Succeeded: holds}
	result.Txn = make([]*kvv1.TxnOperationResult, 0, len(steps))
	for _, step := range steps {
		answer, err := w.step(step)
		if err != nil {
			return nil, err
		}
		result.Txn = append(result.Txn, answer)
	}
	return successData(result)
}

// step runs one step of a transaction; it sees the steps before it.
func (w *writer) step(step *kvv1.TxnOperation) (*kvv1.TxnOperationResult, error) {
	answer := new(kvv1.TxnOperationResult)
	switch o := step.GetOperation().(type) {
	case *kvv1.TxnOperation_Put:
		return answer, w.put(spaceRecords, o.Put.GetKey(), o.Put.GetValue())
	case *kvv1.TxnOperation_Delete:
		existed, err := w.deleteExisting(spaceRecords, o.Delete.GetKey())
		answer.Existed = existed
		return answer, err
	case *kvv1.TxnOperation_DeleteRange:
		return answer, w.deleteRange(spaceRecords, o.DeleteRange.GetStart(), o.DeleteRange.GetEnd())
	case *kvv1.TxnOperation_Get:
		found, ok, err := w.get(spaceRecords, o.Get.GetKey())
		if err == nil && ok {
			answer.Record = &kvv1.KeyValue{Key: o.Get.GetKey(), Value: found.value, ModRevision: found.revision}
		}
		return answer, err
	}
	return nil, fmt.Errorf("kv: a step passed its check but is not known: %T", step.GetOperation())
}

// resultBound returns an upper bound of what the gets among steps return. It is
// taken before the first step runs, since a batch cannot take a write back: a
// get finds what is there now or what a step before it put.
func (w *writer) resultBound(steps []*kvv1.TxnOperation) (int, error) {
	puts, size := make(map[string]int), 0
	for _, step := range steps {
		switch o := step.GetOperation().(type) {
		case *kvv1.TxnOperation_Put:
			key := string(o.Put.GetKey())
			puts[key] = max(puts[key], len(o.Put.GetValue()))
		case *kvv1.TxnOperation_Get:
			found, _, err := w.get(spaceRecords, o.Get.GetKey())
			if err != nil {
				return 0, err
			}
			size += len(o.Get.GetKey()) + max(len(found.value), puts[string(o.Get.GetKey())])
			if size > MaxResultBytes {
				return size, nil
			}
		}
	}
	return size, nil
}

// compare tells whether all compares hold.
func (w *writer) compare(space string, compares []*kvv1.Compare) (bool, error) {
	for _, c := range compares {
		found, exists, err := w.get(space, c.GetKey())
		if err != nil {
			return false, err
		}
		holds := false
		switch o := c.GetCondition().(type) {
		case *kvv1.Compare_ValueEquals:
			holds = exists && bytes.Equal(found.value, o.ValueEquals)
		case *kvv1.Compare_Exists:
			holds = exists == o.Exists
		case *kvv1.Compare_Revision:
			holds = compareRevision(found.revision, o.Revision)
		}
		if !holds {
			return false, nil
		}
	}
	return true, nil
}

// compareRevision relates a record's revision, 0 for none, to a number.
func compareRevision(revision uint64, c *kvv1.RevisionCompare) bool {
	switch c.GetOperator() {
	case kvv1.RevisionCompare_OPERATOR_EQUAL:
		return revision == c.GetRevision()
	case kvv1.RevisionCompare_OPERATOR_NOT_EQUAL:
		return revision != c.GetRevision()
	case kvv1.RevisionCompare_OPERATOR_LESS:
		return revision < c.GetRevision()
	case kvv1.RevisionCompare_OPERATOR_GREATER:
		return revision > c.GetRevision()
	}
	return false
}
