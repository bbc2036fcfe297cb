package kv

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// Bounds of the format. Apply refuses what is over them, so they decide what a
// command does and must be the same on every replica for ever: they are
// constants, and a node's Limits, which an operator may change node by node,
// only apply before a command is proposed.
const (
	// MaxKeyBytes bounds a key.
	MaxKeyBytes = 32 << 10
	// MaxValueBytes bounds a value.
	MaxValueBytes = 16 << 20
	// MaxCommandBytes bounds an encoded command.
	MaxCommandBytes = 32 << 20
	// MaxOperations bounds the compares of a command, and the operations of one
	// branch: each costs far more memory than its bytes in the log.
	MaxOperations = 65_536
	// MaxResultBytes bounds what the gets of a Txn return together, so that the
	// answer fits a gRPC message of 8 MiB.
	MaxResultBytes = 4 << 20
)

// Limits bound what a node proposes. Zero fields take the defaults.
type Limits struct {
	// KeyBytes is the largest key. Default 4 KiB, at most MaxKeyBytes.
	KeyBytes int
	// ValueBytes is the largest value. Default 1 MiB, at most MaxValueBytes.
	ValueBytes int
	// TxnBytes is the largest Txn, Batch or registry write, as encoded. Default
	// 2 MiB, at most MaxCommandBytes.
	TxnBytes int
}

// EnsureDefaults fills zero fields.
func (l *Limits) EnsureDefaults() {
	if l.KeyBytes == 0 {
		l.KeyBytes = 4 << 10
	}
	if l.ValueBytes == 0 {
		l.ValueBytes = 1 << 20
	}
	if l.TxnBytes == 0 {
		l.TxnBytes = 2 << 20
	}
}

// Validate tells which field is out of range.
func (l *Limits) Validate() error {
	for _, f := range []struct {
		name     string
		got, max int
	}{
		{"Limits.KeyBytes", l.KeyBytes, MaxKeyBytes},
		{"Limits.ValueBytes", l.ValueBytes, MaxValueBytes},
		{"Limits.TxnBytes", l.TxnBytes, MaxCommandBytes},
	} {
		if f.got < 0 || f.got > f.max {
			return fmt.Errorf("kv: %s is %d, must be 0 (default) to %d", f.name, f.got, f.max)
		}
	}
	return nil
}

// formatLimits returns what Apply enforces.
func formatLimits() Limits {
	return Limits{KeyBytes: MaxKeyBytes, ValueBytes: MaxValueBytes, TxnBytes: MaxCommandBytes}
}

// CheckKey checks the key of one record: not empty, not over KeyBytes.
func (l Limits) CheckKey(key []byte) error {
	if len(key) == 0 {
		return invalidf("the key is empty")
	}
	return l.within("key", len(key), l.KeyBytes)
}

// CheckPut checks a put.
func (l Limits) CheckPut(key, value []byte) error {
	if err := l.CheckKey(key); err != nil {
		return err
	}
	return l.within("value", len(value), l.ValueBytes)
}

// CheckRange checks the bounds of a range, either of which may be empty.
func (l Limits) CheckRange(start, end []byte) error {
	if err := l.within("range start", len(start), l.KeyBytes); err != nil {
		return err
	}
	return l.within("range end", len(end), l.KeyBytes)
}

// CheckSession checks a client session reference; nil is none.
func (l Limits) CheckSession(ref *kvv1.ClientSessionRef) error {
	if ref != nil && ref.GetSequence() == 0 {
		return invalidf("the sequence in a client session starts at 1")
	}
	return nil
}

// CheckOperation checks one write as a client sends it. The error matches
// ErrInvalid and, where a limit is broken, is a *LimitError.
func (l Limits) CheckOperation(op *kvv1.Operation) error {
	switch o := op.GetOperation().(type) {
	case *kvv1.Operation_Put:
		return l.CheckPut(o.Put.GetKey(), o.Put.GetValue())
	case *kvv1.Operation_Delete:
		return l.CheckKey(o.Delete.GetKey())
	case *kvv1.Operation_DeleteRange:
		return l.CheckRange(o.DeleteRange.GetStart(), o.DeleteRange.GetEnd())
	case *kvv1.Operation_Txn:
		return l.checkTxn(o.Txn)
	case *kvv1.Operation_Batch:
		return l.checkBatch(o.Batch)
	}
	return invalidf("the operation is none this release knows")
}

// CheckCommand checks a whole command, as Apply does with the bounds of the
// format.
func (l Limits) CheckCommand(c *kvv1.Command) error {
	if err := l.CheckSession(c.GetSession()); err != nil {
		return err
	}
	switch o := c.GetCommand().(type) {
	case *kvv1.Command_Put:
		return l.CheckPut(o.Put.GetKey(), o.Put.GetValue())
	case *kvv1.Command_Delete:
		return l.CheckKey(o.Delete.GetKey())
	case *kvv1.Command_DeleteRange:
		return l.CheckRange(o.DeleteRange.GetStart(), o.DeleteRange.GetEnd())
	case *kvv1.Command_Txn:
		return l.checkTxn(o.Txn)
	case *kvv1.Command_Batch:
		return l.checkBatch(o.Batch)
	case *kvv1.Command_RegistryWrite:
		if err := l.within("registry write", proto.Size(o.RegistryWrite), l.TxnBytes); err != nil {
			return err
		}
		if err := l.checkCompares(o.RegistryWrite.GetCompares()); err != nil {
			return err
		}
		return l.checkOperations(o.RegistryWrite.GetOperations())
	case *kvv1.Command_OpenClientSession:
		if ttl := o.OpenClientSession.GetTimeToLiveMs(); ttl > maxSessionTTLMillis {
			return invalidf("a client session's time to live of %d ms is over %d ms", ttl, maxSessionTTLMillis)
		}
		return noSession(c)
	case *kvv1.Command_CloseClientSession:
		return noSession(c)
	case *kvv1.Command_SetFeedMode:
		switch o.SetFeedMode.GetMode() {
		case kvv1.FeedMode_FEED_MODE_KEYS, kvv1.FeedMode_FEED_MODE_VALUES:
			return noSession(c)
		}
		return invalidf("feed mode %d is none this release knows", o.SetFeedMode.GetMode())
	case *kvv1.Command_TakeDigest:
		return noSession(c)
	}
	return invalidf("the command is none this release knows")
}

// noSession refuses a client session reference where there is nothing to
// deduplicate: the command opens or closes a client session itself, or may be
// repeated freely.
func noSession(c *kvv1.Command) error {
	if c.GetSession() != nil {
		return invalidf("this command takes no client session")
	}
	return nil
}

func (l Limits) checkTxn(t *kvv1.Txn) error {
	if err := l.within("transaction", proto.Size(t), l.TxnBytes); err != nil {
		return err
	}
	if err := l.checkCompares(t.GetCompares()); err != nil {
		return err
	}
	for _, branch := range [][]*kvv1.TxnOperation{t.GetSuccess(), t.GetFailure()} {
		if err := l.within("number of operations", len(branch), MaxOperations); err != nil {
			return err
		}
		for _, op := range branch {
			if err := l.checkTxnOperation(op); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l Limits) checkTxnOperation(op *kvv1.TxnOperation) error {
	switch o := op.GetOperation().(type) {
	case *kvv1.TxnOperation_Put:
		return l.CheckPut(o.Put.GetKey(), o.Put.GetValue())
	case *kvv1.TxnOperation_Delete:
		return l.CheckKey(o.Delete.GetKey())
	case *kvv1.TxnOperation_DeleteRange:
		return l.CheckRange(o.DeleteRange.GetStart(), o.DeleteRange.GetEnd())
	case *kvv1.TxnOperation_Get:
		return l.CheckKey(o.Get.GetKey())
	}
	return invalidf("a step of the transaction is none this release knows")
}

func (l Limits) checkCompares(compares []*kvv1.Compare) error {
	if err := l.within("number of compares", len(compares), MaxOperations); err != nil {
		return err
	}
	for _, c := range compares {
		if err := l.CheckKey(c.GetKey()); err != nil {
			return err
		}
		switch o := c.GetCondition().(type) {
		case *kvv1.Compare_ValueEquals, *kvv1.Compare_Exists:
		case *kvv1.Compare_Revision:
			op := o.Revision.GetOperator()
			if op < kvv1.RevisionCompare_OPERATOR_EQUAL || op > kvv1.RevisionCompare_OPERATOR_GREATER {
				return invalidf("revision operator %d is none this release knows", op)
			}
		default:
			return invalidf("a compare has no condition this release knows")
		}
	}
	return nil
}

func (l Limits) checkBatch(b *kvv1.Batch) error {
	if err := l.within("batch", proto.Size(b), l.TxnBytes); err != nil {
		return err
	}
	return l.checkOperations(b.GetOperations())
}

func (l Limits) checkOperations(ops []*kvv1.BatchOperation) error {
	if err := l.within("number of operations", len(ops), MaxOperations); err != nil {
		return err
	}
	for _, op := range ops {
		var err error
		switch o := op.GetOperation().(type) {
		case *kvv1.BatchOperation_Put:
			err = l.CheckPut(o.Put.GetKey(), o.Put.GetValue())
		case *kvv1.BatchOperation_Delete:
			err = l.CheckKey(o.Delete.GetKey())
		case *kvv1.BatchOperation_DeleteRange:
			err = l.CheckRange(o.DeleteRange.GetStart(), o.DeleteRange.GetEnd())
		default:
			err = invalidf("a write of the batch is none this release knows")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// within returns a *LimitError where size is over limit.
func (l Limits) within(what string, size, limit int) error {
	if size > limit {
		return &LimitError{What: what, Size: size, Limit: limit}
	}
	return nil
}
