package client

import (
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// Result is what an applied write answered.
type Result struct {
	// Revision of the write; the ModRevision of records it set.
	Revision uint64
	// Existed: Delete found a record.
	Existed bool
	// Succeeded: the compares of a Txn held, so that Success ran.
	Succeeded bool
	// Steps has one answer per operation of the branch of a Txn that ran.
	Steps []StepResult
}

// StepResult is what one operation of a transaction answered.
type StepResult struct {
	// Record that a get found; nil if there is none, and for other operations.
	Record *Record
	// Existed: a delete found a record.
	Existed bool
}

func resultOf(r *kvv1.OperationResult) Result {
	result := Result{Revision: r.GetRevision(), Existed: r.GetExisted(), Succeeded: r.GetSucceeded()}
	for _, step := range r.GetTxn() {
		s := StepResult{Existed: step.GetExisted()}
		if step.GetRecord() != nil {
			record := recordOf(step.GetRecord())
			s.Record = &record
		}
		result.Steps = append(result.Steps, s)
	}
	return result
}

// BatchPut is a put as a part of a Batch.
func BatchPut(key, value []byte) *kvv1.BatchOperation {
	return &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_Put{Put: &kvv1.Put{Key: key, Value: value}}}
}

// BatchDelete is a delete as a part of a Batch.
func BatchDelete(key []byte) *kvv1.BatchOperation {
	return &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_Delete{Delete: &kvv1.Delete{Key: key}}}
}

// BatchDeleteRange is a delete of [start, end) as a part of a Batch.
func BatchDeleteRange(start, end []byte) *kvv1.BatchOperation {
	return &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_DeleteRange{DeleteRange: &kvv1.DeleteRange{Start: start, End: end}}}
}

// TxnPut is a put as a step of a Txn.
func TxnPut(key, value []byte) *kvv1.TxnOperation {
	return &kvv1.TxnOperation{Operation: &kvv1.TxnOperation_Put{Put: &kvv1.Put{Key: key, Value: value}}}
}

// TxnDelete is a delete as a step of a Txn.
func TxnDelete(key []byte) *kvv1.TxnOperation {
	return &kvv1.TxnOperation{Operation: &kvv1.TxnOperation_Delete{Delete: &kvv1.Delete{Key: key}}}
}

// TxnDeleteRange is a delete of [start, end) as a step of a Txn.
func TxnDeleteRange(start, end []byte) *kvv1.TxnOperation {
	return &kvv1.TxnOperation{Operation: &kvv1.TxnOperation_DeleteRange{DeleteRange: &kvv1.DeleteRange{Start: start, End: end}}}
}

// TxnGet is a read as a step of a Txn; it sees the steps before it.
func TxnGet(key []byte) *kvv1.TxnOperation {
	return &kvv1.TxnOperation{Operation: &kvv1.TxnOperation_Get{Get: &kvv1.TxnGet{Key: key}}}
}

// CompareValue holds if the record exists with this value.
func CompareValue(key, value []byte) *kvv1.Compare {
	if value == nil {
		value = []byte{}
	}
	return &kvv1.Compare{Key: key, Condition: &kvv1.Compare_ValueEquals{ValueEquals: value}}
}

// CompareExists holds if the record's existence is as given.
func CompareExists(key []byte, exists bool) *kvv1.Compare {
	return &kvv1.Compare{Key: key, Condition: &kvv1.Compare_Exists{Exists: exists}}
}

// CompareRevision holds if the record's ModRevision relates to revision as the
// operator says; a missing record has 0.
func CompareRevision(key []byte, operator kvv1.RevisionCompare_Operator, revision uint64) *kvv1.Compare {
	return &kvv1.Compare{Key: key, Condition: &kvv1.Compare_Revision{
		Revision: &kvv1.RevisionCompare{Operator: operator, Revision: revision},
	}}
}

// The operations as the write stream carries them.

func putOperation(key, value []byte) *kvv1.Operation {
	return &kvv1.Operation{Operation: &kvv1.Operation_Put{Put: &kvv1.Put{Key: key, Value: value}}}
}

func deleteOperation(key []byte) *kvv1.Operation {
	return &kvv1.Operation{Operation: &kvv1.Operation_Delete{Delete: &kvv1.Delete{Key: key}}}
}

func deleteRangeOperation(start, end []byte) *kvv1.Operation {
	return &kvv1.Operation{Operation: &kvv1.Operation_DeleteRange{DeleteRange: &kvv1.DeleteRange{Start: start, End: end}}}
}

func txnOperation(txn *kvv1.Txn) *kvv1.Operation {
	return &kvv1.Operation{Operation: &kvv1.Operation_Txn{Txn: txn}}
}

func batchOperation(operations []*kvv1.BatchOperation) *kvv1.Operation {
	return &kvv1.Operation{Operation: &kvv1.Operation_Batch{Batch: &kvv1.Batch{Operations: operations}}}
}

// operationName names an operation in errors.
func operationName(op *kvv1.Operation) string {
	switch op.GetOperation().(type) {
	case *kvv1.Operation_Put:
		return "put"
	case *kvv1.Operation_Delete:
		return "delete"
	case *kvv1.Operation_DeleteRange:
		return "delete range"
	case *kvv1.Operation_Txn:
		return "txn"
	default:
		return "batch"
	}
}

// operationKey returns the key of an operation on one key; ok is false for the
// others.
func operationKey(op *kvv1.Operation) (key []byte, ok bool) {
	switch o := op.GetOperation().(type) {
	case *kvv1.Operation_Put:
		return o.Put.GetKey(), true
	case *kvv1.Operation_Delete:
		return o.Delete.GetKey(), true
	}
	return nil, false
}
