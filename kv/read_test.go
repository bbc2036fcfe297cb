package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
)

// TestReadsSeeWholeIndexes reads beside Apply. Every index writes its number to
// all keys, and every tenth deletes them: a read at index i must find exactly
// what i left.
func TestReadsSeeWholeIndexes(t *testing.T) {
	s, log := openStore(t, Options{}), newTestLog()
	const keys, indexes = 8, 1500
	key := func(i int) []byte { return fmt.Appendf(nil, "key %d", i) }
	check := func(index uint64, found bool, value []byte, revision uint64) error {
		if want := index > 0 && index%10 != 0; found != want {
			return fmt.Errorf("at index %d: found %v", index, found)
		}
		if found && (string(value) != fmt.Sprint(index) || revision>>16 != index) {
			return fmt.Errorf("at index %d: value %q of index %d", index, value, revision>>16)
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for reader := range 3 {
		readers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				var err error
				if reader == 0 {
					var page RangeResult
					page, err = s.Range(context.Background(), RangeOptions{})
					if n := len(page.Records); err == nil && n != 0 && n != keys {
						err = fmt.Errorf("at index %d: %d records", page.Index, n)
					}
					for _, rec := range page.Records {
						err = errors.Join(err, check(page.Index, true, rec.Value, rec.ModRevision))
					}
				} else {
					var got GetResult
					got, err = s.Get(key(i % keys))
					if err == nil {
						err = check(got.Index, got.Found, got.Record.Value, got.Record.ModRevision)
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for index := 1; index <= indexes; index++ {
		var commands [][]byte
		for i := range keys {
			if index%10 == 0 {
				commands = append(commands, del(string(key(i))))
			} else {
				commands = append(commands, EncodePut(nil, key(i), fmt.Append(nil, index), nil))
			}
		}
		log.apply(t, s, commands...)
	}
	cancel()
	readers.Wait()
}

// TestGetWithIterator compares the slow way of Get with the quick one.
func TestGetWithIterator(t *testing.T) {
	s, log := openStore(t, Options{}), newTestLog()
	log.apply(t, s, put("a", "1"), put("c", ""))
	for _, key := range []string{"a", "b", "c", "d"} {
		quick, err := s.Get([]byte(key))
		if err != nil {
			t.Fatal(err)
		}
		slow, err := s.getWithIterator(s.current.Load().db, spaceKey(nil, spaceRecords, []byte(key)))
		if err != nil || fmt.Sprintf("%+v", slow) != fmt.Sprintf("%+v", quick) {
			t.Errorf("%s: %+v and %+v, %v", key, quick, slow, err)
		}
	}
}

// TestRangeLimits checks the bounds of a page.
func TestRangeLimits(t *testing.T) {
	s, log := openStore(t, Options{}), newTestLog()
	for i := range 5 {
		log.add(EncodePut(nil, fmt.Append(nil, i), bytes.Repeat([]byte{'v'}, 100), nil))
	}
	log.apply(t, s, must(EncodeCommand(nil, registryPut("r", "1"))))
	for _, c := range []struct {
		options RangeOptions
		records int
		more    bool
	}{
		{RangeOptions{}, 5, false},
		{RangeOptions{Limit: 5}, 5, false},
		{RangeOptions{Limit: 4}, 4, true},
		{RangeOptions{MaxBytes: 1}, 1, true},
		{RangeOptions{MaxBytes: 250}, 2, true},
		{RangeOptions{MaxBytes: 3, KeysOnly: true}, 3, true},
		{RangeOptions{Start: []byte("1"), End: []byte("3")}, 2, false},
		{RangeOptions{Start: []byte("3"), End: []byte("1")}, 0, false},
		{RangeOptions{Start: []byte("9")}, 0, false},
	} {
		got, err := s.Range(t.Context(), c.options)
		if err != nil || len(got.Records) != c.records || (len(got.Next) > 0) != c.more || got.Count != uint64(c.records) || got.Index != 6 {
			t.Errorf("%+v: %+v, %v", c.options, got, err)
		}
	}
	if got, err := s.Range(t.Context(), RangeOptions{CountOnly: true, Limit: 1}); err != nil || got.Count != 5 || got.Records != nil {
		t.Errorf("count: %+v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Range(ctx, RangeOptions{CountOnly: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if got, err := s.SpaceGet([]byte("r")); err != nil || string(got.Record.Value) != "1" {
		t.Errorf("registry: %+v, %v", got, err)
	}
}

// TestPageTokens wants a clear error for every token that is not this range's.
func TestPageTokens(t *testing.T) {
	s, log := openStore(t, Options{}), newTestLog()
	log.apply(t, s, put("a", "1"), put("b", "1"), put("c", "1"), put("d", "1"))
	first, err := s.Range(t.Context(), RangeOptions{Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(first.Next)
	flipped[3] ^= 1
	for name, o := range map[string]RangeOptions{
		"short":       {Page: []byte{1}},
		"flipped":     {Page: flipped},
		"direction":   {Page: first.Next, Reverse: true},
		"out of it":   {Page: first.Next, Start: []byte("c")},
		"other space": {Page: appendPageToken(nil, spaceRegistry, false, []byte("b"))},
		"too long":    {Page: appendPageToken(nil, spaceRecords, false, make([]byte, MaxKeyBytes+1))},
	} {
		if _, err := s.Range(t.Context(), o); !errors.Is(err, ErrPageToken) {
			t.Errorf("%s: %v, want ErrPageToken", name, err)
		}
	}
	rest, err := s.Range(t.Context(), RangeOptions{Page: first.Next})
	if err != nil || len(rest.Records) != 2 || string(rest.Records[0].Key) != "c" || len(rest.Next) != 0 {
		t.Errorf("the rest: %+v, %v", rest, err)
	}
}

// TestResultBound refuses a transaction whose answer would be too large, whole.
func TestResultBound(t *testing.T) {
	s, log := openStore(t, Options{}), newTestLog()
	big := bytes.Repeat([]byte("v"), 1<<20)
	log.apply(t, s, EncodePut(nil, []byte("big"), big, nil))
	for gets, fits := range map[int]bool{3: true, 4: false} {
		txn := newTxn(put("mark", fmt.Sprint(gets)))
		for range gets {
			txn.Success = append(txn.Success, getStep("big"))
		}
		results := log.apply(t, s, must(EncodeTxn(nil, txn, nil)))
		got, err := s.Get([]byte("mark"))
		if err != nil {
			t.Fatal(err)
		}
		if fits {
			result(t, results[0])
		} else {
			reason(t, results[0])
		}
		if applied := got.Found && string(got.Record.Value) == fmt.Sprint(gets); applied != fits {
			t.Errorf("%d gets: applied %v, want %v", gets, applied, fits)
		}
	}
}
