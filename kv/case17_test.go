package kv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// storeProvider serves images of a store.
type storeProvider struct {
	images *snapshot.Images
	store  *Store
}

// Provide captures an image, or gives one that is kept.
func (p *storeProvider) Provide(ctx context.Context, req *snapshotv1.Open, _ func(done, total uint64)) (snapshot.OpenedImage, snapshot.Choice, error) {
	return p.images.Provide(ctx, req, func(_ context.Context, have snapshot.Have, least uint64) (snapshot.Capture, error) {
		return p.store.Capture(have, least)
	})
}

// TestCase17LargestValues: a state of 1,000 values at the value limit travels with
// the default limits of every part; of 250 where STREAMRAFT_LONG is not set.
//
// It guards that no limit of a message, a chunk, a table or a window is below what
// the state may hold.
func TestCase17LargestValues(t *testing.T) {
	var limits Limits
	limits.EnsureDefaults()
	from, to := vfs.NewMem(), vfs.NewMem()
	options := func(fs vfs.FS) Options {
		return Options{FS: fs, Compression: CompressionFastest, ScrubBytesPerSecond: -1}
	}
	source, target := openStore(t, options(from)), openStore(t, options(to))
	value := make([]byte, limits.ValueBytes)
	index := uint64(0)
	write := func(count int) {
		for i := range count {
			index++
			copy(value, fmt.Sprint(index)) // the rest compresses, so that it fits into memory
			_, err := source.Apply([]raftnode.Entry{{Index: index, Term: 1, Last: true, Data: EncodePut(nil, fmt.Appendf(nil, "k/%04d", i), value, nil)}})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	images, err := snapshot.OpenImages(snapshot.ImagesOptions{FS: from, Dir: "kept", ClusterID: []byte("cluster"), HistoryEpoch: 1, Group: 7})
	if err != nil {
		t.Fatal(err)
	}
	server, err := snapshot.NewSource(snapshot.SourceOptions{Provider: &storeProvider{images, source}})
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(append(snapshot.ServerOptions(), grpc.WaitForHandlers(true))...)
	server.Register(g)
	l := bufconn.Listen(1 << 20)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(l) })
	defer func() {
		g.Stop()
		serving.Wait()
		if err := errors.Join(server.Close(), images.Close()); err != nil {
			t.Error(err)
		}
	}()
	receiver, err := snapshot.NewReceiver(snapshot.ReceiverOptions{Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }})
	if err != nil {
		t.Fatal(err)
	}
	inboxes, err := snapshot.OpenInboxes(to, "inbox", nil)
	if err != nil {
		t.Fatal(err)
	}
	transfer := func() {
		t.Helper()
		transfer, err := snapshot.NewTransfer(snapshot.TransferOptions{
			ID: snapshot.NewID(), ClusterID: []byte("cluster"), HistoryEpoch: 1, Group: 7, Node: "n2", MinIndex: index,
			Kinds:   []snapshotv1.Kind{snapshotv1.Kind_KIND_FILES, snapshotv1.Kind_KIND_RECORDS},
			Applied: target.Have, Sources: []snapshot.SourceRef{{Node: "n1", Address: "n1"}}, Inboxes: inboxes, Stager: target,
		})
		if err != nil {
			t.Fatal(err)
		}
		staged, err := receiver.Receive(t.Context(), transfer)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(target.Install(staged.Sink), staged.Inbox.Remove()); err != nil {
			t.Fatal(err)
		}
		if got := target.AppliedIndex(); got != index {
			t.Errorf("applied %d, want %d", got, index)
		}
	}
	count := 250
	if os.Getenv("STREAMRAFT_LONG") != "" {
		count = 1000
	}
	write(count)
	if err := source.Flush(); err != nil {
		t.Fatal(err)
	}
	transfer()
	for _, i := range []int{0, count / 2, count - 1} {
		key := fmt.Appendf(nil, "k/%04d", i)
		want, err := source.Get(key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := target.Get(key)
		if err != nil || string(got.Record.Value) != string(want.Record.Value) || len(got.Record.Value) != limits.ValueBytes {
			t.Errorf("%s has %d bytes, %v", key, len(got.Record.Value), err)
		}
	}
}
