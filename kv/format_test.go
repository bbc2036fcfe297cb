package kv

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares text with a golden file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs: a durable format only grows, by a new version\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}

func getStep(key string) *kvv1.TxnOperation {
	return &kvv1.TxnOperation{Operation: &kvv1.TxnOperation_Get{Get: &kvv1.TxnGet{Key: []byte(key)}}}
}

// newTxn returns a transaction that runs encoded puts.
func newTxn(puts ...[]byte) *kvv1.Txn {
	txn := new(kvv1.Txn)
	for _, data := range puts {
		c := decodeCommand(data)
		txn.Success = append(txn.Success, &kvv1.TxnOperation{Operation: &kvv1.TxnOperation_Put{Put: &kvv1.Put{Key: c.key, Value: c.value}}})
	}
	return txn
}

// TestFormats pins every durable byte.
func TestFormats(t *testing.T) {
	var b bytes.Buffer
	row := func(name string, value []byte) { fmt.Fprintf(&b, "%-24s %x\n", name, value) }
	row("key record", spaceKey(nil, spaceRecords, []byte("k")))
	row("key registry", spaceKey(nil, spaceRegistry, []byte("k")))
	row("key journal", journalKey(nil, 0x0102030405060708))
	row("key term", termKey(nil, 7))
	row("key session", sessionKey(nil, 0x10000))
	row("key reply", replyKey(nil, 0x10000, 9))
	row("key applied", []byte(spaceApplied))
	row("record", appendRecord(nil, 0x10002, []byte("value")))
	row("term", appendTermRow(nil, 42))
	record := newAppliedRecord()
	row("applied new", appendApplied(nil, &record))
	record.Applied = raftnode.Applied{Index: 300, Term: 5, Clock: -1, Membership: []byte("members")}
	record.feedMode, record.journalLow = kvv1.FeedMode_FEED_MODE_VALUES, 200
	row("applied", appendApplied(nil, &record))
	row("session", appendSessionRow(nil, sessionRow{ttlMillis: 1000, lastClock: 1_700_000_000_000, lastRevision: 0x10003, mark: 4}))
	row("reply", appendReplyRow(nil, 0x10003, []byte{0, 8, 1}))
	row("reply plain", appendReplyRow(nil, 0x10003, nil))
	shared := testShared(t)
	row("journal empty", appendJournalRow(nil, nil, shared.encoder))
	ops := []journalOp{
		{kind: opPut, ordinal: 0, key: []byte("s/a")},
		{kind: opDelete, ordinal: 1, key: []byte("s/b")},
		{kind: opRange, ordinal: 300, key: []byte("s/c"), end: []byte("s/d")},
		{kind: opPutValue, ordinal: 301, key: []byte("s/e"), value: []byte("v")},
		{kind: opBarrier, ordinal: 302, key: []byte{}, reason: barrierBulkLoad},
	}
	var list []byte
	for _, op := range ops {
		list = appendJournalOp(list, op)
	}
	plain := appendJournalRow(nil, list, shared.encoder)
	row("journal", plain)
	row("page token", appendPageToken(nil, spaceRecords, true, []byte("k")))
	row("result", must(successData(&kvv1.OperationResult{Revision: 0x10001, Existed: true})))
	row("failure", must(failureData(kvv1.Reason_REASON_INVALID, "no")))
	row("command put", EncodePut(nil, []byte("k"), []byte("v"), ref(1, 2, 3)))
	golden(t, "formats", b.String())

	decoded, err := decodeJournalRow(plain, shared.decoder)
	if err != nil || fmt.Sprintf("%+v", decoded) != fmt.Sprintf("%+v", ops) {
		t.Errorf("decoded %+v, %v", decoded, err)
	}
	// A compressed row is not pinned byte by byte: the codec may get better.
	long := bytes.Repeat(list, 200)
	compressed := appendJournalRow(nil, long, shared.encoder)
	if compressed[1] != journalZstd || len(compressed) > len(long)/4 {
		t.Errorf("%d bytes of operations became %d with codec %d", len(long), len(compressed), compressed[1])
	}
	if decoded, err := decodeJournalRow(compressed, shared.decoder); err != nil || len(decoded) != 200*len(ops) {
		t.Errorf("decoded %d operations, %v", len(decoded), err)
	}
}

// TestMetricsString pins what a person sees.
func TestMetricsString(t *testing.T) {
	m := Metrics{
		Group: 2, AppliedIndex: 1200, DurableIndex: 1000, Term: 3, JournalLow: 40, FeedMode: kvv1.FeedMode_FEED_MODE_KEYS,
		StateBytes: 5 << 30, MemTableBytes: 1536 << 10, JournalBytes: 900, L0Files: 4, L0Sublevels: 2, ReadAmplification: 5,
		Flushes: 7, Compactions: 3, BackgroundErrors: 1, CacheHits: 90, CacheMisses: 10, Commands: 5000, Refused: 2, Repeated: 1,
		Batches: 900, Sessions: 3, Replies: 12, ExpiredSessions: 4, Digests: 1,
		ImagesCaptured: 6, Deltas: 2, ImagesInstalled: 1, DirectoriesSwept: 3, TablesScrubbed: 44, TablesDamaged: 1,
	}
	failed := Metrics{Group: 3, Failed: true, FeedMode: kvv1.FeedMode_FEED_MODE_VALUES}
	golden(t, "metrics", m.String()+failed.String())
}
