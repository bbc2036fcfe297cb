package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/importer"
)

func TestDemoDataLimit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	for name, size := range map[string]int{"a": 10, "b": 20, "c": 30} {
		if err := errors.Join(os.MkdirAll(dir, 0o777), os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	source, err := openDemoData(t.Context(), &demoOptions{data: dir, limit: 35})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	if source.Total() != 35 {
		t.Fatalf("total %d", source.Total())
	}
	var keys []string
	for {
		record, err := source.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, string(record.Key))
	}
	if got := strings.Join(keys, " "); got != "tree/a tree/b" {
		t.Fatal(got)
	}
}

func TestDemoDataErrors(t *testing.T) {
	for _, path := range []string{"-", "/does/not/exist"} {
		if _, err := openDemoData(t.Context(), &demoOptions{data: path}); exitCode(err) != exitUsage {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// checkOf makes a demonstration that imported lines and acknowledged the given
// writes of writer 0.
func checkOf(t *testing.T, lines string, acked ...bool) *demo {
	t.Helper()
	d := &demo{
		imported: newImportCheck(importer.NewJSONLines("in", strings.NewReader(lines), 0, nil)),
		load:     &demoLoad{writers: []*demoWriter{{acked: acked}}},
	}
	for {
		_, err := d.imported.Next()
		if err == io.EOF {
			return d
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestDemoChecksRecords(t *testing.T) {
	d := checkOf(t, `{"key":"a","value":"old"}`+"\n"+`{"key":"a","value":"new"}`, true, false)
	for _, test := range []struct {
		key, value       string
		acknowledged, ok bool
	}{
		{"a", "old", false, false},
		{"a", "new", true, true},
		{"b", "", false, false},
		{string(demoLoadKey(0, 0)), string(demoLoadValue(0, 0)), true, true},
		{string(demoLoadKey(0, 0)), string(demoLoadValue(0, 1)), false, false},
		{string(demoLoadKey(0, 1)), string(demoLoadValue(0, 1)), false, true}, // failed, and there
		{string(demoLoadKey(0, 2)), string(demoLoadValue(0, 2)), false, false},
		{string(demoLoadKey(1, 0)), string(demoLoadValue(1, 0)), false, false},
		{demoLoadPrefix + "x/y", "", false, false},
	} {
		acknowledged, ok := d.checkRecord(client.Record{Key: []byte(test.key), Value: []byte(test.value)})
		if acknowledged != test.acknowledged || ok != test.ok {
			t.Errorf("%q=%q: acknowledged %v, ok %v", test.key, test.value, acknowledged, ok)
		}
	}
}

func TestDemoGaps(t *testing.T) {
	l := &demoLoad{acked: make(chan struct{})}
	at := time.Now()
	for _, pause := range []time.Duration{0, 5 * time.Millisecond, 3 * time.Millisecond} {
		at = at.Add(pause)
		l.acknowledge(at)
	}
	l.markKill()
	for _, pause := range []time.Duration{900 * time.Millisecond, time.Millisecond} {
		at = at.Add(pause)
		l.acknowledge(at)
	}
	if l.steadyGap != 5*time.Millisecond || l.killGap != 900*time.Millisecond || l.acks != 5 {
		t.Fatalf("steady %v, kill %v, %d acknowledged", l.steadyGap, l.killGap, l.acks)
	}
}

func TestDemoReportTellsProblems(t *testing.T) {
	var r demoReport
	r.addDigests([]client.Digest{{Node: "n1", Index: 7, Digest: 1}, {Node: "n2", Index: 7, Digest: 2}}, 2)
	r.finish(time.Now())
	if r.OK || r.DigestEqual || len(r.Problems) != 1 {
		t.Fatalf("%+v", r)
	}
	r = demoReport{}
	r.addDigests([]client.Digest{{Node: "n1", Index: 7, Digest: 1}}, 2)
	if r.finish(time.Now()); r.OK {
		t.Fatal("the digest of a node is missing")
	}
	r = demoReport{}
	r.addDigests([]client.Digest{{Node: "n1", Index: 7, Digest: 1}, {Node: "n2", Index: 7, Digest: 1}}, 2)
	if r.finish(time.Now()); !r.OK {
		t.Fatalf("%+v", r)
	}
	text, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(text), `"problems":[]`) {
		t.Fatalf("%s, %v", text, err)
	}
}

func TestDemoTransferLine(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		transfer transferReport
		want     string
	}{
		{transferReport{Phase: "queued", Position: 2}, "n3  queued (2)"},
		{transferReport{Phase: "capture"}, "n3  capture"},
		{transferReport{Phase: "send", BytesDone: 5 * mib, BytesTotal: 10 * mib, MovedBytes: 5 * mib, BytesPerSecond: 2e7, ETASeconds: new(0.5)},
			"n3  ████████░░░░░░░░  50 %  5 MiB of 10 MiB, 20.0 MB/s, 500ms left, send"},
		{transferReport{Phase: "catch_up", BytesDone: 10 * mib, BytesTotal: 10 * mib, MovedBytes: 10 * mib, BytesPerSecond: 2e7},
			"n3  ████████████████ 100 %  10 MiB of 10 MiB, 20.0 MB/s, catch up"},
	} {
		if got := demoTransferLine("n3", test.transfer); got != test.want {
			t.Errorf("%s, want %s", got, test.want)
		}
	}
	if demoTransferRate(0) != demoMinRate || demoTransferRate(120*mib) != 20*mib {
		t.Errorf("rates %d and %d", demoTransferRate(0), demoTransferRate(120*mib))
	}
}
