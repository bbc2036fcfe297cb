package kv

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// FuzzCommand wants the fast path and the general decoder to agree, and Apply
// to take anything.
func FuzzCommand(f *testing.F) {
	for _, e := range newRandomLog(1).grow(60) {
		f.Add(e.Data)
	}
	f.Add(putIn("k", "v", ref(1, 2, 3)))
	f.Add(append(put("k", "v"), put("k", "w")...))
	f.Add(append(put("k", "v"), del("k")...))
	f.Add([]byte{0x0a, 0x00, 0x12, 0x00})
	s, log := openStore(f, Options{}), newTestLog()
	f.Fuzz(func(t *testing.T, data []byte) {
		if fast, ok := decodePut(data); ok {
			var c kvv1.Command
			if err := proto.Unmarshal(data, &c); err != nil {
				t.Fatalf("only the fast path decodes it: %v", err)
			}
			if c.GetPut() == nil || !bytes.Equal(c.GetPut().GetKey(), fast.key) || !bytes.Equal(c.GetPut().GetValue(), fast.value) {
				t.Fatalf("fast path %q=%q, general %v", fast.key, fast.value, &c)
			}
			r := c.GetSession()
			if want := (sessionRef{r != nil, r.GetId(), r.GetSequence(), r.GetLowWaterMark()}); fast.session != want {
				t.Fatalf("fast path %+v, general %+v", fast.session, want)
			}
		}
		if data == nil {
			return
		}
		for _, res := range log.apply(t, s, data) {
			if _, _, err := DecodeResult(res); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzRecord(f *testing.F) {
	f.Add(appendRecord(nil, 1, []byte("v")))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if revision, value, err := decodeRecord(b); err == nil && !bytes.Equal(appendRecord(nil, revision, value), b) {
			t.Fatalf("%x does not come back", b)
		}
	})
}

func FuzzJournalRow(f *testing.F) {
	shared, err := NewShared(SharedOptions{CacheBytes: 1 << 20, OpenTables: 8})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := shared.Close(); err != nil {
			f.Error(err)
		}
	})
	ops := appendJournalOp(nil, journalOp{kind: opRange, ordinal: 1, key: []byte("a"), end: []byte("b")})
	ops = appendJournalPut(ops, 2, spaceRecords, []byte("k"), []byte("v"), true)
	ops = appendJournalOp(ops, journalOp{kind: opBarrier, reason: barrierMigration})
	f.Add(appendJournalRow(nil, ops, shared.encoder))
	f.Add(appendJournalRow(nil, bytes.Repeat(ops, 100), shared.encoder))
	f.Add([]byte{1, 1, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := decodeJournalRow(b, shared.decoder)
		if err != nil {
			return
		}
		var again []byte
		for _, op := range list {
			again = appendJournalOp(again, op)
		}
		back, err := decodeJournalRow(appendJournalRow(nil, again, shared.encoder), shared.decoder)
		if err != nil || len(back) != len(list) {
			t.Fatalf("%d operations came back as %d, %v", len(list), len(back), err)
		}
	})
}

func FuzzSessionRow(f *testing.F) {
	f.Add(appendSessionRow(nil, sessionRow{1, -2, 3, 4}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if row, err := decodeSessionRow(b); err == nil {
			if back, err := decodeSessionRow(appendSessionRow(nil, row)); err != nil || back != row {
				t.Fatalf("%+v came back as %+v, %v", row, back, err)
			}
		}
	})
}

func FuzzReplyRow(f *testing.F) {
	f.Add(appendReplyRow(nil, 1, []byte{0}))
	f.Add(appendReplyRow(nil, 1, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if revision, data, err := decodeReplyRow(b); err == nil {
			if r, d, err := decodeReplyRow(appendReplyRow(nil, revision, data)); err != nil || r != revision || !bytes.Equal(d, data) {
				t.Fatalf("%x does not come back: %v", b, err)
			}
		}
	})
}

func FuzzAppliedRecord(f *testing.F) {
	record := newAppliedRecord()
	f.Add(appendApplied(nil, &record))
	record.Applied = raftnode.Applied{Index: 1, Term: 2, Clock: 3, Membership: []byte("m")}
	f.Add(appendApplied(nil, &record))
	f.Fuzz(func(t *testing.T, b []byte) {
		if record, err := decodeApplied(b); err == nil {
			back, err := decodeApplied(appendApplied(nil, &record))
			if err != nil || back.Index != record.Index || back.journalLow != record.journalLow || !bytes.Equal(back.Membership, record.Membership) {
				t.Fatalf("%+v came back as %+v, %v", record, back, err)
			}
		}
	})
}

func FuzzTermRow(f *testing.F) {
	f.Add(appendTermRow(nil, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if first, err := decodeTermRow(b); err == nil && !bytes.Equal(appendTermRow(nil, first), b) {
			t.Fatalf("%x does not come back", b)
		}
	})
}

func FuzzPageToken(f *testing.F) {
	f.Add(appendPageToken(nil, spaceRecords, true, []byte("k")), true)
	f.Add(appendPageToken(nil, spaceRecords, false, nil), false)
	f.Fuzz(func(t *testing.T, b []byte, reverse bool) {
		if key, err := decodePageToken(b, spaceRecords, reverse); err == nil && !bytes.Equal(appendPageToken(nil, spaceRecords, reverse, key), b) {
			t.Fatalf("%x does not come back", b)
		}
	})
}

func FuzzResult(f *testing.F) {
	f.Add(must(successData(&kvv1.OperationResult{Existed: true})))
	f.Add(must(failureData(kvv1.Reason_REASON_INVALID, "m")))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		ok, failure, err := DecodeResult(raftnode.Result{Revision: 9, Data: b})
		if n := btoi(ok != nil) + btoi(failure != nil) + btoi(err != nil); n != 1 {
			t.Fatalf("%x: %v, %v, %v: want exactly one", b, ok, failure, err)
		}
		if ok != nil && ok.GetRevision() == 0 {
			t.Fatal("a success without a revision")
		}
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// FuzzStagedTable wants any bytes in the place of a table refused or read, as
// CheckFile meets them.
func FuzzStagedTable(f *testing.F) {
	fs := vfs.NewMem()
	s := openStore(f, Options{FS: fs})
	w := &tableWriter{
		fs: fs, prefix: "t", target: 1 << 20, budget: new(deltaBudget),
		opts: s.current.Load().pebbleOptions().MakeWriterOptions(0, s.current.Load().db.TableFormat()),
	}
	for i := range 100 {
		if err := w.set(fmt.Appendf(nil, "s/%03d", i), []byte("value")); err != nil {
			f.Fatal(err)
		}
	}
	if err := errors.Join(w.beginDelete([]byte("s/5")), w.endDelete([]byte("s/6")), w.finish()); err != nil {
		f.Fatal(err)
	}
	file, err := fs.Open(w.files[0].GetName())
	if err != nil {
		f.Fatal(err)
	}
	content, err := io.ReadAll(file)
	if err := errors.Join(err, file.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(content)
	f.Add(content[:len(content)-1])
	f.Add([]byte("not a table"))
	opts := s.current.Load().pebbleOptions()
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := writeFile(fs, "fuzzed", b); err != nil {
			t.Fatal(err)
		}
		pace := contextPacer(t.Context())
		sound := checkTable(fs, "fuzzed", opts, pace) == nil
		table, err := openTable(fs, "fuzzed", opts, pace)
		if err != nil {
			if sound {
				t.Fatalf("a sound table does not open: %v", err)
			}
			return
		}
		span, err := spanOf(table, true)
		if err == nil && span.start != nil && bytes.Compare(span.start, span.end) > 0 {
			t.Fatalf("a table from %q to %q", span.start, span.end)
		}
		if err := table.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
