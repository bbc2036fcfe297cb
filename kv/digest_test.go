package kv

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

func registryPut(key, value string) *kvv1.Command {
	return &kvv1.Command{Command: &kvv1.Command_RegistryWrite{RegistryWrite: &kvv1.RegistryWrite{
		Operations: []*kvv1.BatchOperation{{Operation: &kvv1.BatchOperation_Put{Put: &kvv1.Put{Key: []byte(key), Value: []byte(value)}}}},
	}}}
}

// TestDigestAt waits for an index to come, and tells what will not come.
func TestDigestAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := openStore(t, Options{}), newTestLog()
		type answer struct {
			digest Digest
			err    error
		}
		ask := func(index uint64) chan answer {
			c := make(chan answer, 1)
			go func() {
				d, err := s.DigestAt(t.Context(), index)
				c <- answer{d, err}
			}()
			return c
		}
		second, third := ask(2), ask(3)
		log.apply(t, s, put("a", "1"))
		synctest.Wait()
		select {
		case a := <-second:
			t.Fatalf("answered before its index: %+v", a)
		default:
		}
		log.apply(t, s, put("b", "1"), must(EncodeTakeDigest(nil)), put("c", "1"))
		if a := <-second; a.err != nil || a.digest.Index != 2 || a.digest.Records != 3 {
			t.Fatalf("got %+v, want 3 records at index 2", a)
		}
		log.apply(t, s, put("d", "1"))
		if a := <-third; !errors.Is(a.err, ErrDigestUnknown) {
			t.Fatalf("got %+v, want ErrDigestUnknown", a)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.DigestAt(ctx, 99); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want the deadline", err)
		}
		// Only the last ones are kept.
		for range digestsKept + digestsWaiting {
			log.apply(t, s, must(EncodeTakeDigest(nil)))
			if _, err := s.DigestAt(t.Context(), log.index); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.DigestAt(t.Context(), 2); !errors.Is(err, ErrDigestUnknown) {
			t.Fatalf("got %v, want ErrDigestUnknown", err)
		}
	})
}
