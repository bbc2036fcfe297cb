package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

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

// grpcSpeed sends pieces from a server to a client in this process.
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
		begin := time.Now()
		for sent := int64(0); sent < bytes && time.Since(begin) < limitsTime; sent += limitsPiece {
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
