package kv

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// TestLimits checks each limit at its edge and one over it.
func TestLimits(t *testing.T) {
	limits := Limits{KeyBytes: 4, ValueBytes: 8, TxnBytes: 40}
	key, long := []byte("1234"), []byte("12345")
	value, wide := []byte("12345678"), []byte("123456789")
	putOp := func(key, value []byte) *kvv1.Operation {
		return &kvv1.Operation{Operation: &kvv1.Operation_Put{Put: &kvv1.Put{Key: key, Value: value}}}
	}
	batch := func(n int) *kvv1.Operation {
		b := new(kvv1.Batch)
		for range n {
			b.Operations = append(b.Operations, &kvv1.BatchOperation{Operation: &kvv1.BatchOperation_Put{Put: &kvv1.Put{Key: key, Value: value}}})
		}
		return &kvv1.Operation{Operation: &kvv1.Operation_Batch{Batch: b}}
	}
	txn := func(c *kvv1.Compare, steps ...*kvv1.TxnOperation) *kvv1.Operation {
		return &kvv1.Operation{Operation: &kvv1.Operation_Txn{Txn: &kvv1.Txn{Compares: []*kvv1.Compare{c}, Success: steps}}}
	}
	exists := &kvv1.Compare{Key: key, Condition: &kvv1.Compare_Exists{Exists: true}}
	for _, c := range []struct {
		name string
		op   *kvv1.Operation
		over string // what is over its limit; "rule" where it is no limit
	}{
		{"put", putOp(key, value), ""},
		{"long key", putOp(long, value), "key"},
		{"wide value", putOp(key, wide), "value"},
		{"empty key", putOp(nil, value), "rule"},
		{"nothing", &kvv1.Operation{}, "rule"},
		{"delete", &kvv1.Operation{Operation: &kvv1.Operation_Delete{Delete: &kvv1.Delete{Key: long}}}, "key"},
		{"range start", &kvv1.Operation{Operation: &kvv1.Operation_DeleteRange{DeleteRange: &kvv1.DeleteRange{Start: long}}}, "range start"},
		{"range end", &kvv1.Operation{Operation: &kvv1.Operation_DeleteRange{DeleteRange: &kvv1.DeleteRange{End: long}}}, "range end"},
		{"range", &kvv1.Operation{Operation: &kvv1.Operation_DeleteRange{DeleteRange: &kvv1.DeleteRange{}}}, ""},
		{"batch", batch(2), ""},
		{"large batch", batch(3), "batch"},
		{"txn", txn(exists, getStep("1")), ""},
		{"txn step", txn(exists, getStep("12345")), "key"},
		{"compare without condition", txn(&kvv1.Compare{Key: key}), "rule"},
		{"compare operator", txn(&kvv1.Compare{Key: key, Condition: &kvv1.Compare_Revision{Revision: &kvv1.RevisionCompare{}}}), "rule"},
		{"large txn", txn(exists, getStep("1"), getStep("2"), getStep("3"), getStep("4"), getStep("5"), getStep("6")), "transaction"},
	} {
		err := limits.CheckOperation(c.op)
		var over *LimitError
		switch {
		case c.over == "" && err != nil, c.over != "" && !errors.Is(err, ErrInvalid):
			t.Errorf("%s: %v", c.name, err)
		case c.over != "" && c.over != "rule" && (!errors.As(err, &over) || over.What != c.over || over.Size <= over.Limit):
			t.Errorf("%s: %v, want a limit of %s", c.name, err, c.over)
		}
	}
	if err := limits.CheckSession(ref(1, 0, 0)); !errors.Is(err, ErrInvalid) {
		t.Errorf("sequence 0: %v", err)
	}
}

// TestOverFormatBounds has Apply refuse what is over the bounds of the format,
// whatever the node's limits, and nothing below them.
func TestOverFormatBounds(t *testing.T) {
	s, log := openStore(t, Options{Limits: Limits{KeyBytes: 1, ValueBytes: 1}}), newTestLog()
	key := bytes.Repeat([]byte("k"), MaxKeyBytes+1)
	results := log.apply(t, s,
		EncodePut(nil, key, nil, nil),
		EncodePut(nil, key[:MaxKeyBytes], nil, nil),
		EncodePut(nil, key[:2], make([]byte, MaxValueBytes+1), nil),
		EncodePut(nil, key[:3], make([]byte, MaxValueBytes), nil),
		make([]byte, MaxCommandBytes+1),
	)
	for i, refused := range []bool{true, false, true, false, true} {
		if !refused {
			result(t, results[i])
		} else if got := reason(t, results[i]); got != kvv1.Reason_REASON_INVALID {
			t.Errorf("command %d: %s", i, got)
		}
	}
	if m := s.Metrics(); m.Commands != 5 || m.Refused != 3 {
		t.Errorf("%s", m)
	}
}

// TestOptions checks what is out of range.
func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"compression": {Compression: "best"},
		"journal":     {JournalBytes: -1},
		"memtable":    {MemTableBytes: 1},
		"key":         {Limits: Limits{KeyBytes: MaxKeyBytes + 1}},
		"value":       {Limits: Limits{ValueBytes: -1}},
		"txn":         {Limits: Limits{TxnBytes: MaxCommandBytes + 1}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := NewShared(SharedOptions{CacheBytes: -1}); err == nil {
		t.Error("negative cache: no error")
	}
}

// TestCompressions opens a store with each compression, one after another on
// the same state.
func TestCompressions(t *testing.T) {
	opts, log := Options{Shared: testShared(t)}, newTestLog()
	for _, c := range []Compression{CompressionNone, CompressionFastest, CompressionBalanced, CompressionGood} {
		opts.Compression = c
		s := openStore(t, opts)
		opts.FS = s.opts.FS
		log.apply(t, s, put(string(c), "1"))
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Range(t.Context(), RangeOptions{}); err != nil || got.Count != log.index {
			t.Errorf("%s: %+v, %v", c, got, err)
		}
		closeStore(t, s)
	}
}

// TestEncode compares each encoder with the message it stands for.
func TestEncode(t *testing.T) {
	session := ref(1<<40, 7, 3)
	key, value := []byte("key"), bytes.Repeat([]byte("v"), 300)
	txn := newTxn(put("a", "1"))
	batch := &kvv1.Batch{Operations: []*kvv1.BatchOperation{{Operation: &kvv1.BatchOperation_Delete{Delete: &kvv1.Delete{Key: key}}}}}
	write := &kvv1.RegistryWrite{Operations: batch.Operations}
	for _, s := range []*kvv1.ClientSessionRef{nil, {}, session} {
		for _, c := range []struct {
			got  []byte
			want *kvv1.Command
		}{
			{EncodePut([]byte("x"), key, value, s), &kvv1.Command{Session: s, Command: &kvv1.Command_Put{Put: &kvv1.Put{Key: key, Value: value}}}},
			{EncodePut([]byte("x"), nil, nil, s), &kvv1.Command{Session: s, Command: &kvv1.Command_Put{Put: &kvv1.Put{}}}},
			{EncodeDelete([]byte("x"), key, s), &kvv1.Command{Session: s, Command: &kvv1.Command_Delete{Delete: &kvv1.Delete{Key: key}}}},
			{EncodeDeleteRange([]byte("x"), key, nil, s), &kvv1.Command{Session: s, Command: &kvv1.Command_DeleteRange{DeleteRange: &kvv1.DeleteRange{Start: key}}}},
			{must(EncodeTxn([]byte("x"), txn, s)), &kvv1.Command{Session: s, Command: &kvv1.Command_Txn{Txn: txn}}},
			{must(EncodeBatch([]byte("x"), batch, s)), &kvv1.Command{Session: s, Command: &kvv1.Command_Batch{Batch: batch}}},
			{must(EncodeOperation([]byte("x"), &kvv1.Operation{Operation: &kvv1.Operation_Batch{Batch: batch}}, s)), &kvv1.Command{Session: s, Command: &kvv1.Command_Batch{Batch: batch}}},
			{must(EncodeOpenClientSession([]byte("x"), 1500*time.Microsecond)), &kvv1.Command{Command: &kvv1.Command_OpenClientSession{OpenClientSession: &kvv1.OpenClientSession{TimeToLiveMs: 2}}}},
			{must(EncodeOpenClientSession([]byte("x"), -1)), &kvv1.Command{Command: &kvv1.Command_OpenClientSession{OpenClientSession: &kvv1.OpenClientSession{}}}},
			{must(EncodeCloseClientSession([]byte("x"), 9)), &kvv1.Command{Command: &kvv1.Command_CloseClientSession{CloseClientSession: &kvv1.CloseClientSession{Id: 9}}}},
			{must(EncodeSetFeedMode([]byte("x"), 2)), &kvv1.Command{Command: &kvv1.Command_SetFeedMode{SetFeedMode: &kvv1.SetFeedMode{Mode: 2}}}},
			{must(EncodeTakeDigest([]byte("x"))), &kvv1.Command{Command: &kvv1.Command_TakeDigest{TakeDigest: &kvv1.TakeDigest{}}}},
			{must(EncodeRegistryWrite([]byte("x"), write)), &kvv1.Command{Command: &kvv1.Command_RegistryWrite{RegistryWrite: write}}},
		} {
			got := new(kvv1.Command)
			if c.got[0] != 'x' {
				t.Errorf("%v: what dst held is gone", c.want)
			} else if err := proto.Unmarshal(c.got[1:], got); err != nil || !proto.Equal(got, c.want) {
				t.Errorf("got %v, want %v, %v", got, c.want, err)
			}
		}
	}
	if _, err := EncodeOperation(nil, nil, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("no operation: %v", err)
	}
	dst := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() { dst = EncodePut(dst[:0], key, value, session) }); n != 0 {
		t.Errorf("EncodePut allocates %v times", n)
	}
}
