package proctest

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamraft/streamraft/internal/localcluster"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

// nodeArgs is the command line of a cluster's n1 with some flags replaced.
func nodeArgs(c *localcluster.Cluster, name string, replaced ...string) []string {
	args := c.Args(name)
	for i := 0; i < len(replaced); i += 2 {
		for j := range args {
			if args[j] == replaced[i] {
				args[j+1] = replaced[i+1]
			}
		}
	}
	return args
}

// files lists what is in a directory.
func files(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		names = append(names, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

func TestNodeRefusesToStart(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, localcluster.Options{Nodes: 1})
	other, connection := startCluster(t, localcluster.Options{Nodes: 1, ExtraArgs: []string{"--log-budget", "1MiB"}})
	dir := c.DataDir("n1")
	// The state on disk says whose it is once something was written to it.
	l := startLoad(t, connection, "other", 10_000)
	await(t, "the other's state is on disk", 20*time.Second, func() error {
		status, err := other.Status(t.Context(), "n1")
		if err == nil && status.GetGroups()[1].GetDurableAppliedIndex() == 0 {
			err = errors.New("nothing is")
		}
		return err
	})
	l.finish()

	// While n1 runs.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	taken, empty := listener.Addr().String(), t.TempDir()
	command(t, nodeArgs(c, "n1", "--listen", taken, "--data-dir", empty, "--cluster", "n1="+taken)...).
		want(t, 1, "cannot listen on "+taken, "choose another address")
	if got := files(t, empty); got != empty {
		t.Errorf("a node that could not listen wrote %s", got)
	}
	command(t, nodeArgs(c, "n1", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--cluster", "")...).
		want(t, 1, dir, "in use by a running node")
	command(t, nodeArgs(c, "n1", "--cluster", "n2=127.0.0.1:1", "--data-dir", empty)...).
		want(t, 2, `this node, "n1", is not in the list`)
	if got := files(t, empty); got != empty {
		t.Errorf("a node with a wrong list wrote %s", got)
	}

	for _, cluster := range []*localcluster.Cluster{c, other} {
		if code, err := cluster.Stop(within(t, 20*time.Second), "n1"); code != 0 || err != nil {
			t.Fatal(code, err)
		}
	}
	command(t, nodeArgs(c, "n1", "--name", "n2", "--cluster", "")...).
		want(t, 6, `belongs to node "n1"`, "--name n1")

	t.Run("state of another cluster", func(t *testing.T) {
		own, foreign := filepath.Join(dir, "groups", "2", "state"), filepath.Join(other.DataDir("n1"), "groups", "2", "state")
		aside := filepath.Join(t.TempDir(), "state")
		if err := errors.Join(os.Rename(own, aside), os.CopyFS(own, os.DirFS(foreign))); err != nil {
			t.Fatal(err)
		}
		command(t, nodeArgs(c, "n1")...).want(t, 6, "is of cluster")
		if err := errors.Join(os.RemoveAll(own), os.Rename(aside, own)); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("version from the future", func(t *testing.T) {
		path := filepath.Join(dir, "NODE")
		record, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, newerRecord(record), 0o600); err != nil {
			t.Fatal(err)
		}
		command(t, nodeArgs(c, "n1")...).want(t, 6, path, "version")
		if err := os.WriteFile(path, record, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	// Whatever it refused, it changed nothing.
	if err := c.Restart(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
}

// newerRecord gives a record file (package durable has the format) a version
// that nobody has written yet.
func newerRecord(record []byte) []byte {
	newer := append([]byte(nil), record...)
	binary.LittleEndian.PutUint32(newer[8:], 99)
	sum := crc32.Update(crc32.Checksum(newer[:16], crc32.MakeTable(crc32.Castagnoli)), crc32.MakeTable(crc32.Castagnoli), newer[20:])
	binary.LittleEndian.PutUint32(newer[16:], sum)
	return newer
}

func TestRequestsAreRefused(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, localcluster.Options{Nodes: 1})
	endpoints := "--endpoints=" + c.Endpoint("n1")
	run := func(args ...string) result { return command(t, append([]string{endpoints}, args...)...) }
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key := strings.Repeat("k", 4<<10+1)
	run("kv", "put", key, "v").want(t, 6, "4097", "4096")
	run("kv", "put", "big", "--file", write("big", strings.Repeat("v", 1<<20+1))).want(t, 6, "1048577", "1048576")
	run("kv", "range", "--count").want(t, 0, "0")
	run("kv", "get", "big").want(t, 4)
	run("kv", "put", strings.Repeat("k", 4<<10), "v").want(t, 0)

	bad := write("bad.jsonl", `{"key":"a","value":"1"}`+"\n"+`{"key":"b","value":`+"\n"+`{"key":"c","value":"3"}`+"\n")
	run("kv", "import", bad).want(t, 2, bad+":2")
	run("kv", "get", "c").want(t, 4)
	run("--json", "kv", "import", "--skip-bad", bad).want(t, 0, `"skipped":1`, `"records":2`)
	run("kv", "get", "a").want(t, 0, "1")
	run("kv", "get", "c").want(t, 0, "3")
}

func TestMinority(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, localcluster.Options{})
	for _, name := range []string{"n2", "n3"} {
		if err := c.Kill(name); err != nil {
			t.Fatal(err)
		}
	}
	// A leader that has lost its majority steps down; until then it may take
	// writes whose outcome it cannot tell.
	await(t, "n1 leads no more", 20*time.Second, func() error {
		if role(t, c, "n1", adminv1.Role_ROLE_LEADER) == nil {
			return errors.New("it leads")
		}
		return nil
	})
	endpoints := "--endpoints=" + strings.Join(c.Endpoints(), ",")
	for _, args := range [][]string{{"put", "key", "value"}, {"get", "key"}} {
		start := time.Now()
		command(t, append([]string{endpoints, "--timeout=2s", "kv"}, args...)...).want(t, 3, "gave up at the deadline")
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%v took %v with --timeout 2s", args, took)
		}
	}
	if err := c.StartAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	command(t, endpoints, "kv", "get", "key").want(t, 4)
}
