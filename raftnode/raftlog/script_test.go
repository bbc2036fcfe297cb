package raftlog

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
)

// TestScripts runs the scripts in testdata. Commands:
//
//	open                    opens the log (it is closed before if open)
//	append [nosync]         one line per update: group=N [marker=I/T] [reset]
//	                        [entries=FIRST..LAST/T] [size=BYTES] [hs=T/V/C]
//	prove                   ProveEnd
//	show                    the groups
//	files                   the segments and what lives in them
//	dump                    the batches and records on disk
//	crash [damage]          opens what a crash now leaves (nothing unsynced)
//	damage segment=N at=B   flips a bit of a byte, like crash with these
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		fs := vfs.NewCrashableMem()
		var l *Log
		closeLog := func() error {
			if l == nil {
				return nil
			}
			waitForKeeper(t, l)
			err := l.Close()
			l = nil
			return err
		}
		defer func() {
			if err := closeLog(); err != nil {
				t.Error(err)
			}
		}()
		open := func() string {
			var err error
			if l, err = Open(testOptions(fs)); err != nil {
				return err.Error() + "\n"
			}
			return show(l)
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "open":
				if err := closeLog(); err != nil {
					return err.Error() + "\n"
				}
				return open()
			case "close":
				if err := closeLog(); err != nil {
					return err.Error() + "\n"
				}
				return ""
			case "append":
				if err := l.Append(parseUpdates(t, d.Input), !d.HasArg("nosync")); err != nil {
					return err.Error() + "\n"
				}
				return show(l)
			case "prove":
				if err := l.ProveEnd(); err != nil {
					return err.Error() + "\n"
				}
				return ""
			case "show":
				return show(l)
			case "files":
				var b strings.Builder
				for _, s := range l.segments {
					fmt.Fprintf(&b, "segment %d: end %d, live %d\n", s.number, s.offset, s.live)
				}
				return b.String()
			case "dump":
				if l != nil {
					waitForKeeper(t, l)
				}
				return dump(t, fs)
			case "crash":
				crashed := fs.CrashClone(vfs.CrashCloneCfg{})
				if err := closeLog(); err != nil {
					return err.Error() + "\n"
				}
				fs = crashed
				if d.HasArg("at") {
					damage(t, d, fs)
				}
				return open()
			case "damage":
				damage(t, d, fs)
				return ""
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	})
}

func damage(t *testing.T, d *datadriven.TestData, fs vfs.FS) {
	var n uint64
	var at int64
	d.ScanArgs(t, "segment", &n)
	d.ScanArgs(t, "at", &at)
	name := fs.PathJoin(testDir, segmentName(n))
	overwrite(t, fs, name, at, []byte{contents(t, fs, name)[at] ^ 1})
}

// waitForKeeper waits until retired segments are disposed of.
func waitForKeeper(t *testing.T, l *Log) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		l.keeper.mu.Lock()
		n := len(l.keeper.retired)
		l.keeper.mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d retired segments are still there", n)
		}
	}
}

func parseUpdates(t *testing.T, input string) []Update {
	var us []Update
	for line := range strings.Lines(input) {
		var u Update
		size := 8
		var first, last, term uint64
		for _, f := range strings.Fields(line) {
			key, value, _ := strings.Cut(f, "=")
			var err error
			switch key {
			case "group":
				_, err = fmt.Sscanf(value, "%d", &u.Group)
			case "marker":
				u.Marker = new(Marker)
				_, err = fmt.Sscanf(value, "%d/%d", &u.Marker.Index, &u.Marker.Term)
			case "reset":
				u.Reset = true
			case "entries":
				_, err = fmt.Sscanf(value, "%d..%d/%d", &first, &last, &term)
			case "size":
				_, err = fmt.Sscanf(value, "%d", &size)
			case "hs":
				var hs hardState
				_, err = fmt.Sscanf(value, "%d/%d/%d", &hs.term, &hs.vote, &hs.commit)
				u.HardState = hs.message()
			default:
				t.Fatalf("unknown key %q", key)
			}
			if err != nil {
				t.Fatalf("%q: %v", f, err)
			}
		}
		if first > 0 {
			u.Entries = entries(term, first, int(last-first+1), size)
		}
		us = append(us, u)
	}
	return us
}

// show prints runs of entries of one term.
func show(l *Log) string {
	var b strings.Builder
	for _, id := range l.Groups() {
		g := l.Group(id)
		hs := hardStateOf(g.HardState())
		fmt.Fprintf(&b, "group %d: marker %d/%d, hs %d/%d/%d, entries", id, g.Marker().Index, g.Marker().Term, hs.term, hs.vote, hs.commit)
		es, err := g.Entries(g.FirstIndex(), g.LastIndex()+1, ^uint64(0))
		if err != nil {
			fmt.Fprintf(&b, " %v\n", err)
			continue
		}
		b.WriteString(runs(es))
		b.WriteByte('\n')
	}
	if b.Len() == 0 {
		return "no groups\n"
	}
	return b.String()
}

func runs(es []*raftpb.Entry) string {
	var b strings.Builder
	for len(es) > 0 {
		n := 1
		for n < len(es) && es[n].GetTerm() == es[0].GetTerm() {
			n++
		}
		fmt.Fprintf(&b, " %d..%d/%d", es[0].GetIndex(), es[n-1].GetIndex(), es[0].GetTerm())
		es = es[n:]
	}
	if b.Len() == 0 {
		return " none"
	}
	return b.String()
}

// dump prints what the segment files hold, whole batch by whole batch.
func dump(t testing.TB, fs vfs.FS) string {
	names, err := fs.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		n, ok := parseSegmentName(name)
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "%s\n", name)
		c := contents(t, fs, fs.PathJoin(testDir, name))
		for offset := 0; offset+headerSize <= len(c); {
			h, reason := decodeHeader(c[offset:])
			if reason == "" && h.segment == n {
				reason = checkBody(&h, c[offset+headerSize:])
			}
			if reason != "" || h.segment != n {
				break
			}
			fmt.Fprintf(&b, "  %d: batch %d, synced through %d", offset, h.batch, h.syncedThrough)
			if h.isHead() {
				b.WriteString(", head")
			}
			b.WriteByte('\n')
			for body := c[offset+headerSize:][:h.bodyBytes]; len(body) > 0; {
				r, size, _ := decodeRecord(body)
				fmt.Fprintf(&b, "    %s\n", recordString(r))
				body = body[size:]
			}
			offset += int(h.size())
		}
	}
	return b.String()
}

func recordString(r record) string {
	switch r.kind {
	case kindHead:
		return fmt.Sprintf("first segment needed %d", uint64At(r.payload, 0))
	case kindGroup:
		h := decodeGroupHead(r.payload)
		return fmt.Sprintf("group %d: marker %d/%d, last %d/%d, hs %d/%d/%d", r.group, h.marker.Index, h.marker.Term,
			h.last, h.lastTerm, h.hardState.term, h.hardState.vote, h.hardState.commit)
	case kindMarker:
		m, reset := decodeMarker(r.payload)
		return fmt.Sprintf("group %d: marker %d/%d, reset %v", r.group, m.Index, m.Term, reset)
	case kindHardState:
		hs := decodeHardState(r.payload)
		return fmt.Sprintf("group %d: hs %d/%d/%d", r.group, hs.term, hs.vote, hs.commit)
	}
	e := decodeEntry(r.payload)
	name := "entry"
	if r.kind == kindMoved {
		name = "moved"
	}
	return fmt.Sprintf("group %d: %s %d/%d, type %d, %d bytes", r.group, name, e.index, e.term, e.typ, len(e.data))
}
