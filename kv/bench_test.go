package kv

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/raftnode"
)

// benchStore opens a store with the default memtable on a memory file system.
func benchStore(b *testing.B) *Store {
	b.Helper()
	shared, err := NewShared(SharedOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := shared.Close(); err != nil {
			b.Error(err)
		}
	})
	return openStore(b, Options{FS: vfs.NewMem(), Shared: shared, MemTableBytes: 64 << 20})
}

// benchPuts returns n encoded puts of random 16-byte keys and 256-byte values.
func benchPuts(n int) [][]byte {
	random := rand.New(rand.NewPCG(1, 2))
	commands := make([][]byte, n)
	key, value := make([]byte, 16), make([]byte, 256)
	for i := range commands {
		for at := 0; at < len(value); at += 8 {
			binary.LittleEndian.PutUint64(value[at:], random.Uint64())
		}
		binary.BigEndian.PutUint64(key, random.Uint64())
		commands[i] = EncodePut(nil, key, value, nil)
	}
	return commands
}

// BenchmarkApplyPut applies puts of 256 B; one operation is one put, flushes and
// compactions included.
func BenchmarkApplyPut(b *testing.B) {
	for _, size := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			s := benchStore(b)
			commands := benchPuts(1 << 16)
			entries := make([]raftnode.Entry, size)
			index, next := uint64(0), 0
			b.SetBytes(16 + 256)
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; done += size {
				index++
				for i := range entries {
					entries[i] = raftnode.Entry{
						Index: index, Term: 1, Ordinal: uint16(i), Last: i == size-1, Clock: int64(index), Data: commands[next],
					}
					next = (next + 1) % len(commands)
				}
				if _, err := s.Apply(entries); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// fillBench puts n records and flushes them.
func fillBench(b *testing.B, s *Store, n int) [][]byte {
	b.Helper()
	commands, log := benchPuts(n), newTestLog()
	keys := make([][]byte, n)
	for i, c := range commands {
		keys[i] = decodeCommand(c).key
	}
	for len(commands) > 0 {
		batch := commands[:min(1024, len(commands))]
		commands = commands[len(batch):]
		log.apply(b, s, batch...)
	}
	if err := s.Flush(); err != nil {
		b.Fatal(err)
	}
	return keys
}

// BenchmarkGet reads random records of a flushed store.
func BenchmarkGet(b *testing.B) {
	s := benchStore(b)
	keys := fillBench(b, s, 100_000)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if got, err := s.Get(keys[i*7919%len(keys)]); err != nil || !got.Found {
			b.Fatal(got, err)
		}
	}
}

// BenchmarkRange reads pages of 100 records.
func BenchmarkRange(b *testing.B) {
	s := benchStore(b)
	keys := fillBench(b, s, 100_000)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if _, err := s.Range(context.Background(), RangeOptions{Start: keys[i*7919%len(keys)], Limit: 100}); err != nil {
			b.Fatal(err)
		}
	}
}
