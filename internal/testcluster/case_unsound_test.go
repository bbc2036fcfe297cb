package testcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/kv"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// rows returns the rows of a table in the format they are in.
func rows(fs vfs.FS, path string) (list [][2][]byte, format sstable.TableFormat, err error) {
	file, err := fs.Open(path)
	if err != nil {
		return nil, 0, err
	}
	readable, err := sstable.NewSimpleReadable(file)
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	o := &pebble.Options{}
	o.EnsureDefaults()
	reader, err := sstable.NewReader(context.Background(), readable, o.MakeReaderOptions())
	if err != nil {
		return nil, 0, errors.Join(err, readable.Close())
	}
	iter, err := reader.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		return nil, 0, errors.Join(err, reader.Close())
	}
	for row := iter.First(); row != nil; row = iter.Next() {
		value, _, err := row.Value(nil)
		if err != nil {
			return nil, 0, errors.Join(err, iter.Close(), reader.Close())
		}
		if row.Kind() != sstable.InternalKeyKindSet {
			return nil, 0, errors.Join(fmt.Errorf("%s holds a row of kind %v", path, row.Kind()), iter.Close(), reader.Close())
		}
		list = append(list, [2][]byte{append([]byte(nil), row.K.UserKey...), append([]byte(nil), value...)})
	}
	format, err = reader.TableFormat()
	return list, format, errors.Join(err, iter.Close(), reader.Close())
}

// dropRecord writes a table of a delta without one of its records.
func dropRecord(fs vfs.FS, dir, key string, manifest *snapshotv1.Manifest) (dropped bool, err error) {
	names, err := fs.List(dir)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		path := fs.PathJoin(dir, name)
		list, format, err := rows(fs, path)
		if err != nil {
			return false, err
		}
		o := &pebble.Options{}
		o.EnsureDefaults()
		file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return false, err
		}
		w := sstable.NewWriter(objstorageFile{file}, o.MakeWriterOptions(0, format))
		for _, row := range list {
			if string(row[0]) == "s/"+key {
				dropped = true
				continue
			}
			if err := w.Set(row[0], row[1]); err != nil {
				return false, errors.Join(err, w.Close())
			}
		}
		if err := w.Close(); err != nil {
			return false, err
		}
		info, err := fs.Stat(path)
		if err != nil {
			return false, err
		}
		for _, f := range manifest.GetFiles() {
			if f.GetName() == name {
				f.Size = uint64(info.Size())
			}
		}
	}
	return dropped, nil
}

// objstorageFile is a file that a table is written to.
type objstorageFile struct{ file vfs.File }

func (f objstorageFile) Write(p []byte) error {
	_, err := f.file.Write(append([]byte(nil), p...))
	return err
}
func (f objstorageFile) Finish() error { return errors.Join(f.file.Sync(), f.file.Close()) }
func (f objstorageFile) Abort()        { _ = f.file.Close() }

// TestCase05DroppedDeltaRecord: a record is missing in a delta, and every check of
// its files passes. The digest of the state, taken by all at one index, is not
// that of the others: the replica is quarantined, gets a full image and is level.
//
// It guards that digests are compared and cover all records.
func TestCase05DroppedDeltaRecord(t *testing.T) {
	var dropped atomic.Bool
	runCase(t, 3, tuning{
		received: func(m *member, manifest *snapshotv1.Manifest, dir string) {
			if manifest.GetFromIndex() == 0 || dropped.Load() {
				return
			}
			done, err := dropRecord(m.disk.mem, dir, "once", manifest)
			if err != nil {
				t.Error(err)
			}
			dropped.Store(done)
		},
	}, func(c *caseRun) {
		c.fill(60, 2<<10)
		c.level()
		m := c.follower()
		c.network.Isolate(m.name)
		c.put("once", 100)
		c.behind(m)
		c.network.Rejoin(m.name)
		c.await("the delta is installed", func() bool { _, delta := c.figures(); return delta > 0 })
		if !dropped.Load() {
			t.Fatal("no record was dropped")
		}
		command, err := kv.EncodeTakeDigest(nil)
		if err != nil {
			t.Fatal(err)
		}
		quarantined := false
		c.await("the replica is quarantined and healed", func() bool {
			c.propose(command)
			for range 50 {
				quarantined = quarantined || c.group(m).Status().Quarantined != ""
				c.pass(10 * time.Millisecond)
			}
			full, _ := c.figures()
			return full > 0 && c.group(m).Status().Quarantined == ""
		})
		c.level()
		if n := m.current().node.Metrics().Groups[1].DigestMismatches; n == 0 {
			t.Error("no digest was found to differ")
		}
	})
}

// TestCase09BackupDuringInstall: images are made on the source and on the
// receiver, states flushed and compacted, while an image arrives and is installed
// there. All end with the same digest.
//
// It guards that captures are pinned apart from the state that is replaced.
func TestCase09BackupDuringInstall(t *testing.T) {
	runCase(t, 3, tuning{
		receiver: patient,
		store:    func(_ *member, o *kv.Options) { o.MemTableBytes, o.JournalBytes = 64<<10, 1 },
	}, func(c *caseRun) {
		c.fill(100, 2<<10)
		m := c.follower()
		c.behind(m)
		leader := c.leader(raftnode.FirstDataGroup)
		stop := make(chan struct{})
		var beside sync.WaitGroup
		var made atomic.Int64
		for _, at := range []*member{m, leader} {
			beside.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					image, err := c.group(at).CreateImage(c.ctx)
					if err == nil {
						made.Add(1)
						id := image.Manifest().GetImage()
						image.Release()
						_ = c.group(at).RemoveImage(id) // the next one is another
					}
					_ = at.last().machine(raftnode.FirstDataGroup).Flush()
					if !pause(c.ctx, 5*time.Millisecond) {
						return
					}
				}
			})
		}
		c.network.Rejoin(m.name)
		for i := 0; c.installs(m) == 0; i++ {
			c.put(fmt.Sprintf("k/%04d", i%100), 2<<10)
		}
		for i := range 30 {
			c.put(fmt.Sprintf("k/%04d", i), 2<<10)
		}
		close(stop)
		beside.Wait()
		c.level()
		compactions := int64(0)
		for _, o := range c.members {
			compactions += o.last().machine(raftnode.FirstDataGroup).Metrics().Compactions
		}
		t.Logf("%d images made, %d compactions", made.Load(), compactions)
		if made.Load() < 5 || compactions == 0 {
			t.Errorf("%d images were made and %d compactions ran", made.Load(), compactions)
		}
	})
}

// TestCase13StateTailCut: a node starts with a state that lost something behind
// its own applied record: the tail of a table is cut off, or the whole directory
// is an older copy. It is found, and the state fetched again.
//
// It guards the checks at open and the quarantine.
func TestCase13StateTailCut(t *testing.T) {
	for _, kind := range []string{"table", "older copy"} {
		t.Run(kind, func(t *testing.T) {
			runCase(t, 3, tuning{}, func(c *caseRun) {
				c.fill(60, 2<<10)
				c.level()
				m := c.follower()
				const state = nodeDir + "/groups/2/state"
				if err := m.last().machine(raftnode.FirstDataGroup).Flush(); err != nil {
					t.Fatal(err)
				}
				older := m.disk.mem.CrashClone(vfs.CrashCloneCfg{})
				first := c.group(m).Status().FirstIndex
				i := 0
				c.await("its log is cut", func() bool {
					i++
					c.put(fmt.Sprintf("k/%04d", i%60), 2<<10)
					return c.group(m).Status().FirstIndex > first && c.group(m).Status().FirstIndex > 70
				})
				m.crash(crashKill)
				mem := m.disk.mem
				switch kind {
				case "table":
					cutLargestTable(t, mem, state)
				default:
					// What is not in it any more would be swept.
					if err := mem.RemoveAll(state); err != nil {
						t.Fatal(err)
					}
					if ok, err := vfs.Clone(older, mem, state, state, vfs.CloneSync); !ok || err != nil {
						t.Fatal(ok, err)
					}
				}
				c.reopened = true
				c.restart(m)
				c.reopened = false
				if m.current() == nil {
					t.Fatal("it did not start")
				}
				reason := c.group(m).Status().Quarantined
				c.network.HealAll()
				c.await("the state is fetched again", func() bool {
					if q := c.group(m).Status().Quarantined; q != "" {
						reason = q
					}
					return c.installs(m) > 0 && c.group(m).Status().Quarantined == ""
				})
				t.Logf("quarantined: %s", reason)
				if reason == "" {
					t.Error("it was not found to be unsound")
				}
				c.level()
			})
		})
	}
}

// cutLargestTable cuts the last half off the largest table below dir.
func cutLargestTable(t *testing.T, fs *vfs.MemFS, dir string) {
	t.Helper()
	largest, size := "", int64(0)
	var look func(string)
	look = func(dir string) {
		names, err := fs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			path := fs.PathJoin(dir, name)
			info, err := fs.Stat(path)
			switch {
			case err != nil:
				t.Fatal(err)
			case info.IsDir():
				look(path)
			case strings.HasSuffix(name, ".sst") && info.Size() > size:
				largest, size = path, info.Size()
			}
		}
	}
	look(dir)
	f, err := fs.Open(largest)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	cut, err := fs.Create(largest, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = cut.Write(data[:len(data)/2])
	if err := errors.Join(err, cut.Sync(), cut.Close()); err != nil {
		t.Fatal(err)
	}
}
