package proctest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/localcluster"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// transferring are arguments with which an image of bulkBytes travels for about
// two seconds, and expires soon after.
func transferring(args ...string) []string {
	return append([]string{"--snapshot-pacing", "off", "--snapshot-rate", "32MiB", "--snapshot-expiry", "10s"}, args...)
}

const (
	bulkRecords = 1024
	bulkValue   = 64 << 10
	bulkBytes   = bulkRecords * bulkValue // of values; they do not compress
)

// bulk is a range of records whose values follow from key and generation.
type bulk struct {
	prefix      string
	mu          sync.Mutex
	generations [bulkRecords]uint64
}

func (b *bulk) key(i int) []byte { return fmt.Appendf(nil, "%s/%08d", b.prefix, i) }

func (b *bulk) value(i int) []byte {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(i))
	binary.LittleEndian.PutUint64(seed[8:], b.generations[i])
	value := make([]byte, bulkValue)
	_, _ = rand.NewChaCha8(seed).Read(value) // it never fails
	return value
}

// write gives records from..to new values.
func (b *bulk) write(t *testing.T, c *client.Client, from, to int) {
	t.Helper()
	const writers = 8
	var running sync.WaitGroup
	failed := make(chan error, writers)
	for w := range writers {
		running.Go(func() {
			for i := from + w; i < to; i += writers {
				b.mu.Lock()
				b.generations[i]++
				b.mu.Unlock()
				if _, err := c.Put(t.Context(), b.key(i), b.value(i)); err != nil {
					failed <- fmt.Errorf("put %s: %w", b.key(i), err)
					return
				}
			}
		})
	}
	running.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
}

// check reads all records and wants each to have its newest value.
func (b *bulk) check(t *testing.T, c *client.Client) {
	t.Helper()
	prefix, found := []byte(b.prefix+"/"), 0
	for record, err := range c.Range(within(t, 60*time.Second), client.RangeOptions{Start: prefix, End: client.PrefixEnd(prefix)}) {
		if err != nil {
			t.Fatal(err)
		}
		if string(record.Key) != string(b.key(found)) || !bytes.Equal(record.Value, b.value(found)) {
			t.Fatalf("record %d is %s, or has another value than was acknowledged", found, record.Key)
		}
		found++
	}
	if found != bulkRecords {
		t.Fatalf("%d of %d acknowledged records are there", found, bulkRecords)
	}
}

// transfersOf returns what a node tells of transfers of the data group in one
// role; none while it does not answer.
func transfersOf(t *testing.T, c *localcluster.Cluster, name string, role adminv1.TransferRole) (transfers []*adminv1.Transfer) {
	all, _ := c.Transfers(t.Context(), name)
	for _, x := range all {
		if x.GetGroup() == client.DataGroup && x.GetRole() == role {
			transfers = append(transfers, x)
		}
	}
	return transfers
}

// received returns the transfer by which a node got its image. It must be over.
func received(t *testing.T, c *localcluster.Cluster, name string) (got *adminv1.Transfer) {
	t.Helper()
	await(t, name+" has installed an image", 30*time.Second, func() error {
		for _, x := range transfersOf(t, c, name, adminv1.TransferRole_TRANSFER_ROLE_RECEIVER) {
			if got = x; x.GetOutcome() == snapshotv1.Outcome_OUTCOME_INSTALLED {
				return nil
			}
		}
		return fmt.Errorf("last transfer: %v", got)
	})
	return got
}

// follower returns a node that does not lead the data group.
func follower(t *testing.T, c *localcluster.Cluster) string {
	t.Helper()
	leading := leader(t, c)
	for _, name := range c.Names() {
		if name != leading && c.Running(name) {
			return name
		}
	}
	t.Fatal("no follower runs")
	return ""
}

// whole wants a node that got an image to have everything: it has caught up, all
// are voters, all states are equal, and nothing is left over.
func whole(t *testing.T, c *localcluster.Cluster, name string) {
	t.Helper()
	if err := c.WaitCaughtUp(within(t, 90*time.Second), name, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitVoters(within(t, 60*time.Second)); err != nil {
		t.Fatal(err)
	}
	sameDigests(t, c)
	nothingStaged(t, c)
}

// nothingStaged waits until no data directory holds anything of a transfer: no
// inbox, no file half written, no state but the one in use. An old state goes
// when its readers have ended, within 30 s.
func nothingStaged(t *testing.T, c *localcluster.Cluster) {
	t.Helper()
	await(t, "nothing is left over", 45*time.Second, func() error {
		var errs []error
		for _, name := range c.Names() {
			errs = append(errs, leftovers(c.DataDir(name)))
		}
		return errors.Join(errs...)
	})
}

// leftovers tells of what a finished transfer must not leave in a data directory.
func leftovers(dir string) error {
	var errs []error
	for _, pattern := range []string{"groups/*/inbox/*", "groups/*/images/*.tmp", "groups/*/images/*/*.part"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, path := range found {
			errs = append(errs, fmt.Errorf("%s is left over", path))
		}
	}
	states := map[string]int{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed meanwhile
		case err != nil:
			return err
		case strings.HasSuffix(path, ".part"):
			errs = append(errs, fmt.Errorf("%s is left over", path))
		case d.IsDir() && filepath.Base(filepath.Dir(path)) == "state":
			states[filepath.Dir(path)]++
		}
		return nil
	})
	for path, count := range states {
		if count != 1 {
			errs = append(errs, fmt.Errorf("%s holds %d states", path, count))
		}
	}
	return errors.Join(append(errs, err)...)
}

// imagesGo wants every image on disk to be one that its node lists, and in the
// long form all of them to go when they have expired, which is looked for each
// minute.
func imagesGo(t *testing.T, c *localcluster.Cluster) {
	t.Helper()
	connection := connect(t, c)
	long := os.Getenv("STREAMRAFT_LONG") != ""
	await(t, "images go", 100*time.Second, func() error {
		var errs []error
		for _, name := range c.Names() {
			found, err := filepath.Glob(filepath.Join(c.DataDir(name), "groups/*/images/*"))
			if err != nil || len(found) == 0 {
				errs = append(errs, err)
				continue
			}
			if long {
				errs = append(errs, fmt.Errorf("%s keeps %v", name, found))
				continue
			}
			listed, err := connection.Snapshots(t.Context(), c.Endpoint(name))
			if err != nil || len(listed.GetSnapshots()) != len(found) {
				errs = append(errs, fmt.Errorf("%s has %v and lists %v: %w", name, found, listed.GetSnapshots(), orNone(err)))
			}
		}
		return errors.Join(errs...)
	})
}

func TestReplaceLostDisk(t *testing.T) {
	t.Parallel()
	c, connection := startCluster(t, localcluster.Options{ExtraArgs: transferring()})
	data := &bulk{prefix: "bulk"}
	data.write(t, connection, 0, bulkRecords)
	lost := follower(t, c)
	if err := c.Kill(lost); err != nil {
		t.Fatal(err)
	}
	// Without --replace it must not come back under its name.
	if err := c.Wipe(lost); err != nil {
		t.Fatal(err)
	}
	launch(t, c, lost)
	refused(t, c, lost)
	l := startPacedLoad(t, connection, "replace", 100, 5*time.Millisecond)
	if err := c.Replace(lost); err != nil {
		t.Fatal(err)
	}
	whole(t, c, lost)
	l.finish()
	l.check(t)
	got := received(t, c, lost)
	if got.GetKind() != snapshotv1.Kind_KIND_FILES || got.GetBytesTotal() < bulkBytes || got.GetWireBytes() > got.GetBytesTotal()*102/100 {
		t.Errorf("it got %v, of %d bytes, by %d on the wire", got.GetKind(), got.GetBytesTotal(), got.GetWireBytes())
	}
	// It is the old node again: with it, a majority stands without another one.
	for _, name := range c.Names() {
		if name != lost && name != leader(t, c) {
			if err := c.Kill(name); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if _, err := connection.Put(within(t, 30*time.Second), []byte("after"), []byte("value")); err != nil {
		t.Fatal(err)
	}
	data.check(t, connection)
	if err := c.StartAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	imagesGo(t, c)
}

func TestJoinAfterCut(t *testing.T) {
	t.Parallel()
	c, connection := startCluster(t, localcluster.Options{Spare: 1, ExtraArgs: transferring()})
	data := &bulk{prefix: "bulk"}
	data.write(t, connection, 0, bulkRecords)
	await(t, "the logs are cut", 30*time.Second, func() error {
		for _, name := range c.Names()[:3] {
			if first := firstIndex(t, c, name); first <= 1 {
				return fmt.Errorf("%s has its log from %d on", name, first)
			}
		}
		return nil
	})
	if err := c.Join("n4"); err != nil {
		t.Fatal(err)
	}
	whole(t, c, "n4")
	if got := received(t, c, "n4"); got.GetKind() != snapshotv1.Kind_KIND_FILES || got.GetBytesTotal() < bulkBytes {
		t.Errorf("it got %v of %d bytes", got.GetKind(), got.GetBytesTotal())
	}
	lead(t, c, connection, "n4")
	data.check(t, connection)
	// Its directory is its own: it comes back as what it is.
	if err := c.Kill("n4"); err != nil {
		t.Fatal(err)
	}
	if err := c.Restart(t.Context(), "n4"); err != nil {
		t.Fatal(err)
	}
	whole(t, c, "n4")
}

// firstIndex returns the first index of a node's log of the data group.
func firstIndex(t *testing.T, c *localcluster.Cluster, name string) uint64 {
	t.Helper()
	status, err := c.Status(t.Context(), name)
	if err != nil {
		return 0
	}
	for _, g := range status.GetGroups() {
		if g.GetGroup() == client.DataGroup {
			return g.GetFirstIndex()
		}
	}
	return 0
}

func TestBehindTheLog(t *testing.T) {
	t.Parallel()
	c, connection := startCluster(t, localcluster.Options{ExtraArgs: transferring()})
	data := &bulk{prefix: "bulk"}
	data.write(t, connection, 0, bulkRecords)
	away := follower(t, c)
	if err := c.WaitCaughtUp(within(t, 60*time.Second), away, nil); err != nil {
		t.Fatal(err)
	}
	status, err := c.Status(t.Context(), away)
	if err != nil {
		t.Fatal(err)
	}
	var last uint64
	for _, g := range status.GetGroups() {
		if g.GetGroup() == client.DataGroup {
			last = g.GetLastIndex()
		}
	}
	if err := c.Kill(away); err != nil {
		t.Fatal(err)
	}
	// A sixteenth of the records, again and again, until no log reaches back.
	const changed = bulkRecords / 16
	ctx := within(t, 90*time.Second)
	for reaches := true; reaches && ctx.Err() == nil; {
		data.write(t, connection, 0, changed)
		reaches = false
		for _, name := range c.Names() {
			reaches = reaches || c.Running(name) && firstIndex(t, c, name) <= last+1
		}
	}
	if ctx.Err() != nil {
		t.Fatalf("the logs still reach back to %d: %v", last, context.Cause(ctx))
	}
	if err := c.Restart(t.Context(), away); err != nil {
		t.Fatal(err)
	}
	whole(t, c, away)
	got := received(t, c, away)
	// What was in its memory when it was killed, and no log tells it was committed,
	// is part of the delta; half of a full image is the most that a delta may be.
	if got.GetKind() != snapshotv1.Kind_KIND_RECORDS || got.GetBytesTotal() > bulkBytes*55/100 {
		t.Errorf("it got %v of %d bytes, though a sixteenth of %d had changed", got.GetKind(), got.GetBytesTotal(), bulkBytes)
	}
	t.Logf("a delta of %d bytes from index %d to %d", got.GetBytesTotal(), got.GetFromIndex(), got.GetIndex())
	lead(t, c, connection, away)
	data.check(t, connection)
	imagesGo(t, c)
}
