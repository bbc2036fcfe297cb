package proctest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/localcluster"
)

// smallDisk mounts a file system of 192 MiB of its own as n1's directory in dir.
func smallDisk(t *testing.T, dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	path := filepath.Join(dir, "n1")
	if err := os.MkdirAll(path, 0o750); err != nil {
		t.Fatal(err)
	}
	err := syscall.Mount("tmpfs", path, "tmpfs", 0, "size=192m")
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENODEV) {
		t.Skipf("this machine does not permit mounting a small file system: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	// Before the directory is removed, and after the cluster is closed.
	t.Cleanup(func() {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", path, err)
		}
	})
}

// reserve is the disk reserve of the node on the small disk.
const reserve = 32 << 20

func smallDiskOptions(dir string, nodes int) localcluster.Options {
	return localcluster.Options{Dir: dir, Nodes: nodes, NodeArgs: func(node string) []string {
		if node == "n1" {
			return []string{"--disk-reserve", "32MiB"}
		}
		return nil
	}}
}

// fill writes a file into a directory until only free bytes are left on its file
// system, and returns its path.
func fill(t *testing.T, dir string, free uint64) string {
	t.Helper()
	path := filepath.Join(dir, "filler")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zeros := make([]byte, 256<<10)
	for {
		var usage syscall.Statfs_t
		if err := syscall.Statfs(dir, &usage); err != nil {
			t.Fatal(err)
		}
		available := usage.Bavail * uint64(usage.Bsize)
		if available <= free {
			return path
		}
		_, err := file.Write(zeros[:min(uint64(len(zeros)), available-free)])
		if errors.Is(err, syscall.ENOSPC) {
			return path
		}
		if err != nil && !errors.Is(err, io.ErrShortWrite) {
			t.Fatal(err)
		}
	}
}

// space waits until a node says that it has, or has not, space.
func space(t *testing.T, c *localcluster.Cluster, none bool) {
	t.Helper()
	await(t, fmt.Sprintf("no_space of n1 is %v", none), 20*time.Second, func() error {
		status, err := c.Status(t.Context(), "n1")
		if err == nil && status.GetNoSpace() != none {
			err = fmt.Errorf("%d bytes available, failure %q", status.GetDiskAvailableBytes(), status.GetFailure())
		}
		return err
	})
}

func TestDiskFull(t *testing.T) {
	for _, test := range []struct {
		name string
		free uint64
	}{{"below the reserve", reserve - 8<<20}, {"to the last byte", 0}} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			smallDisk(t, dir)
			c, connection := startCluster(t, smallDiskOptions(dir, 3))
			lead(t, c, connection, "n1")
			pid := c.PID("n1")
			l := startLoad(t, connection, "disk", 1000)
			l.awaitMore(t, 500, 30*time.Second)

			filler := fill(t, c.DataDir("n1"), test.free)
			space(t, c, true)
			await(t, "another leader", 20*time.Second, func() error {
				if leader(t, c) == "n1" {
					return errors.New("n1 leads on a full disk")
				}
				return nil
			})
			l.awaitMore(t, 1000, 30*time.Second)

			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			space(t, c, false)
			l.awaitMore(t, 500, 30*time.Second)
			l.finish()
			if err := c.WaitCaughtUp(within(t, 30*time.Second), "n1", nil); err != nil {
				t.Fatal(err)
			}
			if now := c.PID("n1"); now != pid {
				t.Errorf("n1 is process %d, was %d", now, pid)
			}
			l.check(t)
			sameDigests(t, c)
			lead(t, c, connection, "n1")
		})
	}
}

// Where there is nobody to hand over to, the client is told.
func TestDiskFullAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	smallDisk(t, dir)
	c, connection := startCluster(t, smallDiskOptions(dir, 1))
	if _, err := connection.Put(t.Context(), []byte("before"), []byte("value")); err != nil {
		t.Fatal(err)
	}
	filler := fill(t, c.DataDir("n1"), reserve-8<<20)
	space(t, c, true)
	endpoints := "--endpoints=" + c.Endpoint("n1")
	command(t, endpoints, "--timeout=3s", "kv", "put", "during", "value").want(t, 7, "space")
	command(t, endpoints, "kv", "get", "before").want(t, 0, "value")
	command(t, endpoints, "kv", "get", "during").want(t, 4)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	space(t, c, false)
	await(t, "it takes writes again", 20*time.Second, func() error {
		_, err := connection.Put(t.Context(), []byte("after"), []byte("value"))
		return err
	})
	if _, err := connection.Get(t.Context(), []byte("after"), client.ReadOptions{}); err != nil {
		t.Fatal(err)
	}
}
