package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// rawReceiver is a receiver that a test writes.
type rawReceiver struct {
	t      testing.TB
	stream grpc.BidiStreamingClient[snapshotv1.FetchRequest, snapshotv1.FetchResponse]
}

// rawConn connects to a source.
func rawConn(t testing.TB, s *testSource) snapshotv1.SnapshotServiceClient {
	conn, err := grpc.NewClient("passthrough:///s", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(s.dial))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return snapshotv1.NewSnapshotServiceClient(conn)
}

func rawOpen(attempt uint64) *snapshotv1.Open {
	return &snapshotv1.Open{
		Transfer: []byte("0123456789abcdef"), Attempt: attempt, ClusterId: []byte("cluster"), HistoryEpoch: 1, Group: 7, Node: "n2",
		Kinds: []snapshotv1.Kind{snapshotv1.Kind_KIND_FILES}, ChunkMax: 1 << 20, CreditLimit: 100,
	}
}

func fetch(t testing.TB, client snapshotv1.SnapshotServiceClient, open *snapshotv1.Open) *rawReceiver {
	stream, err := client.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &rawReceiver{t, stream}
	r.send(&snapshotv1.FetchRequest{Message: &snapshotv1.FetchRequest_Open{Open: open}})
	return r
}

func (r *rawReceiver) send(m *snapshotv1.FetchRequest) {
	r.t.Helper()
	if err := r.stream.Send(m); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rawReceiver) ack(limit uint64) {
	r.send(&snapshotv1.FetchRequest{Message: &snapshotv1.FetchRequest_Ack{Ack: &snapshotv1.Ack{CreditLimit: limit}}})
}

// next returns the next message that is no keepalive.
func (r *rawReceiver) next() (*snapshotv1.FetchResponse, error) {
	for {
		m, err := r.stream.Recv()
		if err != nil || m.GetKeepalive() == nil {
			return m, err
		}
	}
}

func (r *rawReceiver) wantAbort(code snapshotv1.Code) {
	r.t.Helper()
	for {
		m, err := r.next()
		if err != nil {
			r.t.Fatalf("no abort but %v", err)
		}
		if a := m.GetAbort(); a != nil {
			if a.Code != code {
				r.t.Errorf("aborted with %v", a)
			}
			return
		}
	}
}

// TestFencing: a newer attempt closes the older one first; a late older one is
// refused.
func TestFencing(t *testing.T) {
	s := newTestSource(t, randomContent(20, 1000)).start()
	defer s.stop()
	client := rawConn(t, s)
	first := fetch(t, client, rawOpen(3))
	if m, err := first.next(); err != nil || m.GetManifest() == nil {
		t.Fatal(m, err)
	}
	late := fetch(t, client, rawOpen(2))
	late.wantAbort(snapshotv1.Code_CODE_STALE)
	same := fetch(t, client, rawOpen(3))
	same.wantAbort(snapshotv1.Code_CODE_STALE)
	newer := fetch(t, client, rawOpen(4))
	if m, err := newer.next(); err != nil || m.GetManifest() == nil {
		t.Fatal(m, err)
	}
	first.wantAbort(snapshotv1.Code_CODE_STALE)
	if sends := s.source.Sends(); len(sends) != 1 || sends[0].Attempt != 4 || sends[0].Node != "n2" {
		t.Errorf("%+v", sends)
	}
	// Another transfer for the same replica takes over too.
	open := rawOpen(1)
	open.Transfer = NewID()
	other := fetch(t, client, open)
	if m, err := other.next(); err != nil || m.GetManifest() == nil {
		t.Fatal(m, err)
	}
	newer.wantAbort(snapshotv1.Code_CODE_STALE)
	if n := s.captures.Load(); n != 1 {
		t.Errorf("%d captures", n)
	}
}

// TestCredit: the source sends as many bytes as it may, and no more.
func TestCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestSource(t, randomContent(21, 1000))
		s.opts.ChunkBytes = 40
		s.start()
		client := rawConn(t, s)
		r := fetch(t, client, rawOpen(1))
		if m, err := r.next(); err != nil || m.GetManifest() == nil {
			t.Fatal(m, err)
		}
		got, limit := 0, uint64(100)
		for range 3 {
			synctest.Wait()
			if sent := s.counters.Metrics().SentBytes; sent > limit || sent+40 < limit {
				t.Errorf("%d bytes sent with a credit of %d", sent, limit)
			}
			limit += 130
			r.ack(limit)
		}
		r.ack(5) // says nothing new
		r.ack(1000)
		for seq := uint64(1); ; seq++ {
			m, err := r.next()
			if err != nil {
				t.Fatal(err)
			}
			c := m.GetChunk()
			if c == nil {
				if m.GetFileEnd() == nil || got != 1000 {
					t.Errorf("%d bytes, then %v", got, m)
				}
				break
			}
			if c.Seq != seq || c.Offset != uint64(got) {
				t.Errorf("chunk %d at %d after %d and %d", c.Seq, c.Offset, seq, got)
			}
			got += len(c.Data)
		}
		r.send(&snapshotv1.FetchRequest{Message: &snapshotv1.FetchRequest_FileAck{FileAck: &snapshotv1.FileAck{File: 0, Ok: true}}})
		if m, err := r.next(); err != nil || m.GetEnd().GetFiles() != 1 {
			t.Error(m, err)
		}
		if err := r.stream.CloseSend(); err != nil {
			t.Error(err)
		}
		if _, err := r.next(); err != io.EOF {
			t.Error(err)
		}
		s.stop()
	})
}

// TestRequests: bad ones end the stream, foreign ones are told why.
func TestRequests(t *testing.T) {
	s := newTestSource(t, randomContent(22, 1000)).start()
	defer s.stop()
	client := rawConn(t, s)
	for name, change := range map[string]func(*snapshotv1.Open){
		"transfer": func(o *snapshotv1.Open) { o.Transfer = nil },
		"attempt":  func(o *snapshotv1.Open) { o.Attempt = 0 },
		"group":    func(o *snapshotv1.Open) { o.Group = 0 },
		"node":     func(o *snapshotv1.Open) { o.Node = "" },
		"chunk":    func(o *snapshotv1.Open) { o.ChunkMax = 0 },
		"kinds":    func(o *snapshotv1.Open) { o.Kinds = nil },
		"resume":   func(o *snapshotv1.Open) { o.Resume = &snapshotv1.Resume{Image: []byte("x")} },
	} {
		o := rawOpen(1)
		change(o)
		if m, err := fetch(t, client, o).next(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
	for name, test := range map[string]struct {
		change func(*snapshotv1.Open)
		code   snapshotv1.Code
	}{
		"cluster": {func(o *snapshotv1.Open) { o.ClusterId = []byte("other") }, snapshotv1.Code_CODE_REFUSED},
		"epoch":   {func(o *snapshotv1.Open) { o.HistoryEpoch = 9 }, snapshotv1.Code_CODE_REFUSED},
		"kinds":   {func(o *snapshotv1.Open) { o.Kinds = []snapshotv1.Kind{snapshotv1.Kind_KIND_STREAM} }, snapshotv1.Code_CODE_REFUSED},
		"index":   {func(o *snapshotv1.Open) { o.MinIndex = 1000 }, snapshotv1.Code_CODE_REFUSED},
	} {
		t.Run(name, func(t *testing.T) {
			o := rawOpen(1)
			o.Node = name
			test.change(o)
			fetch(t, client, o).wantAbort(test.code)
		})
	}
	o := rawOpen(1)
	o.Node = "n9"
	twice := fetch(t, client, o)
	twice.send(&snapshotv1.FetchRequest{Message: &snapshotv1.FetchRequest_Open{Open: o}})
	twice.wantAbort(snapshotv1.Code_CODE_REFUSED)
}

// TestQueue: a third receiver waits, hears of it, and is served when a slot is
// free; the source's end ends all.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestSource(t, randomContent(23, 1000)).start()
		client := rawConn(t, s)
		var held []*rawReceiver
		for i := range 2 {
			o := rawOpen(1)
			o.Node = fmt.Sprint(i)
			held = append(held, fetch(t, client, o))
			if m, err := held[i].next(); err != nil || m.GetManifest() == nil {
				t.Fatal(m, err)
			}
		}
		o := rawOpen(1)
		o.Node = "waits"
		third := fetch(t, client, o)
		m, err := third.stream.Recv()
		if k := m.GetKeepalive(); err != nil || k.GetPhase() != snapshotv1.Phase_PHASE_QUEUED || k.GetDone() != 1 {
			t.Fatal(m, err)
		}
		// Those that hold the slots take nothing, and others wait: they are given up.
		begin := time.Now()
		if m, err := third.next(); err != nil || m.GetManifest() == nil {
			t.Fatal(m, err)
		}
		if waited := time.Since(begin); waited < 50*time.Second || waited > 70*time.Second {
			t.Errorf("waited for %v", waited)
		}
		held[0].wantAbort(snapshotv1.Code_CODE_BUSY)
		go s.stop()
		// Whatever comes is an end.
		for {
			if _, err := third.next(); err != nil {
				break
			}
		}
		synctest.Wait()
	})
}

// TestCondemned: an image that the receiver's state machine finds damaged is not
// given to anybody again, and a transfer ends when it is the same with others.
func TestCondemned(t *testing.T) {
	s := newTestSource(t, randomContent(24, 100<<10, 10)).start()
	defer s.stop()
	r := newTestReceiver(t, s)
	bad := 1
	r.opts.Checkers = 1
	r.stager.checkErr = func() error {
		if bad--; bad >= 0 {
			return errors.New("a block is damaged")
		}
		return nil
	}
	if p := r.mustReceive().Progress(); p.Restarts > 1 || s.captures.Load() != 2 {
		t.Errorf("%+v, %d captures", p, s.captures.Load())
	}
	bad = 1 << 30
	if _, _, err := r.receive(t.Context()); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	s.awaitIdle()
	if kept := s.images.Kept(); len(kept) > 1 {
		t.Errorf("%d images are kept", len(kept))
	}
	bad = 0
	r.stager.prepareErr = func() error { return errors.New("it does not open") }
	if _, _, err := r.receive(t.Context()); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	if use := diskUse(t, r.fsys, "inbox"); use > 0 {
		t.Errorf("%d bytes are left", use)
	}
}

// TestSourceRot: a file that changes on the source's disk after it was checked
// is not sent to its end, and the image goes.
func TestSourceRot(t *testing.T) {
	s := newTestSource(t, randomContent(25, 100<<10))
	s.verified = true
	s.start()
	defer s.stop()
	image, err := s.images.Create(t.Context(), &fakeCapture{fsys: s.fsys, content: s.content, verified: true})
	if err != nil {
		t.Fatal(err)
	}
	rotten := append([]byte("rot"), s.content["000000.sst"][3:]...)
	if err := writeTestFile(s.fsys, s.fsys.PathJoin(image.Dir(), "000000.sst"), rotten); err != nil {
		t.Fatal(err)
	}
	id := image.Manifest().Image
	image.Release()
	r := newTestReceiver(t, s)
	if p := r.mustReceive().Progress(); string(p.Image) == string(id) || s.captures.Load() != 1 {
		t.Errorf("%+v", p)
	}
	if _, err := s.images.Open(id); !errors.Is(err, ErrImageGone) {
		t.Error(err)
	}
}

// TestNotNeeded ends a transfer at once.
func TestNotNeeded(t *testing.T) {
	r := scriptedReceiver(t, func(a *scripted) error {
		return a.Send(&snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_Abort{Abort: &snapshotv1.Abort{Code: snapshotv1.Code_CODE_NOT_NEEDED}}})
	})
	if _, transfer, err := r.receive(context.Background()); !errors.Is(err, ErrNotNeeded) || transfer.Progress().Attempt != 1 {
		t.Error(err)
	}
}

// TestManyFileAcks: a slow disk makes many files durable at once, so their
// FileAcks come together, before the credit that the source waits for in the
// middle of a file.
func TestManyFileAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const small, large = 40, 1000
		sizes := slices.Repeat([]int{10}, small)
		s := newTestSource(t, randomContent(22, append(sizes, large)...))
		s.opts.ChunkBytes = 40
		s.start()
		open := rawOpen(1)
		open.CreditLimit = small*10 + 100
		r := fetch(t, rawConn(t, s), open)
		for ended := 0; ended < small; {
			m, err := r.next()
			if err != nil {
				t.Fatal(err)
			}
			if m.GetFileEnd() != nil {
				ended++
			}
		}
		synctest.Wait()
		for no := range uint32(small) {
			r.send(&snapshotv1.FetchRequest{Message: &snapshotv1.FetchRequest_FileAck{FileAck: &snapshotv1.FileAck{File: no, Ok: true}}})
		}
		r.ack(small*10 + large)
		for got := 0; got < large; {
			synctest.Wait()
			if sent := s.counters.Metrics().SentBytes; sent != small*10+large {
				t.Fatalf("%d bytes sent with a credit of %d: it stands still", sent, small*10+large)
			}
			m, err := r.next()
			if err != nil {
				t.Fatal(err)
			}
			got += len(m.GetChunk().GetData())
		}
		s.stop()
	})
}
