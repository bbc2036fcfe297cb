package raftnode

import (
	"bytes"
	"testing"
)

func TestPayloadRoundTrip(t *testing.T) {
	want := payloadHeader{origin: 7, sequence: 300, clock: 1_700_000_000_000, floor: 12, commands: 3}
	data := appendPayloadHeader(nil, want)
	commands := [][]byte{[]byte("a"), {}, bytes.Repeat([]byte("x"), 1000)}
	for _, c := range commands {
		data = appendPayloadCommand(data, c)
	}
	got, rest, err := decodePayloadHeader(data)
	if err != nil || got != want {
		t.Fatalf("header %+v, %v; want %+v", got, err, want)
	}
	for i, c := range commands {
		var command []byte
		if command, rest, err = nextPayloadCommand(rest); err != nil || !bytes.Equal(command, c) {
			t.Fatalf("command %d: %q, %v", i, command, err)
		}
	}
	if len(rest) != 0 {
		t.Errorf("%d bytes left", len(rest))
	}
	for cut := range len(data) - 1 {
		if err := walkPayload(data[:cut]); err == nil {
			t.Errorf("payload cut to %d bytes was taken whole", cut)
		}
	}
}

func walkPayload(data []byte) error {
	h, rest, err := decodePayloadHeader(data)
	for i := 0; err == nil && i < h.commands; i++ {
		_, rest, err = nextPayloadCommand(rest)
	}
	return err
}

func FuzzPayload(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{2, 0, 0})
	f.Add(appendPayloadCommand(appendPayloadHeader(nil, payloadHeader{origin: 1, sequence: 2, clock: 3, commands: 1}), []byte("x")))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, rest, err := decodePayloadHeader(data)
		total := 0
		for i := 0; err == nil && i < h.commands; i++ {
			var c []byte
			c, rest, err = nextPayloadCommand(rest)
			total += len(c)
		}
		if total > len(data) {
			t.Fatalf("%d bytes of commands out of %d", total, len(data))
		}
	})
}

func FuzzMembership(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x0a\x01x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := DecodeMembership(data)
		if err != nil {
			return
		}
		if _, err := encodeMembership(m); err != nil {
			t.Fatal(err)
		}
		confStateOf(m)
	})
}
