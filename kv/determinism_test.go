package kv

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/streamraft/streamraft/raftnode"
)

// TestSameLogSameBytes feeds one log to stores that differ in everything a
// replica may differ in: how Apply calls are cut, batch size, compression,
// journal retention, flushes and crashes.
func TestSameLogSameBytes(t *testing.T) {
	shared := testShared(t)
	rapid.Check(t, func(rt *rapid.T) {
		log := newRandomLog(rapid.Uint64().Draw(rt, "seed"))
		log.value = rapid.SampledFrom([]int{4, 40, 1500}).Draw(rt, "value")
		log.grow(rapid.IntRange(1, 150).Draw(rt, "indexes"))
		log.add(must(EncodeTakeDigest(nil)))
		entries := log.entries

		plain := openStore(t, Options{Shared: shared, JournalBytes: 1 << 30})
		if _, err := plain.Apply(entries); err != nil {
			rt.Fatal(err)
		}
		other := openStore(t, Options{
			Shared: shared, FS: vfs.NewCrashableMem(), Compression: CompressionNone, JournalBytes: 1 << 30, MemTableBytes: 64 << 10,
		})
		other.batchBytes = rapid.SampledFrom([]int{1, 100, 5000}).Draw(rt, "batch")
		feed := splitIndexes(entries)
		for len(feed) > 0 {
			n := rapid.IntRange(1, min(len(feed), 20)).Draw(rt, "call")
			var call []raftnode.Entry
			for _, e := range feed[:n] {
				call = append(call, e...)
			}
			feed = feed[n:]
			if _, err := other.Apply(call); err != nil {
				rt.Fatal(err)
			}
			switch rapid.IntRange(0, 9).Draw(rt, "event") {
			case 0:
				if err := other.Flush(); err != nil {
					rt.Fatal(err)
				}
			case 1:
				fs := other.opts.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
				closeStore(t, other)
				next := openStore(t, Options{Shared: shared, FS: fs, JournalBytes: 1 << 30, MemTableBytes: 64 << 10})
				next.batchBytes = other.batchBytes
				other = next
				feed = splitIndexes(from(entries, other.AppliedIndex()))
			}
		}
		if diff := cmp.Diff(dump(t, plain), dump(t, other)); diff != "" {
			rt.Fatalf("the states differ:\n%s", diff)
		}
		// With equal retention, even what is local is equal.
		if diff := cmp.Diff(dumpAll(t, plain), dumpAll(t, other)); diff != "" {
			rt.Fatalf("the journals differ:\n%s", diff)
		}
		a, err := plain.DigestAt(context.Background(), log.index)
		if err != nil {
			rt.Fatal(err)
		}
		b, err := other.DigestAt(context.Background(), log.index)
		if err != nil || a != b {
			rt.Fatalf("digests %v and %v, error %v", a, b, err)
		}
		closeStore(t, plain)
		closeStore(t, other)
	})
}

// TestDigestSeesEverySpace changes one thing at a time and wants another digest.
func TestDigestSeesEverySpace(t *testing.T) {
	open := must(EncodeOpenClientSession(nil, 0))
	seen := make(map[uint64]string)
	for name, commands := range map[string][][]byte{
		"nothing":     {},
		"record":      {put("a", "1")},
		"other value": {put("a", "2")},
		"other key":   {put("b", "1")},
		"session":     {open},
		"session use": {open, putIn("a", "1", ref(raftnode.Revision(1, 0), 1, 1))},
		"reply":       {open, putIn("a", "1", ref(raftnode.Revision(1, 0), 2, 1))},
		"mark":        {open, putIn("a", "1", ref(raftnode.Revision(1, 0), 2, 2))},
		"registry":    {must(EncodeCommand(nil, registryPut("a", "1")))},
	} {
		s, log := openStore(t, Options{}), newTestLog()
		log.add(commands...)
		index := log.add(must(EncodeTakeDigest(nil)))
		// What follows the index is not in its digest.
		log.add(put("z", "z"))
		if _, err := s.Apply(log.take()); err != nil {
			t.Fatal(err)
		}
		digest, err := s.DigestAt(context.Background(), index)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[digest.Hash]; ok {
			t.Errorf("%q and %q have the same digest", name, other)
		}
		seen[digest.Hash] = name
		if name == "nothing" && digest.Records != 0 {
			t.Errorf("an empty state digests %d records: the next index leaked in", digest.Records)
		}
	}
}
