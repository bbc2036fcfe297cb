package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/server"
)

// cluster is three nodes in this process, with everything a deployed node has.
type cluster struct {
	servers   []*server.Server
	endpoints []string
}

func startCluster(b *testing.B) *cluster {
	b.Helper()
	const nodes = 3
	founders := make([]raftnode.Founder, nodes)
	listeners := make([]net.Listener, nodes)
	c := &cluster{}
	for i := range founders {
		listeners[i] = listen(b)
		founders[i] = raftnode.Founder{Node: fmt.Sprintf("n%d", i+1), Address: listeners[i].Addr().String()}
		c.endpoints = append(c.endpoints, founders[i].Address)
	}
	dir := b.TempDir()
	c.servers = make([]*server.Server, nodes)
	errs := make([]error, nodes)
	var opening sync.WaitGroup
	for i, f := range founders {
		http := listen(b)
		opening.Go(func() {
			config := server.Config{Name: f.Node, DataDir: filepath.Join(dir, f.Node), Cluster: founders}
			c.servers[i], errs[i] = server.Open(b.Context(), config, server.Options{
				Logger: slog.New(slog.DiscardHandler), Listener: listeners[i], HTTPListener: http,
			})
		})
	}
	opening.Wait()
	for i, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := c.servers[i].Close(); err != nil {
				b.Errorf("close %s: %v", founders[i].Node, err)
			}
		})
	}
	return c
}

func listen(b *testing.B) net.Listener {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// leader waits for the leader of the data group.
func (c *cluster) leader(b *testing.B) *raftnode.Group {
	b.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-ticker.C {
		for _, s := range c.servers {
			g, err := s.Node().Group(raftnode.FirstDataGroup)
			if err != nil {
				b.Fatal(err)
			}
			if g.Status().Role == raftnode.RoleLeader {
				return g
			}
		}
	}
	b.Fatal("no leader after 30 s")
	return nil
}

// measure runs put from so many goroutines, b.N times in all, and reports puts
// per second.
func measure(b *testing.B, proposers int, put func(random *rand.Rand) error) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	var next atomic.Int64
	var running sync.WaitGroup
	for i := range proposers {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		running.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if err := put(random); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "puts/s")
}

// record fills a random key out of a million, and a random value.
func record(random *rand.Rand, key, value []byte) {
	copy(key, fmt.Sprintf("key-%012d", random.Uint64N(1_000_000)))
	for i := 0; i < len(value); i += 8 {
		binary.LittleEndian.PutUint64(value[i:], random.Uint64())
	}
}

var concurrency = []int{1, 16, 64, 256, 1024}

// BenchmarkPut proposes in the leader's process, as an embedding program does.
// Each put is acknowledged durably on a majority before the next of its goroutine.
func BenchmarkPut(b *testing.B) {
	for _, n := range concurrency {
		b.Run(fmt.Sprintf("proposers=%d", n), func(b *testing.B) {
			g := startCluster(b).leader(b)
			measure(b, n, func(random *rand.Rand) error {
				var key [keyBytes]byte
				var value [valueBytes]byte
				record(random, key[:], value[:])
				_, err := g.Propose(b.Context(), kv.EncodePut(nil, key[:], value[:], nil))
				return err
			})
		})
	}
}

// BenchmarkClientPut is the same through the Go client and gRPC.
func BenchmarkClientPut(b *testing.B) {
	for _, n := range concurrency {
		b.Run(fmt.Sprintf("callers=%d", n), func(b *testing.B) {
			c := startCluster(b)
			c.leader(b)
			connection, err := client.Open(b.Context(), client.Options{Endpoints: c.endpoints})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = connection.Close() })
			measure(b, n, func(random *rand.Rand) error {
				var key [keyBytes]byte
				var value [valueBytes]byte
				record(random, key[:], value[:])
				ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
				defer cancel()
				_, err := connection.Put(ctx, key[:], value[:])
				return err
			})
		})
	}
}
