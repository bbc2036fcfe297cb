package main

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/server"
)

// scriptNodes are real nodes of a script, in this process:
//
//	node address VAR           reserves an address and sets VAR to it
//	node start NAME VAR [join ADDRESS | replace ADDRESS]
//	                           runs a node in directory NAME at the address of VAR;
//	                           it founds a cluster of its own, or joins
//	node stop NAME             stops it
type scriptNodes struct {
	listeners map[string]net.Listener // by address
	running   map[string]*server.Server
}

func (n *scriptNodes) close() {
	for _, s := range n.running {
		_ = s.Close()
	}
	for _, l := range n.listeners {
		_ = l.Close()
	}
}

func listenHere() (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
}

func scriptNode(ts *testscript.TestScript, _ bool, args []string) {
	nodes := ts.Value("nodes").(*scriptNodes)
	switch args[0] {
	case "address":
		l, err := listenHere()
		ts.Check(err)
		nodes.listeners[l.Addr().String()] = l
		ts.Setenv(args[1], l.Addr().String())
	case "start":
		nodes.start(ts, args[1], ts.Getenv(args[2]), args[3:])
	case "stop":
		ts.Check(nodes.running[args[1]].Close())
		delete(nodes.running, args[1])
	default:
		ts.Fatalf("unknown: node %v", args)
	}
}

func (n *scriptNodes) start(ts *testscript.TestScript, name, address string, more []string) {
	l := n.listeners[address]
	if l == nil {
		// It ran before: the address is free again.
		var err error
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
		ts.Check(err)
	}
	delete(n.listeners, address)
	http, err := listenHere()
	ts.Check(err)
	config := server.Config{
		Name: name, DataDir: ts.MkAbs(name), Advertise: address, Cluster: []raftnode.Founder{{Node: name, Address: address}},
		TickInterval: 5 * time.Millisecond, LogSegmentBytes: 8 << 20, CacheBytes: 8 << 20, MemtableBytes: 8 << 20, LogBudget: 1 << 20,
	}
	ts.Check(config.Set("disk_reserve", "off", "test"))
	if len(more) > 0 {
		config.Cluster = nil
		ts.Check(config.Set(more[0], more[1], "test"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := server.Open(ctx, config, server.Options{Logger: slog.New(slog.DiscardHandler), Version: "test", Listener: l, HTTPListener: http})
	ts.Check(err)
	n.running[name] = s
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		ready, reasons := s.Ready()
		if ready {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			ts.Fatalf("node %s does not become ready: %s", name, strings.Join(reasons, ", "))
		}
	}
}
