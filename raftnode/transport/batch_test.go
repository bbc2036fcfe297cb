package transport

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

func someMessages() []GroupMessage {
	return []GroupMessage{
		heartbeat(1, 0),
		appendOf(2, 10, []byte("a"), nil, bytes.Repeat([]byte("x"), 300)),
		{1 << 60, &raftpb.Message{Type: raftpb.MsgPreVoteResp.Enum(), Reject: new(true), Context: []byte{}}},
		{3, &raftpb.Message{Type: raftpb.MsgSnap.Enum(), Snapshot: &raftpb.Snapshot{
			Data: []byte("s"), Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(4)), ConfState: &raftpb.ConfState{Voters: []uint64{1, 2}}}}}},
	}
}

// The batch's own codec and the generated one write and read the same.
func TestBatchIsConnectRequest(t *testing.T) {
	messages := someMessages()
	b := newBatch()
	b.hello = &raftv1.NodeHello{ProtocolVersion: 1, Node: "n1", Replicas: []*raftv1.ReplicaId{{Group: 1, RaftId: 7}}}
	b.lane = raftv1.Lane_LANE_APPEND
	want := &raftv1.ConnectRequest{Hello: b.hello, Lane: b.lane}
	for _, m := range messages {
		b.add(m, proto.Size(m.Message))
		encoded, err := proto.Marshal(m.Message)
		if err != nil {
			t.Fatal(err)
		}
		want.Messages = append(want.Messages, &raftv1.GroupMessage{Group: m.Group, Message: encoded})
	}
	data, err := proto.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	if proto.Size(b) != len(data) || b.wire != len(data) {
		t.Errorf("size %d, wire %d, encoded %d", proto.Size(b), b.wire, len(data))
	}
	got := new(raftv1.ConnectRequest)
	if err := proto.Unmarshal(data, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}

	data, err = proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	back := newBatch()
	if err := proto.Unmarshal(data, back); err != nil || back.err != nil {
		t.Fatal(err, back.err)
	}
	clear(data) // nothing of the batch may share the buffer
	if diff := cmp.Diff(messages, back.messages, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if back.lane != want.Lane || !proto.Equal(back.hello, want.Hello) {
		t.Errorf("lane %v, hello %v", back.lane, back.hello)
	}
}

func TestAppendAndDecodeMessages(t *testing.T) {
	data, err := AppendMessages([]byte("before"), someMessages())
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeMessages(bytes.TrimPrefix(data, []byte("before")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(someMessages(), got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestMessagesThatMustNotTravel(t *testing.T) {
	for _, c := range []struct {
		name string
		m    GroupMessage
		want error
		text string
	}{
		{"nil", GroupMessage{Group: 1}, ErrInvalidMessage, "no message"},
		{"group 0", heartbeat(0, 1), ErrInvalidMessage, "names no group"},
		{"no type", GroupMessage{1, &raftpb.Message{}}, ErrInvalidMessage, "does not travel"},
		{"storage", GroupMessage{1, &raftpb.Message{Type: raftpb.MsgStorageAppend.Enum()}}, ErrInvalidMessage, "MsgStorageAppend"},
		{"hup", GroupMessage{1, &raftpb.Message{Type: raftpb.MsgHup.Enum()}}, ErrInvalidMessage, "MsgHup"},
		{"responses", GroupMessage{1, &raftpb.Message{Type: raftpb.MsgApp.Enum(), Responses: []*raftpb.Message{{}}}}, ErrInvalidMessage, "responses"},
		{"entries", GroupMessage{1, &raftpb.Message{Type: raftpb.MsgApp.Enum(), Entries: make([]*raftpb.Entry, MaxEntries+1)}}, ErrMessageTooLarge, "262145 entries"},
		{"bytes", appendOf(1, 1, make([]byte, MaxMessageBytes)), ErrMessageTooLarge, "at most 8387584"},
	} {
		_, err := AppendMessages(nil, []GroupMessage{heartbeat(1, 1), c.m})
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// raw encodes a group message without looking at what it is.
func raw(group uint64, message []byte) []byte {
	inner := protowire.AppendTag(nil, fieldGroup, protowire.VarintType)
	inner = protowire.AppendVarint(inner, group)
	inner = protowire.AppendTag(inner, fieldMessage, protowire.BytesType)
	inner = protowire.AppendBytes(inner, message)
	out := protowire.AppendTag(nil, fieldMessages, protowire.BytesType)
	return protowire.AppendBytes(out, inner)
}

func rawMessage(m *raftpb.Message) []byte {
	data, _ := proto.Marshal(m)
	return data
}

func TestDecodeRefuses(t *testing.T) {
	beat := rawMessage(heartbeat(1, 1).Message)
	hello := protowire.AppendBytes(protowire.AppendTag(nil, fieldHello, protowire.BytesType), nil)
	for _, c := range []struct {
		name string
		data []byte
		want error
	}{
		{"cut tag", []byte{0x80}, ErrMalformed},
		{"cut length", raw(1, beat)[:5], ErrMalformed},
		{"message is no bytes", []byte{byte(fieldMessages) << 3, 1}, ErrMalformed},
		{"two hellos", append(bytes.Clone(hello), hello...), ErrMalformed},
		{"lane 9", []byte{byte(fieldLane) << 3, 9}, ErrMalformed},
		{"hello of nonsense", protowire.AppendBytes(protowire.AppendTag(nil, fieldHello, protowire.BytesType), []byte{0x80}), ErrMalformed},
		{"large hello", protowire.AppendBytes(protowire.AppendTag(nil, fieldHello, protowire.BytesType), make([]byte, MaxHelloBytes+1)), ErrMessageTooLarge},
		{"raft message of nonsense", raw(1, []byte("\xff\xff")), ErrMalformed},
		{"group 0", raw(0, beat), ErrInvalidMessage},
		{"empty", raw(1, nil), ErrInvalidMessage},
		{"local type", raw(1, rawMessage(&raftpb.Message{Type: raftpb.MsgStorageAppend.Enum()})), ErrInvalidMessage},
		{"unknown type", raw(1, []byte{1 << 3, 0x7f}), ErrInvalidMessage},
		{"negative type", raw(1, protowire.AppendVarint([]byte{1 << 3}, 1<<64-1)), ErrInvalidMessage},
		{"responses", raw(1, rawMessage(&raftpb.Message{Type: raftpb.MsgApp.Enum(), Responses: []*raftpb.Message{{}}})), ErrInvalidMessage},
		{"many entries", raw(1, bytes.Repeat([]byte{byte(fieldEntries)<<3 | 2, 0}, MaxEntries+1)), ErrMessageTooLarge},
		{"many messages", bytes.Repeat(raw(1, rawMessage(&raftpb.Message{Type: raftpb.MsgVote.Enum()})), MaxBatchMessages+1), ErrMessageTooLarge},
		{"large", make([]byte, MaxWireBytes+1), ErrMessageTooLarge},
	} {
		got, err := DecodeMessages(c.data)
		if !errors.Is(err, c.want) || len(got) != 0 {
			t.Errorf("%s: %d messages, %v", c.name, len(got), err)
		}
	}
}

func FuzzDecodeMessages(f *testing.F) {
	good, err := AppendMessages(nil, someMessages())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add(raw(0, nil))
	f.Add(raw(1, bytes.Repeat([]byte{byte(fieldEntries)<<3 | 2, 0}, 100)))
	f.Add([]byte{byte(fieldLane) << 3, 1})
	f.Add(raw(1, protowire.AppendVarint([]byte{1 << 3}, 1<<64-1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		messages, err := DecodeMessages(data)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrInvalidMessage) && !errors.Is(err, ErrMessageTooLarge) {
				t.Fatalf("undocumented error: %v", err)
			}
			return
		}
		// What was accepted can be sent on and reads the same again.
		again, err := AppendMessages(nil, messages)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeMessages(again)
		if err != nil {
			t.Fatal(err)
		}
		if len(back) != len(messages) {
			t.Fatalf("%d messages, then %d", len(messages), len(back))
		}
		for i := range back {
			if back[i].Group != messages[i].Group || !proto.Equal(back[i].Message, messages[i].Message) {
				t.Fatalf("message %d changed", i)
			}
		}
	})
}
