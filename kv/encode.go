package kv

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// The encoders append a marshalled kvv1.Command to dst and return it: what a
// log entry carries. A nil session is none. They check nothing; Limits does.

// EncodePut appends the command that sets key to value. It allocates only where
// dst lacks room.
func EncodePut(dst, key, value []byte, session *kvv1.ClientSessionRef) []byte {
	size := sizeBytes(fieldKey, key) + sizeBytes(fieldValue, value)
	dst = appendSession(dst, session)
	dst = protowire.AppendTag(dst, fieldPut, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size))
	dst = appendBytes(dst, fieldKey, key)
	return appendBytes(dst, fieldValue, value)
}

// EncodeDelete appends the command that deletes key.
func EncodeDelete(dst, key []byte, session *kvv1.ClientSessionRef) []byte {
	dst = appendSession(dst, session)
	dst = protowire.AppendTag(dst, fieldDelete, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(sizeBytes(fieldKey, key)))
	return appendBytes(dst, fieldKey, key)
}

// EncodeDeleteRange appends the command that deletes [start, end); an empty end
// means no upper bound.
func EncodeDeleteRange(dst, start, end []byte, session *kvv1.ClientSessionRef) []byte {
	dst = appendSession(dst, session)
	dst = protowire.AppendTag(dst, fieldRange, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(sizeBytes(fieldKey, start)+sizeBytes(fieldValue, end)))
	dst = appendBytes(dst, fieldKey, start)
	return appendBytes(dst, fieldValue, end)
}

// EncodeTxn appends the command that runs a transaction.
func EncodeTxn(dst []byte, txn *kvv1.Txn, session *kvv1.ClientSessionRef) ([]byte, error) {
	return EncodeCommand(dst, &kvv1.Command{Session: session, Command: &kvv1.Command_Txn{Txn: txn}})
}

// EncodeBatch appends the command that runs a batch.
func EncodeBatch(dst []byte, batch *kvv1.Batch, session *kvv1.ClientSessionRef) ([]byte, error) {
	return EncodeCommand(dst, &kvv1.Command{Session: session, Command: &kvv1.Command_Batch{Batch: batch}})
}

// EncodeOperation appends the command of one write as a client sends it. The
// error matches ErrInvalid where the operation is none this release knows.
func EncodeOperation(dst []byte, op *kvv1.Operation, session *kvv1.ClientSessionRef) ([]byte, error) {
	switch o := op.GetOperation().(type) {
	case *kvv1.Operation_Put:
		return EncodePut(dst, o.Put.GetKey(), o.Put.GetValue(), session), nil
	case *kvv1.Operation_Delete:
		return EncodeDelete(dst, o.Delete.GetKey(), session), nil
	case *kvv1.Operation_DeleteRange:
		return EncodeDeleteRange(dst, o.DeleteRange.GetStart(), o.DeleteRange.GetEnd(), session), nil
	case *kvv1.Operation_Txn:
		return EncodeTxn(dst, o.Txn, session)
	case *kvv1.Operation_Batch:
		return EncodeBatch(dst, o.Batch, session)
	}
	return dst, invalidf("the operation is none this release knows")
}

// EncodeOpenClientSession appends the command that opens a client session with
// an idle time to live, rounded up to milliseconds; 0 or less is the default of
// one hour. Its id is the revision of the command.
func EncodeOpenClientSession(dst []byte, ttl time.Duration) ([]byte, error) {
	ms := max(0, (ttl+time.Millisecond-1)/time.Millisecond)
	open := &kvv1.OpenClientSession{TimeToLiveMs: uint64(ms)}
	return EncodeCommand(dst, &kvv1.Command{Command: &kvv1.Command_OpenClientSession{OpenClientSession: open}})
}

// EncodeCloseClientSession appends the command that closes a client session.
func EncodeCloseClientSession(dst []byte, id uint64) ([]byte, error) {
	end := &kvv1.CloseClientSession{Id: id}
	return EncodeCommand(dst, &kvv1.Command{Command: &kvv1.Command_CloseClientSession{CloseClientSession: end}})
}

// EncodeSetFeedMode appends the command that changes the feed mode.
func EncodeSetFeedMode(dst []byte, mode kvv1.FeedMode) ([]byte, error) {
	set := &kvv1.SetFeedMode{Mode: mode}
	return EncodeCommand(dst, &kvv1.Command{Command: &kvv1.Command_SetFeedMode{SetFeedMode: set}})
}

// EncodeTakeDigest appends the command that takes a digest.
func EncodeTakeDigest(dst []byte) ([]byte, error) {
	return EncodeCommand(dst, &kvv1.Command{Command: &kvv1.Command_TakeDigest{TakeDigest: &kvv1.TakeDigest{}}})
}

// EncodeRegistryWrite appends the command that writes the registry space.
func EncodeRegistryWrite(dst []byte, write *kvv1.RegistryWrite) ([]byte, error) {
	return EncodeCommand(dst, &kvv1.Command{Command: &kvv1.Command_RegistryWrite{RegistryWrite: write}})
}

// EncodeCommand appends any command.
func EncodeCommand(dst []byte, c *kvv1.Command) ([]byte, error) {
	out, err := proto.MarshalOptions{}.MarshalAppend(dst, c)
	if err != nil {
		return dst, fmt.Errorf("kv: encode a command: %w", err)
	}
	return out, nil
}

// appendSession appends the session field of a Command.
func appendSession(dst []byte, ref *kvv1.ClientSessionRef) []byte {
	if ref == nil {
		return dst
	}
	size := sizeVarint(fieldID, ref.GetId()) + sizeVarint(fieldSequence, ref.GetSequence()) + sizeVarint(fieldMark, ref.GetLowWaterMark())
	dst = protowire.AppendTag(dst, fieldSession, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size))
	dst = appendVarint(dst, fieldID, ref.GetId())
	dst = appendVarint(dst, fieldSequence, ref.GetSequence())
	return appendVarint(dst, fieldMark, ref.GetLowWaterMark())
}

// Fields that hold their zero value are left out, as proto3 has it.

func sizeBytes(field protowire.Number, b []byte) int {
	if len(b) == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeBytes(len(b))
}

func appendBytes(dst []byte, field protowire.Number, b []byte) []byte {
	if len(b) == 0 {
		return dst
	}
	return protowire.AppendBytes(protowire.AppendTag(dst, field, protowire.BytesType), b)
}

func sizeVarint(field protowire.Number, v uint64) int {
	if v == 0 {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeVarint(v)
}

func appendVarint(dst []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), v)
}
