package kv

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/encoding/prototext"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// TestScripts runs testdata/script. Directives:
//
//	apply [clock=ms] [term=n]   one index; each line is a command: put k v, del k,
//	                            delrange a b (- is no bound), or a Command as
//	                            prototext; no line is an empty entry. put and del
//	                            take session=id,sequence,mark
//	get k · range [start= end= limit= reverse keys count] · journal index
//	dump · reopen · sessions
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		r := &scriptRunner{t: t, opts: Options{FS: vfs.NewMem(), Shared: testShared(t), JournalBytes: 1 << 20}, log: newTestLog()}
		r.open()
		defer func() { closeStore(t, r.s) }()
		datadriven.RunTest(t, path, r.run)
	})
}

type scriptRunner struct {
	t    *testing.T
	opts Options
	s    *Store
	log  *testLog
}

func (r *scriptRunner) open() {
	r.s = newStore(r.t, r.opts)
	r.s.bounds = sessionBounds{sessions: 3, replies: 3, sessionBytes: 4096, tableBytes: 8192}
	if _, err := r.s.Open(testDir); err != nil {
		r.t.Fatal(err)
	}
}

func (r *scriptRunner) run(t *testing.T, d *datadriven.TestData) string {
	var b strings.Builder
	switch d.Cmd {
	case "apply":
		r.apply(t, d, &b)
	case "get":
		got, err := r.s.Get([]byte(d.CmdArgs[0].Key))
		if err != nil {
			return err.Error()
		}
		if !got.Found {
			return fmt.Sprintf("none at index %d", got.Index)
		}
		return fmt.Sprintf("%s=%s @%s at index %d", got.Record.Key, got.Record.Value, revisionText(got.Record.ModRevision), got.Index)
	case "range":
		r.scan(t, d, &b)
	case "journal":
		var index uint64
		d.ScanArgs(t, "index", &index)
		for _, op := range journalAt(t, r.s, index) {
			fmt.Fprintf(&b, "%d: kind %d key %q", op.ordinal, op.kind, op.key)
			if op.end != nil {
				fmt.Fprintf(&b, " end %q", op.end)
			}
			if op.value != nil {
				fmt.Fprintf(&b, " value %q", op.value)
			}
			b.WriteByte('\n')
		}
		if b.Len() == 0 {
			return "empty"
		}
	case "dump":
		return dump(t, r.s)
	case "sessions":
		for at := r.s.writer.sessions.uses.Front(); at != nil; at = at.Next() {
			c := at.Value.(*clientSession)
			fmt.Fprintf(&b, "%s mark %d last %d replies %d\n", revisionText(c.id), c.row.mark, c.row.lastClock, len(c.replies))
		}
		if b.Len() == 0 {
			return "none"
		}
	case "reopen":
		if err := r.s.Flush(); err != nil {
			t.Fatal(err)
		}
		closeStore(t, r.s)
		r.open()
		return fmt.Sprintf("applied %d", r.s.AppliedIndex())
	default:
		t.Fatalf("unknown directive %s", d.Cmd)
	}
	return b.String()
}

func (r *scriptRunner) apply(t *testing.T, d *datadriven.TestData, b *strings.Builder) {
	d.MaybeScanArgs(t, "clock", &r.log.clock)
	d.MaybeScanArgs(t, "term", &r.log.term)
	var commands [][]byte
	for line := range strings.Lines(d.Input) {
		commands = append(commands, scriptCommand(t, strings.TrimSpace(line)))
	}
	for i, res := range r.log.apply(t, r.s, commands...) {
		fmt.Fprintf(b, "%s %s\n", revisionText(raftnode.Revision(r.log.index, uint16(i))), resultText(t, res))
	}
}

func scriptCommand(t *testing.T, line string) []byte {
	fields := strings.Fields(line)
	var session *kvv1.ClientSessionRef
	if last := fields[len(fields)-1]; strings.HasPrefix(last, "session=") {
		var index, ordinal, sequence, mark uint64
		if _, err := fmt.Sscanf(last, "session=%d.%d,%d,%d", &index, &ordinal, &sequence, &mark); err != nil {
			t.Fatal(err)
		}
		session = ref(raftnode.Revision(index, uint16(ordinal)), sequence, mark)
		fields = fields[:len(fields)-1]
	}
	bound := func(s string) []byte {
		if s == "-" {
			return nil
		}
		return []byte(s)
	}
	switch {
	case fields[0] == "put" && fields[1] != "{}":
		return EncodePut(nil, []byte(fields[1]), []byte(fields[2]), session)
	case fields[0] == "del":
		return EncodeDelete(nil, []byte(fields[1]), session)
	case fields[0] == "delrange":
		return EncodeDeleteRange(nil, bound(fields[1]), bound(fields[2]), session)
	case fields[0] == "garbage":
		return []byte{0xff, 0xff, 0xff}
	}
	c := new(kvv1.Command)
	if err := prototext.Unmarshal([]byte(line), c); err != nil {
		t.Fatal(err)
	}
	if c.Session == nil {
		c.Session = session
	}
	return must(EncodeCommand(nil, c))
}

func (r *scriptRunner) scan(t *testing.T, d *datadriven.TestData, b *strings.Builder) {
	var start, end string
	o := RangeOptions{Reverse: d.HasArg("reverse"), KeysOnly: d.HasArg("keys"), CountOnly: d.HasArg("count")}
	d.MaybeScanArgs(t, "start", &start)
	d.MaybeScanArgs(t, "end", &end)
	d.MaybeScanArgs(t, "limit", &o.Limit)
	o.Start, o.End = []byte(start), []byte(end)
	scan := r.s.Range
	if d.HasArg("registry") {
		scan = r.s.SpaceRange
	}
	for {
		got, err := scan(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range got.Records {
			fmt.Fprintf(b, "%s=%s @%s\n", rec.Key, rec.Value, revisionText(rec.ModRevision))
		}
		fmt.Fprintf(b, "page of %d at index %d\n", got.Count, got.Index)
		if len(got.Next) == 0 {
			return
		}
		o.Page = got.Next
	}
}

func revisionText(revision uint64) string {
	return fmt.Sprintf("%d.%d", revision>>16, revision&0xffff)
}

// resultText renders result data without prototext, whose spaces vary.
func resultText(tb testing.TB, r raftnode.Result) string {
	ok, failure, err := DecodeResult(r)
	if err != nil {
		tb.Fatal(err)
	}
	if failure != nil {
		return fmt.Sprintf("%s: %s", failure.GetReason(), failure.GetMessage())
	}
	var b strings.Builder
	b.WriteString("ok @" + revisionText(ok.GetRevision()))
	if ok.GetExisted() {
		b.WriteString(" existed")
	}
	if ok.GetSucceeded() {
		b.WriteString(" succeeded")
	}
	for _, step := range ok.GetTxn() {
		b.WriteString(" [")
		if step.GetExisted() {
			b.WriteString("existed")
		}
		if rec := step.GetRecord(); rec != nil {
			fmt.Fprintf(&b, "%s=%s @%s", rec.GetKey(), rec.GetValue(), revisionText(rec.GetModRevision()))
		}
		b.WriteString("]")
	}
	return b.String()
}
