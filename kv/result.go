package kv

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// Result data:
//
//	nil                         success, nothing to say but the revision
//	byte 0, OperationResult     success
//	byte 1, Failure             refused by the state; nothing was applied
//
// The second form is also what a client session records, so it carries the
// revision: a repeated command is answered with the revision it was applied at.
const (
	resultSuccess = 0
	resultFailure = 1
)

// DecodeResult returns what the application of a command answered: exactly one
// of an OperationResult, whose revision is always set, and a Failure. The error
// matches ErrCorrupt.
func DecodeResult(r raftnode.Result) (*kvv1.OperationResult, *kvv1.Failure, error) {
	if len(r.Data) == 0 {
		return &kvv1.OperationResult{Revision: r.Revision}, nil, nil
	}
	switch r.Data[0] {
	case resultSuccess:
		result := new(kvv1.OperationResult)
		if err := proto.Unmarshal(r.Data[1:], result); err != nil {
			return nil, nil, fmt.Errorf("%w: an operation result: %w", ErrCorrupt, err)
		}
		if result.GetRevision() == 0 {
			result.Revision = r.Revision
		}
		return result, nil, nil
	case resultFailure:
		failure := new(kvv1.Failure)
		if err := proto.Unmarshal(r.Data[1:], failure); err != nil {
			return nil, nil, fmt.Errorf("%w: a failure: %w", ErrCorrupt, err)
		}
		return nil, failure, nil
	}
	return nil, nil, corruptf("a result of kind %d", r.Data[0])
}

// successData encodes a success that says more than its revision.
func successData(result *kvv1.OperationResult) ([]byte, error) {
	return marshalResult(resultSuccess, result)
}

// failureData encodes a refusal.
func failureData(reason kvv1.Reason, message string) ([]byte, error) {
	return marshalResult(resultFailure, &kvv1.Failure{Reason: reason, Message: message})
}

func marshalResult(kind byte, m proto.Message) ([]byte, error) {
	dst := make([]byte, 1, 1+proto.Size(m))
	dst[0] = kind
	// Deterministic, since a recorded reply is part of the replicated state.
	dst, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(dst, m)
	if err != nil {
		return nil, fmt.Errorf("kv: encode a result: %w", err)
	}
	return dst, nil
}

// failed tells whether result data is a refusal.
func failed(data []byte) bool { return len(data) > 0 && data[0] == resultFailure }
