package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

const (
	// maxMessageBytes bounds a gRPC message in either direction.
	maxMessageBytes = 8 << 20
	// connectionTimeout bounds the handshake of a new connection.
	connectionTimeout = 10 * time.Second
	// maxHeaderBytes bounds the metadata of a call and the headers of a page.
	maxHeaderBytes = 64 << 10
	// httpTimeout bounds reading a request for a page.
	httpTimeout = 10 * time.Second
)

// serve makes both servers and lets them accept.
func (s *Server) serve() {
	s.health = health.NewServer()
	s.setHealth(false)
	s.grpc = grpc.NewServer(append(s.transport.ServerOptions(),
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxSendMsgSize(maxMessageBytes),
		grpc.MaxConcurrentStreams(uint32(s.config.MaxStreams)),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.ChainUnaryInterceptor(s.unary),
		grpc.ChainStreamInterceptor(s.streaming),
		// Close frees what handlers use.
		grpc.WaitForHandlers(true),
	)...)
	s.transport.Register(s.grpc)
	s.source.Register(s.grpc)
	kvv1.RegisterKvServiceServer(s.grpc, &kvService{s: s})
	adminv1.RegisterAdminServiceServer(s.grpc, &adminService{s: s})
	healthv1.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.goroutines.Go(func() {
		err := s.grpc.Serve(netutil.LimitListener(s.listener, s.config.MaxConnections))
		s.served("listen", s.listener, err)
	})

	s.http = &http.Server{
		Handler: s.pages(), ReadHeaderTimeout: httpTimeout, ReadTimeout: httpTimeout,
		IdleTimeout: time.Minute, MaxHeaderBytes: maxHeaderBytes,
	}
	s.goroutines.Go(func() {
		err := s.http.Serve(netutil.LimitListener(s.httpListener, s.config.MaxConnections))
		s.served("http_listen", s.httpListener, err)
	})
}

// served looks at why a server ended: a node that nobody reaches has failed.
func (s *Server) served(key string, l net.Listener, err error) {
	if err == nil || s.draining.Load() || errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return
	}
	s.log.Error("stopped accepting connections", "key", key, "error", err)
	s.fail(&ListenError{Key: key, Address: l.Addr().String(), Err: err})
}

// unary wraps every unary call: time, panics, figures.
func (s *Server) unary(ctx context.Context, q any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, maxCallTime)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = s.panicked(info.FullMethod, p)
		}
		s.metrics.called(info.FullMethod, status.Code(err), time.Since(start))
	}()
	return handle(ctx, q)
}

// streaming wraps every stream.
func (s *Server) streaming(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = s.panicked(info.FullMethod, p)
		}
		s.metrics.streamed(info.FullMethod, status.Code(err))
	}()
	return handle(service, stream)
}

// panicked keeps one poisonous request from ending the node.
func (s *Server) panicked(method string, p any) error {
	s.log.Error("a call panicked; please report this", "method", method, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	return status.Error(codes.Internal, "the call failed on an internal error; the node's log has the details")
}

// setHealth sets gRPC's health of all services.
func (s *Server) setHealth(ready bool) {
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if ready {
		state = healthv1.HealthCheckResponse_SERVING
	}
	for _, service := range []string{"", kvv1.KvService_ServiceDesc.ServiceName, adminv1.AdminService_ServiceDesc.ServiceName, raftv1.RaftService_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(service, state)
	}
}

// pages are the HTTP pages.
func (s *Server) pages() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.options.Registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, Timeout: httpTimeout,
	}))
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
