package snapshot

import (
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// TestLoopback is a transfer over TCP from one real directory to another, by the
// public API alone.
func TestLoopback(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	images, err := OpenImages(ImagesOptions{FS: vfs.Default, Dir: from + "/images", ClusterID: []byte("cluster"), HistoryEpoch: 1, Group: 7})
	if err != nil {
		t.Fatal(err)
	}
	c := randomContent(30, 5<<20, 0, 3<<20+17)
	image, err := images.Create(t.Context(), &fakeCapture{fsys: vfs.Default, content: c})
	if err != nil {
		t.Fatal(err)
	}
	image.Release()
	source, err := NewSource(SourceOptions{Provider: &fakeNode{images: images}})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append(ServerOptions(), grpc.WaitForHandlers(true))...)
	source.Register(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	defer func() {
		server.Stop()
		serving.Wait()
		if err := errors.Join(source.Close(), images.Close()); err != nil {
			t.Error(err)
		}
	}()
	inboxes, err := OpenInboxes(vfs.Default, to+"/inbox", nil)
	if err != nil {
		t.Fatal(err)
	}
	receiver, err := NewReceiver(ReceiverOptions{})
	if err != nil {
		t.Fatal(err)
	}
	transfer, err := NewTransfer(TransferOptions{
		ID: NewID(), ClusterID: []byte("cluster"), HistoryEpoch: 1, Group: 7, Node: "n2", Kinds: []snapshotv1.Kind{snapshotv1.Kind_KIND_FILES},
		Sources: []SourceRef{{Node: "n1", Address: l.Addr().String()}}, Inboxes: inboxes, Stager: &fakeStager{fsys: vfs.Default, want: c},
	})
	if err != nil {
		t.Fatal(err)
	}
	staged, err := receiver.Receive(t.Context(), transfer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inboxes.Open(transfer.opts.ID); !errors.Is(err, ErrBusy) {
		t.Errorf("an inbox in use was opened: %v", err)
	}
	if err := staged.Inbox.Remove(); err != nil {
		t.Fatal(err)
	}
	if infos, err := inboxes.List(); err != nil || len(infos) > 0 {
		t.Error(infos, err)
	}
}
