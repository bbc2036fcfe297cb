package snapshot

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// script is a source that a test writes: each attempt calls it with the Open.
type script func(a *scripted) error

type scripted struct {
	grpc.BidiStreamingServer[snapshotv1.FetchRequest, snapshotv1.FetchResponse]
	open *snapshotv1.Open
	sum  chunkSum
}

func (a *scripted) sendManifest(m *snapshotv1.Manifest) error {
	return a.Send(&snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_Manifest{Manifest: m}})
}

func (a *scripted) sendChunk(c *snapshotv1.Chunk) error {
	return a.Send(&snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_Chunk{Chunk: c}})
}

func (a *scripted) chunk(seq uint64, file uint32, offset uint64, data []byte) *snapshotv1.Chunk {
	c := &snapshotv1.Chunk{Seq: seq, File: file, Offset: offset, Codec: snapshotv1.Codec_CODEC_NONE, RawLen: uint32(len(data)), Data: data}
	c.Crc32C = a.sum.of(c)
	return c
}

func (a *scripted) sendFileEnd(e *snapshotv1.FileEnd) error {
	return a.Send(&snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_FileEnd{FileEnd: e}})
}

func (a *scripted) sendEnd(e *snapshotv1.End) error {
	return a.Send(&snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_End{End: e}})
}

// await reads until a Cancel, a FileAck or the end of the stream.
func (a *scripted) await() (*snapshotv1.FetchRequest, error) {
	for {
		req, err := a.Recv()
		if err != nil || req.GetCancel() != nil || req.GetFileAck() != nil {
			return req, err
		}
	}
}

type scriptServer struct {
	snapshotv1.UnimplementedSnapshotServiceServer
	script script
}

func (s *scriptServer) Fetch(stream grpc.BidiStreamingServer[snapshotv1.FetchRequest, snapshotv1.FetchResponse]) error {
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	open := req.GetOpen()
	return s.script(&scripted{stream, open, newChunkSum(open.Transfer, open.Attempt)})
}

// serveScript serves a script and returns how to reach it.
func serveScript(t testing.TB, script script) func(context.Context, string) (net.Conn, error) {
	server := grpc.NewServer(append(ServerOptions(), grpc.WaitForHandlers(true))...)
	snapshotv1.RegisterSnapshotServiceServer(server, &scriptServer{script: script})
	l := bufconn.Listen(1 << 20)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }
}

func scriptManifest(size uint64, sizes ...uint64) *snapshotv1.Manifest {
	m := &snapshotv1.Manifest{
		Image: []byte("image-0123456789"), ClusterId: []byte("cluster"), HistoryEpoch: 1, Group: 7,
		Kind: snapshotv1.Kind_KIND_FILES, Index: 100, Term: 3,
	}
	for i, size := range append([]uint64{size}, sizes...) {
		m.Files = append(m.Files, &snapshotv1.File{Name: string(rune('a' + i)), Size: size})
		m.Bytes += size
	}
	return m
}

// TestViolations has a source break the protocol; the attempt must end with the
// right error, and the right word to the source.
func TestViolations(t *testing.T) {
	data := make([]byte, 100)
	fileEnd := &snapshotv1.FileEnd{File: 0, Size: 100, Xxhash64: xxhash.Sum64(data)}
	digest := newEndDigest()
	digest.add(fileEnd)
	for _, test := range []struct {
		name   string
		script script
		want   error
		code   snapshotv1.Code
	}{
		{"gap", func(a *scripted) error {
			return errors.Join(a.sendChunk(a.chunk(1, 0, 0, data[:50])), a.sendChunk(a.chunk(3, 0, 50, data[50:])))
		}, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"chunk 0", func(a *scripted) error { return a.sendChunk(a.chunk(0, 0, 0, data)) }, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"bad checksum", func(a *scripted) error {
			c := a.chunk(1, 0, 0, data)
			c.Crc32C++
			return a.sendChunk(c)
		}, ErrCorrupt, snapshotv1.Code_CODE_CORRUPT},
		{"chunk of another transfer", func(a *scripted) error {
			a.sum = newChunkSum(NewID(), a.open.Attempt)
			return a.sendChunk(a.chunk(1, 0, 0, data))
		}, ErrCorrupt, snapshotv1.Code_CODE_CORRUPT},
		{"chunk of another attempt", func(a *scripted) error {
			a.sum = newChunkSum(a.open.Transfer, a.open.Attempt+1)
			return a.sendChunk(a.chunk(1, 0, 0, data))
		}, ErrCorrupt, snapshotv1.Code_CODE_CORRUPT},
		{"beyond the file", func(a *scripted) error { return a.sendChunk(a.chunk(1, 0, 1, data)) }, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"no such file", func(a *scripted) error { return a.sendChunk(a.chunk(1, 9, 0, data)) }, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"hole", func(a *scripted) error { return a.sendChunk(a.chunk(1, 0, 50, data[:50])) }, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"two files at once", func(a *scripted) error {
			return errors.Join(a.sendChunk(a.chunk(1, 0, 0, data[:50])), a.sendChunk(a.chunk(2, 1, 0, data)))
		}, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"oversize", func(a *scripted) error {
			return a.sendChunk(a.chunk(1, 1, 0, make([]byte, 65<<10)))
		}, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"unpacks to more", func(a *scripted) error {
			p, err := newPacker()
			if err != nil {
				return err
			}
			c := a.chunk(1, 1, 0, nil)
			p.pack(c, make([]byte, 60<<10))
			c.RawLen = 100
			c.Crc32C = a.sum.of(c)
			return a.sendChunk(c)
		}, ErrCorrupt, snapshotv1.Code_CODE_CORRUPT},
		{"unknown codec", func(a *scripted) error {
			c := a.chunk(1, 0, 0, data)
			c.Codec = 99
			c.Crc32C = a.sum.of(c)
			return a.sendChunk(c)
		}, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"file ends early", func(a *scripted) error {
			return errors.Join(a.sendChunk(a.chunk(1, 0, 0, data[:50])), a.sendFileEnd(fileEnd))
		}, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"file ends twice", func(a *scripted) error {
			return errors.Join(a.sendChunk(a.chunk(1, 0, 0, data)), a.sendFileEnd(fileEnd), a.sendFileEnd(fileEnd))
		}, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"end before all files", func(a *scripted) error {
			return errors.Join(a.sendChunk(a.chunk(1, 0, 0, data)), a.sendFileEnd(fileEnd), a.sendEnd(digest.end()))
		}, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"end with a wrong digest", func(a *scripted) error {
			end := digest.end()
			end.Digest++
			return errors.Join(a.sendChunk(a.chunk(1, 0, 0, data)), a.sendFileEnd(fileEnd), a.sendEnd(end))
		}, ErrCorrupt, snapshotv1.Code_CODE_CORRUPT},
		{"second manifest", func(a *scripted) error { return a.sendManifest(scriptManifest(100, 100<<10)) }, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"nothing", func(a *scripted) error { return a.Send(&snapshotv1.FetchResponse{}) }, ErrProtocol, snapshotv1.Code_CODE_REFUSED},
		{"ends in the middle", func(a *scripted) error { return io.EOF }, ErrProtocol, 0},
		{"abort", func(a *scripted) error {
			return errors.Join(a.Send(&snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_Abort{Abort: &snapshotv1.Abort{Code: snapshotv1.Code_CODE_BUSY}}}), io.EOF)
		}, ErrBusy, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			told := make(chan snapshotv1.Code, 100)
			r := scriptedReceiver(t, func(a *scripted) error {
				if err := a.sendManifest(scriptManifest(100, 100<<10)); err != nil {
					return err
				}
				if err := test.script(a); err == io.EOF || err != nil && errors.Is(err, io.EOF) {
					told <- 0
					return nil
				} else if err != nil {
					return err
				}
				for {
					req, err := a.await()
					if err != nil {
						return err
					}
					if c := req.GetCancel(); c != nil {
						told <- c.Code
						return nil
					}
				}
			})
			r.opts.GiveUpAfter = time.Nanosecond
			_, _, err := r.receive(t.Context())
			if !errors.Is(err, test.want) {
				t.Fatal(err)
			}
			if code := <-told; code != test.code {
				t.Errorf("the source was told %v", code)
			}
			if use := diskUse(t, r.fsys, "inbox"); use > 1000 {
				t.Errorf("%d bytes are left", use)
			}
		})
	}
}

func scriptedReceiver(t testing.TB, script script) *testReceiver {
	r := newTestReceiver(t)
	r.opts.Dialer = serveScript(t, script)
	r.transfer.Sources = []SourceRef{{Node: "s1", Address: "s1"}}
	r.opts.ChunkBytes, r.opts.WindowBytes, r.opts.BudgetBytes = 64<<10, 128<<10, 1<<20
	return r
}

// TestBadManifests: nothing is written of an image that does not fit.
func TestBadManifests(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*snapshotv1.Manifest)
		want   error
	}{
		{"another cluster", func(m *snapshotv1.Manifest) { m.ClusterId = []byte("other") }, ErrUnfit},
		{"another history epoch", func(m *snapshotv1.Manifest) { m.HistoryEpoch = 2 }, ErrUnfit},
		{"another group", func(m *snapshotv1.Manifest) { m.Group = 8 }, ErrUnfit},
		{"too old", func(m *snapshotv1.Manifest) { m.Index = 49 }, ErrUnfit},
		{"a kind that is not taken", func(m *snapshotv1.Manifest) { m.Kind = snapshotv1.Kind_KIND_STREAM }, ErrUnfit},
		{"path", func(m *snapshotv1.Manifest) { m.Files[0].Name = "../a" }, ErrCorrupt},
		{"sum", func(m *snapshotv1.Manifest) { m.Bytes++ }, ErrCorrupt},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := scriptedReceiver(t, func(a *scripted) error {
				m := scriptManifest(100)
				test.change(m)
				if err := a.sendManifest(m); err != nil {
					return err
				}
				_, err := a.await()
				return err
			})
			r.transfer.MinIndex = 50
			r.opts.GiveUpAfter = time.Nanosecond
			if _, _, err := r.receive(t.Context()); !errors.Is(err, test.want) {
				t.Fatal(err)
			}
			if use := diskUse(t, r.fsys, "inbox"); use > 0 {
				t.Errorf("%d bytes are left", use)
			}
		})
	}
}

// TestDuplicates: chunks that come again are acknowledged and not written, and
// a file with a wrong digest is asked for again, once.
func TestDuplicates(t *testing.T) {
	data := []byte("what is in the file")
	var acks []*snapshotv1.FetchRequest
	r := scriptedReceiver(t, func(a *scripted) error {
		first := a.chunk(1, 0, 0, data[:5])
		again := proto.Clone(first).(*snapshotv1.Chunk)
		bad := &snapshotv1.FileEnd{File: 0, Size: uint64(len(data)), Xxhash64: 1}
		good := &snapshotv1.FileEnd{File: 0, Size: uint64(len(data)), Xxhash64: xxhash.Sum64(data)}
		digest := newEndDigest()
		digest.add(bad)
		digest.add(good)
		err := errors.Join(a.sendManifest(scriptManifest(uint64(len(data)))),
			a.sendChunk(first), a.sendChunk(again), a.sendChunk(a.chunk(2, 0, 5, data[5:])), a.sendChunk(again), a.sendFileEnd(bad))
		if err != nil {
			return err
		}
		req, err := a.await()
		if err != nil {
			return err
		}
		acks = append(acks, req)
		if err := errors.Join(a.sendChunk(a.chunk(3, 0, 0, data)), a.sendFileEnd(good)); err != nil {
			return err
		}
		if req, err = a.await(); err != nil {
			return err
		}
		acks = append(acks, req)
		if err := a.sendEnd(digest.end()); err != nil {
			return err
		}
		_, err = a.await()
		if err == io.EOF {
			return nil
		}
		return err
	})
	r.stager.want = content{"a": data}
	r.mustReceive()
	if len(acks) != 2 || acks[0].GetFileAck().GetOk() || acks[0].GetFileAck().GetResendFrom() != 0 || !acks[1].GetFileAck().GetOk() {
		t.Errorf("acknowledged: %v", acks)
	}
	if n := r.counters.Metrics().ChecksumErrors; n != 1 {
		t.Errorf("%d checksum errors", n)
	}
}

// TestStall: a source that falls silent costs an attempt, in virtual time, but
// not while it says that it waits for its pacing; chunks become smaller.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun []time.Time
		var chunkMax []uint32
		data := make([]byte, 100<<10)
		r := scriptedReceiver(t, func(a *scripted) error {
			begun, chunkMax = append(begun, time.Now()), append(chunkMax, a.open.ChunkMax)
			if err := a.sendManifest(scriptManifest(uint64(len(data)))); err != nil {
				return err
			}
			offset := a.open.GetResume().GetOffset()
			if err := a.sendChunk(a.chunk(1, 0, offset, data[:1000])); err != nil {
				return err
			}
			if len(begun) == 1 {
				tick := time.NewTicker(10 * time.Second)
				defer tick.Stop()
				for range 30 { // 5 minutes of pacing
					<-tick.C
					if err := a.Send(&snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_Keepalive{Keepalive: &snapshotv1.Keepalive{
						Phase: snapshotv1.Phase_PHASE_SEND, Paced: true,
					}}}); err != nil {
						return err
					}
				}
			}
			req, err := a.await()
			if code := req.GetCancel().GetCode(); err == nil && code != snapshotv1.Code_CODE_STALLED && code != snapshotv1.Code_CODE_SHUTDOWN {
				t.Errorf("the source was told %v", req)
			}
			return err
		})
		r.opts.ChunkBytes, r.opts.WindowBytes, r.opts.BudgetBytes = 256<<10, 1<<20, 1<<20
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
		defer cancel()
		_, transfer, err := r.receive(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if !errors.Is(transfer.Progress().Err, context.DeadlineExceeded) || len(begun) < 4 {
			t.Fatalf("%d attempts, %+v", len(begun), transfer.Progress())
		}
		if first := begun[1].Sub(begun[0]); first < 5*time.Minute+30*time.Second || first > 5*time.Minute+45*time.Second {
			t.Errorf("the first attempt took %v", first)
		}
		if second := begun[2].Sub(begun[1]); second < 30*time.Second || second > 45*time.Second {
			t.Errorf("the second attempt took %v", second)
		}
		if chunkMax[0] != 256<<10 || chunkMax[1] != 128<<10 || chunkMax[2] != 64<<10 || chunkMax[3] != 64<<10 {
			t.Errorf("chunks of %v", chunkMax)
		}
	})
}

// slowFS writes only when it is let.
type slowFS struct {
	vfs.FS
	gate chan struct{}
}

type slowFile struct {
	vfs.File
	gate chan struct{}
}

func (f *slowFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, o...)
	if err != nil || f.FS.PathBase(name) == sessionName {
		return file, err
	}
	return &slowFile{file, f.gate}, nil
}

func (f *slowFile) WriteAt(data []byte, at int64) (int, error) {
	<-f.gate
	return f.File.WriteAt(data, at)
}

// TestSlowReceiver: a receiver that does not write gets no more than its window,
// for as long as it takes, and that is no stall.
func TestSlowReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestSource(t, randomContent(13, 4<<20)).start()
		gate := make(chan struct{})
		r := newTestReceiverOn(t, &slowFS{vfs.NewMem(), gate}, s)
		r.opts.ChunkBytes, r.opts.WindowBytes, r.opts.BudgetBytes = 64<<10, 256<<10, 256<<10
		go func() {
			timer := time.NewTimer(10 * time.Minute)
			<-timer.C
			if sent := s.counters.Metrics().SentBytes; sent != 256<<10 {
				t.Errorf("%d bytes sent", sent)
			}
			close(gate)
		}()
		if p := r.mustReceiveWithin(time.Hour).Progress(); p.Attempt != 1 {
			t.Errorf("%d attempts, %v", p.Attempt, p.Err)
		}
		if stalled := s.counters.Metrics().CreditStall["credit"]; stalled < 9*time.Minute {
			t.Errorf("stalled for %v", stalled)
		}
		s.stop()
	})
}
