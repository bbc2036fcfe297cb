package kv

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// Field numbers of kvv1.Command and what it contains, as far as the fast path
// and the encoders write them by hand.
const (
	fieldSession = 1
	fieldPut     = 2
	fieldDelete  = 3
	fieldRange   = 4

	fieldKey   = 1
	fieldValue = 2

	fieldID       = 1
	fieldSequence = 2
	fieldMark     = 3
)

// sessionRef is a decoded ClientSessionRef.
type sessionRef struct {
	present  bool
	id       uint64
	sequence uint64
	mark     uint64
}

// command is a decoded and checked command. A put stands in key and value,
// everything else in message; both alias the entry's data.
type command struct {
	session sessionRef
	isPut   bool
	key     []byte
	value   []byte
	message *kvv1.Command
	// invalid tells why the command is refused, whatever the state.
	invalid error
}

// decodeCommand decodes and checks data. A put takes a path of its own, since
// nearly all commands are puts and a message costs several allocations.
func decodeCommand(data []byte) command {
	if len(data) > MaxCommandBytes {
		return command{invalid: &LimitError{What: "command", Size: len(data), Limit: MaxCommandBytes}}
	}
	limits := formatLimits()
	if c, ok := decodePut(data); ok {
		c.invalid = limits.CheckPut(c.key, c.value)
		if c.session.present && c.session.sequence == 0 {
			c.invalid = invalidf("the sequence in a client session starts at 1")
		}
		return c
	}
	message := new(kvv1.Command)
	if err := proto.Unmarshal(data, message); err != nil {
		return command{invalid: invalidf("the command does not decode")}
	}
	c := command{message: message, invalid: limits.CheckCommand(message)}
	if ref := message.GetSession(); ref != nil {
		c.session = sessionRef{present: true, id: ref.GetId(), sequence: ref.GetSequence(), mark: ref.GetLowWaterMark()}
	}
	if put := message.GetPut(); put != nil {
		c.isPut, c.key, c.value = true, put.GetKey(), put.GetValue()
	}
	return c
}

// decodePut decodes a Command that is a put in its plain form: every field
// known and at most once. ok is false for anything else, which the general
// decoder judges: the two never disagree because this one never guesses.
func decodePut(data []byte) (c command, ok bool) {
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 || kind != protowire.BytesType {
			return command{}, false
		}
		body, m := protowire.ConsumeBytes(data[n:])
		if m < 0 {
			return command{}, false
		}
		data = data[n+m:]
		switch {
		case field == fieldPut && !c.isPut:
			c.isPut = true
			ok = decodePutBody(body, &c)
		case field == fieldSession && !c.session.present:
			c.session.present = true
			ok = decodeSessionRef(body, &c.session)
		default:
			ok = false
		}
		if !ok {
			return command{}, false
		}
	}
	return c, c.isPut
}

// decodePutBody decodes a Put.
func decodePutBody(b []byte, c *command) bool {
	var seen [3]bool
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.BytesType || field > fieldValue || seen[field] {
			return false
		}
		seen[field] = true
		body, m := protowire.ConsumeBytes(b[n:])
		if m < 0 {
			return false
		}
		b = b[n+m:]
		if field == fieldKey {
			c.key = body
		} else {
			c.value = body
		}
	}
	return true
}

// decodeSessionRef decodes a ClientSessionRef.
func decodeSessionRef(b []byte, ref *sessionRef) bool {
	var seen [4]bool
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.VarintType || field > fieldMark || seen[field] {
			return false
		}
		seen[field] = true
		v, m := protowire.ConsumeVarint(b[n:])
		if m < 0 {
			return false
		}
		b = b[n+m:]
		switch field {
		case fieldID:
			ref.id = v
		case fieldSequence:
			ref.sequence = v
		case fieldMark:
			ref.mark = v
		}
	}
	return true
}

// reads tells whether applying the command looks at records that an earlier
// command of the same index may have written.
func (c *command) reads() bool {
	if c.isPut || c.invalid != nil {
		return false
	}
	switch o := c.message.GetCommand().(type) {
	case *kvv1.Command_Delete:
		return true
	case *kvv1.Command_RegistryWrite:
		return len(o.RegistryWrite.GetCompares()) > 0
	case *kvv1.Command_Txn:
		if len(o.Txn.GetCompares()) > 0 {
			return true
		}
		for _, op := range o.Txn.GetSuccess() {
			switch op.GetOperation().(type) {
			case *kvv1.TxnOperation_Delete, *kvv1.TxnOperation_Get:
				return true
			}
		}
	}
	return false
}
