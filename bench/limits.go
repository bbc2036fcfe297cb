package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Limits are what the machine can do at best, with the means a recovery has, in
// 10^6 bytes a second and in time.
type Limits struct {
	// DiskWrite: one file written from start to end in pieces of 1 MiB, and synced.
	DiskWrite float64 `json:"disk_write_mb_s"`
	// Append and Overwrite: a record of 512 bytes and fdatasync, at the end of a
	// growing file and inside a preallocated one; medians.
	Append    time.Duration `json:"append_sync_ns"`
	Overwrite time.Duration `json:"overwrite_sync_ns"`
	// GRPC: messages of 1 MiB through one gRPC stream over loopback, both ends in
	// this process.
	GRPC float64 `json:"grpc_mb_s"`
	// Encode and Decode: zstd at its fastest level, of JSON text, one goroutine, in
	// bytes of the text. Ratio is compressed to plain.
	Encode float64 `json:"zstd_encode_mb_s"`
	Decode float64 `json:"zstd_decode_mb_s"`
	Ratio  float64 `json:"zstd_ratio"`
}

// Transfer is the least time that many bytes take to be sent and written, where
// both go on at the same time.
func (l *Limits) Transfer(bytes uint64) time.Duration {
	slowest := min(l.DiskWrite, l.GRPC)
	if slowest == 0 {
		return 0
	}
	return time.Duration(float64(bytes) / 1e6 / slowest * float64(time.Second))
}

const (
	limitsPiece = 1 << 20
	limitsSyncs = 200
)

// MeasureLimits measures the machine, with files in dir that it removes. bytes is
// how much each of the measurements moves.
func MeasureLimits(ctx context.Context, dir string, bytes int64) (*Limits, error) {
	var l Limits
	var err error
	if l.DiskWrite, err = diskWrite(ctx, dir, bytes); err != nil {
		return nil, fmt.Errorf("bench: limits: disk: %w", err)
	}
	if l.Append, l.Overwrite, err = syncTimes(ctx, dir); err != nil {
		return nil, fmt.Errorf("bench: limits: sync: %w", err)
	}
	if l.GRPC, err = grpcSpeed(ctx, bytes); err != nil {
		return nil, fmt.Errorf("bench: limits: gRPC: %w", err)
	}
	if l.Encode, l.Decode, l.Ratio, err = zstdSpeed(ctx, bytes/4); err != nil {
		return nil, fmt.Errorf("bench: limits: zstd: %w", err)
	}
	return &l, nil
}

// withFile makes a file for a measurement and removes it afterwards.
func withFile(dir, name string, use func(*os.File) error) (err error) {
	path := filepath.Join(dir, name)
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(path)) }()
	return use(file)
}

func randomPiece() []byte {
	piece := make([]byte, limitsPiece)
	source := rand.New(rand.NewPCG(1, 2))
	for i := range piece {
		piece[i] = byte(source.Uint32())
	}
	return piece
}

func diskWrite(ctx context.Context, dir string, bytes int64) (speed float64, err error) {
	piece := randomPiece()
	err = withFile(dir, "limits.data", func(file *os.File) error {
		begin := time.Now()
		var written int64
		for ; written < bytes; written += limitsPiece {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if _, err := file.Write(piece); err != nil {
				return err
			}
		}
		if err := file.Sync(); err != nil {
			return err
		}
		speed = MBPerSecond(uint64(written), time.Since(begin))
		return nil
	})
	return speed, err
}

func syncTimes(ctx context.Context, dir string) (appended, overwritten time.Duration, err error) {
	record := randomPiece()[:512]
	err = withFile(dir, "limits.log", func(file *os.File) error {
		var times [2][]float64
		for pass := range times {
			for i := range limitsSyncs {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				begin := time.Now()
				if _, err := file.WriteAt(record, int64(i)*512); err != nil {
					return err
				}
				if err := dataSync(file); err != nil {
					return err
				}
				times[pass] = append(times[pass], float64(time.Since(begin)))
			}
		}
		appended, overwritten = time.Duration(SpreadOf(times[0]).Median), time.Duration(SpreadOf(times[1]).Median)
		return nil
	})
	return appended, overwritten, err
}

// bytesCodec passes messages that are bytes already.
type bytesCodec struct{}

var _ encoding.CodecV2 = bytesCodec{}

// Name of the codec.
func (bytesCodec) Name() string { return "bytes" }

// Marshal takes a []byte.
func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	data, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("%T is not bytes", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(data)}, nil
}

// Unmarshal counts the bytes into a *int.
func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	count, ok := v.(*int)
	if !ok {
		return fmt.Errorf("%T is not a count", v)
	}
	*count = data.Len()
	return nil
}

func grpcSpeed(ctx context.Context, bytes int64) (float64, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	piece := randomPiece()
	server := grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}))
	stream := grpc.StreamDesc{StreamName: "Send", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
		var request int
		if err := s.RecvMsg(&request); err != nil {
			return err
		}
		for sent := int64(0); sent < bytes; sent += limitsPiece {
			if err := s.SendMsg(piece); err != nil {
				return err
			}
		}
		return nil
	}}
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "limits", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{stream}}, new(any))
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		<-served
	}()
	const window = 16 << 20
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{}), grpc.MaxCallRecvMsgSize(2*limitsPiece)))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	begin := time.Now()
	receive, err := conn.NewStream(ctx, &stream, "/limits/Send")
	if err != nil {
		return 0, err
	}
	if err := errors.Join(receive.SendMsg([]byte("go")), receive.CloseSend()); err != nil {
		return 0, err
	}
	var received uint64
	for {
		var count int
		if err := receive.RecvMsg(&count); errors.Is(err, io.EOF) {
			return MBPerSecond(received, time.Since(begin)), nil
		} else if err != nil {
			return 0, err
		}
		received += uint64(count)
	}
}

func zstdSpeed(ctx context.Context, bytes int64) (encode, decode, share float64, err error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return 0, 0, 0, err
	}
	defer encoder.Close()
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*limitsPiece))
	if err != nil {
		return 0, 0, 0, err
	}
	defer decoder.Close()
	text := make([]byte, 0, limitsPiece)
	values := values{data: DataJSON}
	for i := 0; len(text)+2*valueBytes < limitsPiece; i++ {
		text = append(append(text, values.at(i)...), '\n')
	}
	var packed, plain []byte
	var encoding, decoding time.Duration
	var total uint64
	for ; total < uint64(bytes); total += uint64(len(text)) {
		if ctx.Err() != nil {
			return 0, 0, 0, context.Cause(ctx)
		}
		begin := time.Now()
		packed = encoder.EncodeAll(text, packed[:0])
		middle := time.Now()
		if plain, err = decoder.DecodeAll(packed, plain[:0]); err != nil {
			return 0, 0, 0, err
		}
		encoding, decoding = encoding+middle.Sub(begin), decoding+time.Since(middle)
	}
	return MBPerSecond(total, encoding), MBPerSecond(total, decoding), ratio(float64(len(packed)), float64(len(text))), nil
}
