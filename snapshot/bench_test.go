package snapshot

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// memoryImage serves the same bytes again and again, so that the benchmark
// measures the transfer and not a disk.
type memoryImage struct {
	manifest *snapshotv1.Manifest
	data     []byte
}

func (i *memoryImage) Manifest() *snapshotv1.Manifest { return i.manifest }
func (i *memoryImage) OpenFile(string) (File, error)  { return (*memoryFile)(i), nil }
func (i *memoryImage) Condemn(error)                  {}
func (i *memoryImage) Release()                       {}
func (i *memoryImage) Provide(context.Context, *snapshotv1.Open, func(done, total uint64)) (OpenedImage, Choice, error) {
	return i, ChoiceFull, nil
}

type memoryFile memoryImage

func (f *memoryFile) ReadAt(p []byte, off int64) (int, error) {
	for n := 0; n < len(p); {
		n += copy(p[n:], f.data[(off+int64(n))%int64(len(f.data)):])
	}
	return len(p), nil
}
func (f *memoryFile) Close() error { return nil }

// sinkFS keeps nothing of the files of an image.
type sinkFS struct{ vfs.FS }

type sinkFile struct{ vfs.File }

func (f *sinkFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, o...)
	if err != nil || f.FS.PathBase(name) == sessionName {
		return file, err
	}
	return &sinkFile{file}, nil
}

func (f *sinkFile) WriteAt(data []byte, _ int64) (int, error) { return len(data), nil }

type nopStager struct{}

func (nopStager) Stage(*snapshotv1.Manifest, string) (Sink, error) { return nopStager{}, nil }
func (nopStager) Install(Sink) error                               { return nil }
func (nopStager) CheckFile(context.Context, string, bool) error    { return nil }
func (nopStager) Prepare(context.Context) error                    { return nil }
func (nopStager) Discard() error                                   { return nil }

// benchTransfer moves an image of 16 files over TCP on the loopback interface.
func benchTransfer(b *testing.B, total uint64, fsys func() vfs.FS) {
	const files = 16
	image := &memoryImage{manifest: scriptManifest(total / files), data: randomContent(1, 8<<20)["000000.sst"]}
	m := image.manifest
	m.Files, m.Bytes = nil, 0
	for i := range files {
		m.Files = append(m.Files, &snapshotv1.File{Name: fmt.Sprintf("%06d.sst", i), Size: total / files})
		m.Bytes += total / files
	}
	source, err := NewSource(SourceOptions{Provider: image})
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer(ServerOptions()...)
	source.Register(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	defer func() {
		server.Stop()
		serving.Wait()
		source.Close()
	}()
	b.SetBytes(int64(total))
	b.ReportAllocs()
	var peak uint64
	for b.Loop() {
		receiver, err := NewReceiver(ReceiverOptions{})
		if err != nil {
			b.Fatal(err)
		}
		inboxes, err := OpenInboxes(fsys(), b.TempDir(), nil)
		if err != nil {
			b.Fatal(err)
		}
		transfer, err := NewTransfer(TransferOptions{
			ID: NewID(), ClusterID: []byte("cluster"), HistoryEpoch: 1, Group: 7, Node: "n2", Kinds: []snapshotv1.Kind{snapshotv1.Kind_KIND_FILES},
			Sources: []SourceRef{{Node: "s1", Address: l.Addr().String()}}, Inboxes: inboxes, Stager: nopStager{},
		})
		if err != nil {
			b.Fatal(err)
		}
		staged, err := receiver.Receive(b.Context(), transfer)
		if err != nil {
			b.Fatal(err)
		}
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		peak = max(peak, stats.HeapSys)
		if err := staged.Inbox.Remove(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(peak)/(1<<20), "heap-MiB")
}

// BenchmarkTransferMemory: no disk on either side.
func BenchmarkTransferMemory(b *testing.B) {
	benchTransfer(b, 512<<20, func() vfs.FS { return &sinkFS{vfs.NewMem()} })
}

// BenchmarkTransferDisk: written, synced and published on the receiver's disk.
func BenchmarkTransferDisk(b *testing.B) {
	benchTransfer(b, 512<<20, func() vfs.FS { return vfs.Default })
}
