package raftnode_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// filed is a chain whose state is one file; its images are copies of that file.
type filed struct {
	chain
	dir     string
	durable atomic.Uint64
	// crash makes Install end as a crash would right after the switch: the state
	// is there, and nobody was told.
	crash *atomic.Bool
	// refusals is how many Installs fail, before the file is replaced or after.
	refusals     *atomic.Int32
	refuseBefore bool
}

type filedState struct {
	Applied raftnode.Applied
	Sum     uint32
	Count   int
	Clock   int64
}

func (f *filed) path() string { return filepath.Join(f.dir, "state.json") }

func (f *filed) Open(dir string) (raftnode.Applied, error) {
	f.dir = dir
	data, err := os.ReadFile(f.path())
	if errors.Is(err, os.ErrNotExist) {
		return raftnode.Applied{}, nil
	}
	if err != nil {
		return raftnode.Applied{}, err
	}
	return f.load(data)
}

func (f *filed) load(data []byte) (raftnode.Applied, error) {
	var s filedState
	if err := json.Unmarshal(data, &s); err != nil {
		return raftnode.Applied{}, fmt.Errorf("%w: %w", raftnode.ErrUnsound, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applied, f.sum, f.count, f.clock = s.Applied, s.Sum, s.Count, s.Clock
	f.durable.Store(s.Applied.Index)
	return s.Applied, nil
}

func (f *filed) encode() ([]byte, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, _ := json.Marshal(filedState{f.applied, f.sum, f.count, f.clock})
	return data, f.applied.Index
}

func (f *filed) DurableApplied() uint64 { return f.durable.Load() }

func (f *filed) Flush() error {
	data, index := f.encode()
	if err := os.WriteFile(f.path()+".new", data, 0o600); err != nil {
		return err
	}
	if err := os.Rename(f.path()+".new", f.path()); err != nil {
		return err
	}
	f.durable.Store(max(f.durable.Load(), index))
	return nil
}

type filedCapture struct {
	f    *filed
	data []byte
}

func (f *filed) Capture(_ snapshot.Have, minIndex uint64) (snapshot.Capture, error) {
	data, index := f.encode()
	if index < minIndex {
		return nil, snapshot.ErrTooOld
	}
	return &filedCapture{f, data}, nil
}

func (c *filedCapture) Close() error { return nil }

func (c *filedCapture) Write(_ context.Context, dir string) (*snapshotv1.Manifest, error) {
	var s filedState
	if err := json.Unmarshal(c.data, &s); err != nil {
		return nil, err
	}
	return &snapshotv1.Manifest{
		Kind: snapshotv1.Kind_KIND_STREAM, Index: s.Applied.Index, Term: s.Applied.Term, Clock: s.Applied.Clock, Membership: s.Applied.Membership,
		Files: []*snapshotv1.File{{Name: "state.json", Size: uint64(len(c.data))}}, Bytes: uint64(len(c.data)), RawBytes: uint64(len(c.data)), Records: 1,
	}, os.WriteFile(filepath.Join(dir, "state.json"), c.data, 0o600)
}

type filedSink struct {
	dir  string
	data []byte
}

func (f *filed) Stage(_ *snapshotv1.Manifest, dir string) (snapshot.Sink, error) {
	return &filedSink{dir: dir}, nil
}

func (s *filedSink) CheckFile(context.Context, string, bool) error { return nil }
func (s *filedSink) Discard() error                                { return nil }
func (s *filedSink) Prepare(context.Context) (err error) {
	s.data, err = os.ReadFile(filepath.Join(s.dir, "state.json"))
	return err
}

func (f *filed) Install(sink snapshot.Sink) error {
	data := sink.(*filedSink).data
	refused := f.refusals != nil && f.refusals.Add(-1) >= 0
	if refused && f.refuseBefore {
		return errors.New("told to fail before the switch")
	}
	if err := os.WriteFile(f.path(), data, 0o600); err != nil {
		return err
	}
	if f.crash.Load() {
		runtime.Goexit()
	}
	if refused {
		return errors.New("told to fail after the switch")
	}
	_, err := f.load(data)
	return err
}

// lazyProvider serves images once the node is open.
type lazyProvider struct {
	node atomic.Pointer[raftnode.Node]
	hold *atomic.Bool
}

func (p *lazyProvider) Provide(ctx context.Context, req *snapshotv1.Open, progress func(done, total uint64)) (snapshot.OpenedImage, snapshot.Choice, error) {
	node := p.node.Load()
	if node == nil || p.hold.Load() {
		return nil, "", snapshot.ErrBusy
	}
	return node.Provide(ctx, req, progress)
}

// imageCluster is a cluster of filed machines with short logs.
func imageCluster(t *testing.T, crash *atomic.Bool, adjust ...func(*filed)) (c *cluster, machine func(m *member) *filed) {
	t.Helper()
	var mu sync.Mutex
	machines := map[string]*filed{}
	c = newCluster(t, 3, func(o *raftnode.Options) {
		o.LogBudgetBytes, o.DiskCheckInterval = 16<<10, 10*time.Millisecond
		o.LogSegmentBytes, o.MaxCommandBytes, o.MaxEntryBytes = 256<<10, 16<<10, 16<<10
		receiver, err := snapshot.NewReceiver(snapshot.ReceiverOptions{Space: snapshot.SpaceOptions{}})
		if err != nil {
			t.Fatal(err)
		}
		o.Snapshots = &raftnode.SnapshotOptions{Receiver: receiver}
		node := o.Node
		o.NewStateMachine = func(group uint64) raftnode.StateMachine {
			mu.Lock()
			defer mu.Unlock()
			f := &filed{crash: crash}
			for _, change := range adjust {
				change(f)
			}
			machines[fmt.Sprint(node, "/", group)] = f
			return f
		}
	})
	c.images = true
	return c, func(m *member) *filed {
		mu.Lock()
		defer mu.Unlock()
		return machines[fmt.Sprint(m.name, "/", raftnode.FirstDataGroup)]
	}
}

// TestBehindTheLog: a member comes back after the others cut their logs, gets an
// image, and goes on with the log.
func TestBehindTheLog(t *testing.T) {
	c, machine := imageCluster(t, &atomic.Bool{})
	c.openAll()
	command := string(make([]byte, 1000))
	total := 0
	put := func(n int) {
		for range n {
			c.propose(raftnode.FirstDataGroup, command)
			total++
		}
	}
	put(20)
	leader := c.leader(raftnode.FirstDataGroup)
	away := c.other(leader)
	eventually(t, "the member is level", func() bool { _, _, n := machine(away).state(); return n == total })
	has := away.group(t, raftnode.FirstDataGroup).Status().LastIndex
	c.stop(away)
	eventually(t, "no log reaches the member any more", func() bool {
		put(10)
		for _, m := range c.members {
			if m != away && m.group(t, raftnode.FirstDataGroup).Status().FirstIndex <= has+1 {
				return false
			}
		}
		return true
	})
	c.openAll()
	put(50)
	for _, m := range c.members {
		eventually(t, m.name+" has everything", func() bool { _, _, n := machine(m).state(); return n == total })
	}
	eventually(t, "the one image counts as installed", func() bool { return away.node.Metrics().Groups[1].Installs == 1 })
	var told raftnode.TransferStatus
	eventually(t, "the transfer has ended", func() bool {
		all := away.node.Transfers()
		if len(all) == 1 {
			told = all[0]
		}
		return len(all) == 1 && !told.Ended.IsZero()
	})
	if told.Outcome != snapshotv1.Outcome_OUTCOME_INSTALLED || told.Group != raftnode.FirstDataGroup || told.BytesDone == 0 || told.BytesDone != told.BytesTotal ||
		told.Target <= has || told.Applied < told.Target || told.Err != nil || told.Waiting != "" {
		t.Errorf("the transfer as it is told: %+v", told)
	}
	for _, stage := range snapshot.Stages() {
		if told.Stages[stage] <= 0 {
			t.Errorf("no time in stage %s: %v", stage, told.Stages)
		}
	}
	_, want, _ := machine(leader).state()
	if _, got, _ := machine(away).state(); got != want {
		t.Errorf("checksum %x, want %x", got, want)
	}
	// And after a restart.
	c.stop(away)
	c.openAll()
	put(10)
	eventually(t, "all of it is there after a restart", func() bool { _, _, n := machine(away).state(); return n == total })
}

// TestCrashBetweenStateAndLog: the state switched to the image and the log did
// not hear of it. The next start finds the READY record and finishes the rest.
func TestCrashBetweenStateAndLog(t *testing.T) {
	crash := &atomic.Bool{}
	c, machine := imageCluster(t, crash)
	c.openAll()
	command := string(make([]byte, 1000))
	total := 0
	put := func(n int) {
		for range n {
			c.propose(raftnode.FirstDataGroup, command)
			total++
		}
	}
	put(20)
	away := c.other(c.leader(raftnode.FirstDataGroup))
	eventually(t, "the member is level", func() bool { _, _, n := machine(away).state(); return n == total })
	has := away.group(t, raftnode.FirstDataGroup).Status().LastIndex
	c.stop(away)
	eventually(t, "no log reaches the member any more", func() bool {
		put(10)
		for _, m := range c.members {
			if m != away && m.group(t, raftnode.FirstDataGroup).Status().FirstIndex <= has+1 {
				return false
			}
		}
		return true
	})
	crash.Store(true)
	c.openAll()
	g := away.group(t, raftnode.FirstDataGroup)
	eventually(t, "the install crashed", func() bool { return g.Status().Failure != "" })
	if s := g.Status(); s.LastIndex != has {
		t.Fatalf("the log was changed: last index %d, was %d", s.LastIndex, has)
	}
	c.stop(away)
	crash.Store(false)
	c.openAll()
	g = away.group(t, raftnode.FirstDataGroup)
	if s := g.Status(); s.FirstIndex <= has || s.Applied < s.FirstIndex-1 {
		t.Errorf("after the start: log from %d, applied %d", s.FirstIndex, s.Applied)
	}
	put(30)
	for _, m := range c.members {
		eventually(t, m.name+" has everything", func() bool { _, _, n := machine(m).state(); return n == total })
	}
	_, want, _ := machine(c.leader(raftnode.FirstDataGroup)).state()
	if _, got, _ := machine(away).state(); got != want {
		t.Errorf("checksum %x, want %x", got, want)
	}
}
