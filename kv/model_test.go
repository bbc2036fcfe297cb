package kv

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// model is the state machine as its rules read, on plain maps: no batches, no
// codecs, no tables.
type model struct {
	records  map[string]modelRecord
	registry map[string]modelRecord
	sessions map[uint64]*modelSession
	mode     kvv1.FeedMode
}

type modelRecord struct {
	value    string
	revision uint64
}

type modelSession struct {
	ttl, last int64
	mark      uint64
	replies   map[uint64]modelAnswer
}

// modelAnswer is what a command answers.
type modelAnswer struct {
	reason kvv1.Reason
	result *kvv1.OperationResult
}

func newModel() *model {
	return &model{
		records: map[string]modelRecord{}, registry: map[string]modelRecord{},
		sessions: map[uint64]*modelSession{}, mode: kvv1.FeedMode_FEED_MODE_KEYS,
	}
}

func (m *model) apply(e raftnode.Entry) modelAnswer {
	for id, s := range m.sessions {
		if s.last+s.ttl <= e.Clock {
			delete(m.sessions, id)
		}
	}
	revision := e.Revision()
	success := modelAnswer{result: &kvv1.OperationResult{Revision: revision}}
	c := new(kvv1.Command)
	if e.Data == nil {
		return success
	}
	limits := formatLimits()
	if proto.Unmarshal(e.Data, c) != nil || limits.CheckCommand(c) != nil {
		return modelAnswer{reason: kvv1.Reason_REASON_INVALID}
	}
	r := c.GetSession()
	if r == nil {
		return m.execute(c, e, success)
	}
	s := m.sessions[r.GetId()]
	if s == nil {
		return modelAnswer{reason: kvv1.Reason_REASON_SESSION_EXPIRED}
	}
	s.last = e.Clock
	s.mark = max(s.mark, r.GetLowWaterMark())
	if r.GetSequence() < s.mark {
		return modelAnswer{reason: kvv1.Reason_REASON_SEQUENCE_TOO_OLD}
	}
	if answer, ok := s.replies[r.GetSequence()]; ok {
		return answer
	}
	s.replies[r.GetSequence()] = m.execute(c, e, success)
	return s.replies[r.GetSequence()]
}

func (m *model) execute(c *kvv1.Command, e raftnode.Entry, success modelAnswer) modelAnswer {
	revision := e.Revision()
	switch o := c.GetCommand().(type) {
	case *kvv1.Command_Put:
		m.records[string(o.Put.GetKey())] = modelRecord{string(o.Put.GetValue()), revision}
	case *kvv1.Command_Delete:
		_, success.result.Existed = m.records[string(o.Delete.GetKey())]
		delete(m.records, string(o.Delete.GetKey()))
	case *kvv1.Command_DeleteRange:
		deleteModelRange(m.records, o.DeleteRange)
	case *kvv1.Command_Batch:
		modelWrites(m.records, o.Batch.GetOperations(), revision)
	case *kvv1.Command_RegistryWrite:
		if success.result.Succeeded = modelCompare(m.registry, o.RegistryWrite.GetCompares()); success.result.Succeeded {
			modelWrites(m.registry, o.RegistryWrite.GetOperations(), revision)
		}
	case *kvv1.Command_OpenClientSession:
		m.sessions[revision] = &modelSession{ttl: int64(o.OpenClientSession.GetTimeToLiveMs()), last: e.Clock, replies: map[uint64]modelAnswer{}}
	case *kvv1.Command_CloseClientSession:
		if m.sessions[o.CloseClientSession.GetId()] == nil {
			return modelAnswer{reason: kvv1.Reason_REASON_SESSION_EXPIRED}
		}
		delete(m.sessions, o.CloseClientSession.GetId())
	case *kvv1.Command_SetFeedMode:
		m.mode = o.SetFeedMode.GetMode()
	case *kvv1.Command_Txn:
		steps := o.Txn.GetFailure()
		if success.result.Succeeded = modelCompare(m.records, o.Txn.GetCompares()); success.result.Succeeded {
			steps = o.Txn.GetSuccess()
		}
		for _, step := range steps {
			answer := new(kvv1.TxnOperationResult)
			switch o := step.GetOperation().(type) {
			case *kvv1.TxnOperation_Put:
				m.records[string(o.Put.GetKey())] = modelRecord{string(o.Put.GetValue()), revision}
			case *kvv1.TxnOperation_Delete:
				_, answer.Existed = m.records[string(o.Delete.GetKey())]
				delete(m.records, string(o.Delete.GetKey()))
			case *kvv1.TxnOperation_DeleteRange:
				deleteModelRange(m.records, o.DeleteRange)
			case *kvv1.TxnOperation_Get:
				if rec, ok := m.records[string(o.Get.GetKey())]; ok {
					answer.Record = &kvv1.KeyValue{Key: o.Get.GetKey(), Value: []byte(rec.value), ModRevision: rec.revision}
				}
			}
			success.result.Txn = append(success.result.Txn, answer)
		}
	}
	return success
}

func modelWrites(space map[string]modelRecord, ops []*kvv1.BatchOperation, revision uint64) {
	for _, op := range ops {
		switch o := op.GetOperation().(type) {
		case *kvv1.BatchOperation_Put:
			space[string(o.Put.GetKey())] = modelRecord{string(o.Put.GetValue()), revision}
		case *kvv1.BatchOperation_Delete:
			delete(space, string(o.Delete.GetKey()))
		case *kvv1.BatchOperation_DeleteRange:
			deleteModelRange(space, o.DeleteRange)
		}
	}
}

func deleteModelRange(space map[string]modelRecord, r *kvv1.DeleteRange) {
	maps.DeleteFunc(space, func(key string, _ modelRecord) bool {
		return key >= string(r.GetStart()) && (len(r.GetEnd()) == 0 || key < string(r.GetEnd()))
	})
}

func modelCompare(space map[string]modelRecord, compares []*kvv1.Compare) bool {
	for _, c := range compares {
		rec, ok := space[string(c.GetKey())]
		switch o := c.GetCondition().(type) {
		case *kvv1.Compare_Exists:
			if ok != o.Exists {
				return false
			}
		case *kvv1.Compare_ValueEquals:
			if !ok || rec.value != string(o.ValueEquals) {
				return false
			}
		case *kvv1.Compare_Revision:
			holds := map[kvv1.RevisionCompare_Operator]bool{
				kvv1.RevisionCompare_OPERATOR_EQUAL:     rec.revision == o.Revision.GetRevision(),
				kvv1.RevisionCompare_OPERATOR_NOT_EQUAL: rec.revision != o.Revision.GetRevision(),
				kvv1.RevisionCompare_OPERATOR_LESS:      rec.revision < o.Revision.GetRevision(),
				kvv1.RevisionCompare_OPERATOR_GREATER:   rec.revision > o.Revision.GetRevision(),
			}[o.Revision.GetOperator()]
			if !holds {
				return false
			}
		}
	}
	return true
}

// TestModel compares every answer and the records with the model's, with a
// reopen in between.
func TestModel(t *testing.T) {
	shared := testShared(t)
	rapid.Check(t, func(rt *rapid.T) {
		seed, n := rapid.Uint64().Draw(rt, "seed"), rapid.IntRange(1, 120).Draw(rt, "indexes")
		reopen := rapid.IntRange(0, n).Draw(rt, "reopen")
		s := openStore(t, Options{Shared: shared})
		m := newModel()
		for i, e := range splitIndexes(newRandomLog(seed).grow(n)) {
			if i == reopen {
				if err := s.Flush(); err != nil {
					rt.Fatal(err)
				}
				closeStore(t, s)
				s = openStore(t, Options{Shared: shared, FS: s.opts.FS})
			}
			results, err := s.Apply(e)
			if err != nil {
				rt.Fatal(err)
			}
			for j := range e {
				want := m.apply(e[j])
				got, failure, err := DecodeResult(results[j])
				if err != nil {
					rt.Fatal(err)
				}
				if failure.GetReason() != want.reason || !proto.Equal(got, want.result) {
					rt.Fatalf("index %d.%d: got %v %v, want %+v", e[j].Index, e[j].Ordinal, got, failure, want)
				}
			}
		}
		compareModel(rt, s.Range, m.records)
		compareModel(rt, s.SpaceRange, m.registry)
		if s.Metrics().FeedMode != m.mode || int(s.Metrics().Sessions) != len(m.sessions) {
			rt.Fatalf("%v, want mode %s and %d sessions", s.Metrics(), m.mode, len(m.sessions))
		}
		closeStore(t, s)
	})
}

func compareModel(rt *rapid.T, scan func(context.Context, RangeOptions) (RangeResult, error), want map[string]modelRecord) {
	for _, reverse := range []bool{false, true} {
		keys := slices.Sorted(maps.Keys(want))
		if reverse {
			slices.Reverse(keys)
		}
		o := RangeOptions{Limit: 3, Reverse: reverse}
		for {
			got, err := scan(context.Background(), o)
			if err != nil {
				rt.Fatal(err)
			}
			for _, rec := range got.Records {
				if len(keys) == 0 || string(rec.Key) != keys[0] || !bytes.Equal(rec.Value, []byte(want[keys[0]].value)) || rec.ModRevision != want[keys[0]].revision {
					rt.Fatalf("read %+v, want %v of %v", rec, keys, want)
				}
				keys = keys[1:]
			}
			if o.Page = got.Next; len(o.Page) == 0 {
				break
			}
		}
		if len(keys) > 0 {
			rt.Fatalf("not read: %v", keys)
		}
	}
}

// splitIndexes splits entries into one slice per index.
func splitIndexes(entries []raftnode.Entry) [][]raftnode.Entry {
	var out [][]raftnode.Entry
	begin := 0
	for i := range entries {
		if entries[i].Last {
			out, begin = append(out, entries[begin:i+1]), i+1
		}
	}
	return out
}
