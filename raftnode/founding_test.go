package raftnode_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/streamraft/streamraft/raftnode"
)

func openBriefly(c *cluster, m *member) error {
	ctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
	defer cancel()
	return c.open(ctx, m)
}

func TestFoundingTwiceIsSafe(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.openAll()
	id := c.members[0].node.Status().ClusterID
	c.propose(raftnode.FirstDataGroup, "once")
	for _, m := range c.members {
		c.stop(m)
	}
	c.openAll() // with the founding list again
	for _, m := range c.members {
		if got := m.node.Status().ClusterID; got != id || id == "" {
			t.Errorf("%s: cluster %q after the second start, %q after the first", m.name, got, id)
		}
	}
	c.equalStates(raftnode.FirstDataGroup, 1)
}

func TestCase14WipedNodeIsRefused(t *testing.T) {
	for _, wiped := range [][]int{{0}, {1}, {0, 1}, {1, 2}} {
		c := newCluster(t, 3, nil)
		c.openAll()
		c.propose(raftnode.FirstDataGroup, "kept")
		for _, i := range wiped {
			c.stop(c.members[i])
			if err := os.RemoveAll(c.members[i].dir); err != nil {
				t.Fatal(err)
			}
		}
		for _, i := range wiped {
			m := c.members[i]
			err := openBriefly(c, m)
			if !errors.Is(err, raftnode.ErrRefused) {
				t.Fatalf("wiped %v: start of %s: %v, want ErrRefused", wiped, m.name, err)
			}
			if want := "--name " + m.name + " --data-dir " + m.dir + " --replace"; !strings.Contains(err.Error(), want) {
				t.Errorf("the refusal does not name the command %q: %v", want, err)
			}
		}
	}
}

// TestWipedMajorityDoesNotFound: with the only holder of the record down, wiped
// nodes wait; they never found a second cluster.
func TestWipedMajorityDoesNotFound(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.openAll()
	for _, m := range c.members {
		c.stop(m)
	}
	for _, m := range c.members[:2] {
		if err := os.RemoveAll(m.dir); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(chan error, 2)
	for _, m := range c.members[:2] {
		go func() { errs <- openBriefly(c, m) }()
	}
	for range 2 {
		if err := <-errs; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("wiped node without the third: %v, want to wait until the deadline", err)
		}
	}
}

func TestFoundingRefusesWrongLists(t *testing.T) {
	t.Run("other order", func(t *testing.T) {
		c := newCluster(t, 2, nil)
		reversed := []raftnode.Founder{c.founders[1], c.founders[0]}
		first := true
		c.adjust = func(o *raftnode.Options) {
			if o.Node == "n2" && first {
				o.Founders = reversed
			}
		}
		errs := make(chan error, 2)
		for _, m := range c.members {
			go func() { errs <- openBriefly(c, m) }()
		}
		refused := false
		for range 2 {
			refused = errors.Is(<-errs, raftnode.ErrRefused) || refused
		}
		if !refused {
			t.Error("no node refused a founding list in another order")
		}
	})
	t.Run("without self", func(t *testing.T) {
		c := newCluster(t, 1, func(o *raftnode.Options) { o.Founders = []raftnode.Founder{{Node: "other", Address: "x:1"}} })
		err := c.open(t.Context(), c.members[0])
		if err == nil || !strings.Contains(err.Error(), `this node, "n1", is not in the list`) {
			t.Errorf("got %v", err)
		}
		if _, err := os.Stat(c.members[0].dir); !os.IsNotExist(err) {
			t.Errorf("something was written: %v", err)
		}
	})
	t.Run("no list", func(t *testing.T) {
		c := newCluster(t, 1, func(o *raftnode.Options) { o.Founders = nil })
		if err := openBriefly(c, c.members[0]); !errors.Is(err, raftnode.ErrRefused) {
			t.Errorf("got %v, want ErrRefused", err)
		}
	})
}

func TestWrongNameAndLock(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.openAll()
	second := &member{name: "n1", address: "127.0.0.1:0", dir: c.members[0].dir}
	if err := c.open(t.Context(), second); !errors.Is(err, raftnode.ErrLocked) {
		t.Errorf("second node on one directory: %v, want ErrLocked", err)
	}
	c.stop(c.members[0])
	c.adjust = func(o *raftnode.Options) {
		o.Node, o.Founders = "n7", []raftnode.Founder{{Node: "n7", Address: "x:1"}}
	}
	err := c.open(t.Context(), c.members[0])
	if !errors.Is(err, raftnode.ErrRefused) || !strings.Contains(err.Error(), "--name n1") {
		t.Errorf("wrong name: %v, want ErrRefused that names n1", err)
	}
}

func TestNewerDirectoryIsRefused(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.openAll()
	m := c.members[0]
	c.stop(m)
	raiseRecordVersion(t, m.dir+"/NODE")
	before, err := os.ReadFile(m.dir + "/NODE")
	if err != nil {
		t.Fatal(err)
	}
	if err := openBriefly(c, m); !errors.Is(err, raftnode.ErrVersion) {
		t.Errorf("got %v, want ErrVersion", err)
	}
	if after, _ := os.ReadFile(m.dir + "/NODE"); string(after) != string(before) {
		t.Error("the file of the newer version was changed")
	}
}

// TestLostLogIsRefused: without its log a node has forgotten its votes.
func TestLostLogIsRefused(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.openAll()
	m := c.members[0]
	c.stop(m)
	if err := os.RemoveAll(m.dir + "/log"); err != nil {
		t.Fatal(err)
	}
	if err := openBriefly(c, m); !errors.Is(err, raftnode.ErrDataLoss) {
		t.Errorf("got %v, want ErrDataLoss", err)
	}
}
