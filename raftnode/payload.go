package raftnode

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The payload of a normal log entry packs commands:
//
//	byte     format: 1
//	8 bytes  origin, little endian: random per opening of a replica
//	uvarint  sequence of the entry among those of its origin
//	uvarint  clock: the leader's time, milliseconds since the Unix epoch
//	uvarint  floor: no member needs log entries at or below this index
//	uvarint  number of commands, 1..MaxOrdinals
//	per command: uvarint length, bytes
//
// Origin and sequence let the proposer find its commands again when they are
// applied, whatever leader replicated them. The floor tells followers how far
// they may cut their logs: only a leader knows what the others have.
//
// An entry of length 0 is a new leader's empty entry; it carries no commands.
const payloadFormat = 1

// maxPayloadHeader bounds the bytes before the first command.
const maxPayloadHeader = 1 + 8 + 4*binary.MaxVarintLen64

// payloadHeader is what stands before the commands.
type payloadHeader struct {
	origin   uint64
	sequence uint64
	clock    int64
	floor    uint64
	commands int
}

// errPayload: a committed entry that this version cannot read. It stops the
// replica: skipping it would make replicas differ.
var errPayload = errors.New("log entry has an unknown or damaged payload")

// appendPayloadHeader encodes h; the commands follow through
// appendPayloadCommand.
func appendPayloadHeader(dst []byte, h payloadHeader) []byte {
	dst = append(dst, payloadFormat)
	dst = binary.LittleEndian.AppendUint64(dst, h.origin)
	dst = binary.AppendUvarint(dst, h.sequence)
	dst = binary.AppendUvarint(dst, uint64(h.clock))
	dst = binary.AppendUvarint(dst, h.floor)
	return binary.AppendUvarint(dst, uint64(h.commands))
}

func appendPayloadCommand(dst, command []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(command)))
	return append(dst, command...)
}

// decodePayloadHeader reads the header and returns the bytes of the commands.
func decodePayloadHeader(data []byte) (h payloadHeader, commands []byte, err error) {
	if len(data) < 9 || data[0] != payloadFormat {
		if len(data) > 0 && data[0] != payloadFormat {
			return h, nil, fmt.Errorf("%w: format %d, this version reads %d", errPayload, data[0], payloadFormat)
		}
		return h, nil, fmt.Errorf("%w: %d bytes", errPayload, len(data))
	}
	h.origin = binary.LittleEndian.Uint64(data[1:])
	rest := data[9:]
	var fields [4]uint64
	for i := range fields {
		v, n := binary.Uvarint(rest)
		if n <= 0 {
			return h, nil, fmt.Errorf("%w: header field %d is cut off", errPayload, i)
		}
		fields[i], rest = v, rest[n:]
	}
	h.sequence, h.clock, h.floor = fields[0], int64(fields[1]), fields[2]
	// A leader with a clock before 1970 or far beyond must not stop every replica.
	h.clock = max(0, h.clock)
	if fields[3] == 0 || fields[3] > MaxOrdinals || fields[3] > uint64(len(rest)) {
		return h, nil, fmt.Errorf("%w: %d commands in %d bytes", errPayload, fields[3], len(rest))
	}
	h.commands = int(fields[3])
	return h, rest, nil
}

// nextPayloadCommand splits the next command off.
func nextPayloadCommand(commands []byte) (command, rest []byte, err error) {
	size, n := binary.Uvarint(commands)
	if n <= 0 || size > uint64(len(commands)-n) {
		return nil, nil, fmt.Errorf("%w: a command is cut off", errPayload)
	}
	end := n + int(size)
	return commands[n:end:end], commands[end:], nil
}
