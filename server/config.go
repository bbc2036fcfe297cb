package server

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
)

// Config is what an operator sets of a node. Its text form is YAML with one
// scalar per key (cluster may be a list); Keys describes the keys, and each is
// a flag of `streamraft node` too. The zero value of a field means its default.
// A Config is a value: copies share nothing that is changed later.
type Config struct {
	// Name is the node's name, unique in the cluster.
	Name string
	// DataDir is the node's directory.
	DataDir string
	// Listen is host:port of the gRPC port, for peers and clients.
	Listen string
	// Advertise is host:port at which others reach Listen. Default: the node's
	// entry in Cluster, else Listen.
	Advertise string
	// HTTPListen is host:port of metrics, health and profiles.
	HTTPListen string
	// Cluster is the list the cluster is founded with.
	Cluster []raftnode.Founder
	// Join are host:port of members of a cluster that an empty directory joins.
	Join []string
	// Replace are the same, for a node that takes the place of the one of its
	// name.
	Replace []string
	// Learner keeps a node that joins from becoming a voter by itself.
	Learner bool
	// InsecureListen permits addresses that are not loopback without TLS.
	InsecureListen bool
	// Compression at rest.
	Compression kv.Compression
	// TickInterval is raft's unit of time.
	TickInterval time.Duration
	// HeartbeatTicks and ElectionTicks count ticks.
	HeartbeatTicks, ElectionTicks int
	// LogBudget, LogSegmentBytes and DiskReserve are in bytes; a DiskReserve
	// below zero is "off".
	LogBudget, LogSegmentBytes, DiskReserve Size
	// LimitKey, LimitValue and LimitTxn bound what is proposed here.
	LimitKey, LimitValue, LimitTxn Size
	// CacheBytes, MemtableBytes and JournalBytes bound memory and disk of the
	// state; zero in CacheBytes and JournalBytes is "auto".
	CacheBytes, MemtableBytes, JournalBytes Size
	// MaxConnections and MaxStreams bound what clients and peers open.
	MaxConnections, MaxStreams int
	// MaxInflightBytes bounds the writes of all clients that wait for their
	// outcome.
	MaxInflightBytes Size
	// SnapshotPacing is latency or off: whether images that this node sends give way
	// to clients. SnapshotRate bounds them in bytes a second; zero is "none".
	SnapshotPacing string
	SnapshotRate   Size
	// SnapshotDelta is on or off: whether this node, where its state is behind,
	// takes an image of what changed since, or full images only.
	SnapshotDelta string
	// SnapshotKeep and SnapshotKeepBytes bound the images that a group keeps; a
	// SnapshotKeepBytes below zero is "off". SnapshotExpiry is how long one lives
	// after its last use.
	SnapshotKeep      int
	SnapshotKeepBytes Size
	SnapshotExpiry    time.Duration
	// LogLevel is debug, info, warn or error; LogFormat text or json.
	LogLevel, LogFormat string
	// ShutdownTimeout bounds a graceful stop.
	ShutdownTimeout time.Duration

	// sources tells where each key was set: "line 3", "flag --listen".
	sources map[string]string
	// refused are keys whose text could not be read, so that Validate does not
	// complain about what stands in their place.
	refused map[string]bool
}

// sizeOff is a DiskReserve that is switched off.
const sizeOff Size = -1

// EnsureDefaults fills the fields that were left zero. CacheBytes and
// JournalBytes stay zero, which is "auto".
func (c *Config) EnsureDefaults() {
	for _, k := range Keys() {
		if k.Default != "" && k.isZero(c) {
			// A default is a constant of this package that its own parser reads.
			_ = k.set(c, k.Default)
		}
	}
	if c.Advertise == "" {
		c.Advertise = c.Listen
		for _, f := range c.Cluster {
			if f.Node == c.Name {
				c.Advertise = f.Address
			}
		}
	}
}

// Set sets one key from text, as a flag does. source says where the text came
// from, for error messages, such as "flag --listen". The error is a
// *ConfigError.
func (c *Config) Set(key, text, source string) error {
	k, ok := findKey(key)
	if !ok {
		return &ConfigError{Problems: []Problem{unknownKey(key, source)}}
	}
	return oneProblem(c.setKey(k, text, source))
}

// setKey sets a key and notes where it came from.
func (c *Config) setKey(k Key, text, source string) *Problem {
	// Copied, since copies of a Config must not share a map.
	sources, refused := make(map[string]string), make(map[string]bool)
	for name, s := range c.sources {
		sources[name] = s
	}
	for name := range c.refused {
		refused[name] = true
	}
	c.sources, c.refused = sources, refused
	c.sources[k.Name] = source
	delete(c.refused, k.Name)
	if err := k.set(c, text); err != nil {
		c.refused[k.Name] = true
		return &Problem{Source: source, Key: k.Name, Value: text, Reason: err.Error()}
	}
	return nil
}

// Validate reports every problem, each with key, value and what is allowed, as
// one *ConfigError. It expects defaults to be filled.
func (c *Config) Validate() error {
	v := validation{config: c}
	v.identity()
	v.addresses()
	v.timing()
	v.sizes()
	v.choices()
	if len(v.problems) == 0 {
		return nil
	}
	return &ConfigError{Problems: v.problems}
}

// validation collects problems.
type validation struct {
	config   *Config
	problems []Problem
}

func (v *validation) bad(key, format string, args ...any) {
	if v.config.refused[key] {
		return
	}
	k, _ := findKey(key)
	v.problems = append(v.problems, Problem{
		Source: v.config.sources[key], Key: key, Value: k.get(v.config), Reason: fmt.Sprintf(format, args...),
	})
}

func (v *validation) identity() {
	c := v.config
	if c.Name == "" {
		v.bad("name", "missing; give the node a name that is unique in the cluster")
	} else if !validNodeName(c.Name) {
		v.bad("name", "must have 1 to 64 characters of A-Z a-z 0-9 . _ -")
	}
	if c.DataDir == "" {
		v.bad("data_dir", "missing; name the directory of this node")
	}
	names, addresses := make(map[string]bool), make(map[string]bool)
	for _, f := range c.Cluster {
		switch {
		case !validNodeName(f.Node):
			v.bad("cluster", "node name %q must have 1 to 64 characters of A-Z a-z 0-9 . _ -", f.Node)
		case names[f.Node]:
			v.bad("cluster", "node %s is listed twice", f.Node)
		case addresses[f.Address]:
			v.bad("cluster", "address %s is listed twice", f.Address)
		}
		if err := checkDialAddress(f.Address); err != nil {
			v.bad("cluster", "address of node %s: %v", f.Node, err)
		}
		names[f.Node], addresses[f.Address] = true, true
	}
	v.join()
	if len(c.Cluster) > 0 && c.Name != "" && !names[c.Name] && c.joinOptions() == nil {
		v.bad("cluster", "this node, %q, is not in the list; add it, or correct its name", c.Name)
	}
}

func (v *validation) join() {
	c := v.config
	for key, addresses := range map[string][]string{"join": c.Join, "replace": c.Replace} {
		for _, address := range addresses {
			if err := checkDialAddress(address); err != nil {
				v.bad(key, "%q: %v", address, err)
			}
		}
	}
	if len(c.Join) > 0 && len(c.Replace) > 0 {
		v.bad("replace", "stands beside join; a node either joins as a new one or replaces that of its name")
	}
	if host, _, err := net.SplitHostPort(c.Advertise); c.joinOptions() != nil && err == nil {
		if host == "" || unspecified(host) {
			v.bad("advertise", "names no host; the others must learn where a node that joins is reached: set it to host:port")
		}
	}
	if c.Learner && c.joinOptions() == nil {
		v.bad("learner", "has a meaning only with join or replace")
	}
}

// joinOptions returns how the node joins; nil if it does not.
func (c *Config) joinOptions() *raftnode.Join {
	switch {
	case len(c.Replace) > 0:
		return &raftnode.Join{Addresses: c.Replace, Replace: true, Learner: c.Learner}
	case len(c.Join) > 0:
		return &raftnode.Join{Addresses: c.Join, Learner: c.Learner}
	}
	return nil
}

func (v *validation) addresses() {
	c := v.config
	for _, a := range []struct{ key, address string }{{"listen", c.Listen}, {"http_listen", c.HTTPListen}} {
		host, err := checkListenAddress(a.address)
		switch {
		case err != nil:
			v.bad(a.key, "%v", err)
		case !isLoopback(host) && !c.InsecureListen:
			v.bad(a.key, "is not a loopback address, and connections are not encrypted or authenticated: anyone who reaches it reads and writes all data; "+
				"listen on 127.0.0.1, or set insecure_listen (--insecure-listen) on a network you trust")
		}
	}
	if c.Listen == c.HTTPListen && !strings.HasSuffix(c.Listen, ":0") {
		v.bad("http_listen", "is the address of listen too; gRPC and HTTP need a port each")
	}
	// Taken over from listen, it is as good or bad as that.
	if err := checkAdvertise(c.Advertise); err != nil && c.Advertise != c.Listen {
		v.bad("advertise", "%v", err)
	}
	for _, f := range c.Cluster {
		if f.Node != c.Name || c.joinOptions() != nil {
			continue
		}
		if f.Address != c.Advertise {
			v.bad("advertise", "differs from this node's entry in cluster, %s, at which its peers look for it; make them equal", f.Address)
		}
		break
	}
}

func (v *validation) timing() {
	c := v.config
	if c.TickInterval < time.Millisecond || c.TickInterval > 10*time.Second {
		v.bad("tick_interval", "must be 1ms to 10s")
	}
	if c.HeartbeatTicks < 1 || c.HeartbeatTicks > 10_000 {
		v.bad("heartbeat_ticks", "must be 1 to 10000")
	}
	if c.ElectionTicks <= c.HeartbeatTicks || c.ElectionTicks > 100_000 {
		v.bad("election_ticks", "must be more than heartbeat_ticks (%d), at most 100000", c.HeartbeatTicks)
	}
	if c.ShutdownTimeout < 0 || c.ShutdownTimeout > time.Hour {
		v.bad("shutdown_timeout", "must be 1ms to 1h")
	}
}

func (v *validation) sizes() {
	c := v.config
	for _, s := range []struct {
		key       string
		size      Size
		low, high Size
	}{
		{"log_budget", c.LogBudget, 1 << 20, 1 << 40},
		// A batch of the log, with the largest command in it, lies in one segment.
		{"log_segment_bytes", c.LogSegmentBytes, 8 << 20, 1 << 30},
		// A command travels in one raft message of at most 8 MiB, with 1 MiB of
		// others before it.
		{"limit_key", c.LimitKey, 1, kv.MaxKeyBytes},
		{"limit_value", c.LimitValue, 1, 4 << 20},
		{"limit_txn", c.LimitTxn, 1, 4 << 20},
		{"memtable_bytes", c.MemtableBytes, 1 << 20, 64 << 30},
		{"max_inflight_bytes", c.MaxInflightBytes, 16 << 20, 1 << 30},
	} {
		if s.size < s.low || s.size > s.high {
			v.bad(s.key, "must be %v to %v", s.low, s.high)
		}
	}
	if c.CacheBytes != 0 && (c.CacheBytes < 1<<20 || c.CacheBytes > 1<<40) {
		v.bad("cache_bytes", "must be auto or 1MiB to 1TiB")
	}
	if c.JournalBytes != 0 && (c.JournalBytes < 64<<10 || c.JournalBytes > 1<<40) {
		v.bad("journal_bytes", "must be auto or 64KiB to 1TiB")
	}
	if c.SnapshotKeep < 1 || c.SnapshotKeep > 1000 {
		v.bad("snapshot_keep", "must be 1 to 1000")
	}
	if c.SnapshotKeepBytes == 0 {
		v.bad("snapshot_keep_bytes", "must be above 0, or off")
	}
	if c.SnapshotExpiry < time.Second || c.SnapshotExpiry > 365*24*time.Hour {
		v.bad("snapshot_expiry", "must be 1s to 8760h")
	}
	if c.SnapshotRate != 0 && (c.SnapshotRate < 64<<10 || c.SnapshotRate > 1<<40) {
		v.bad("snapshot_rate", "must be none or 64KiB to 1TiB, in bytes a second")
	}
	if c.MaxConnections < 4 || c.MaxConnections > 1_000_000 {
		v.bad("max_connections", "must be 4 to 1000000")
	}
	if c.MaxStreams < 4 || c.MaxStreams > 1_000_000 {
		v.bad("max_streams", "must be 4 to 1000000")
	}
}

func (v *validation) choices() {
	c := v.config
	switch c.Compression {
	case kv.CompressionNone, kv.CompressionFastest, kv.CompressionBalanced, kv.CompressionGood:
	default:
		v.bad("compression", "must be none, fastest, balanced or good")
	}
	switch c.SnapshotPacing {
	case pacingLatency, pacingOff:
	default:
		v.bad("snapshot_pacing", "must be latency or off")
	}
	if c.SnapshotDelta != deltaOn && c.SnapshotDelta != deltaOff {
		v.bad("snapshot_delta", "must be on or off")
	}
	switch c.LogLevel {
	case "debug", "info", "warn", "error":
	default:
		v.bad("log_level", "must be debug, info, warn or error")
	}
	switch c.LogFormat {
	case "text", "json":
	default:
		v.bad("log_format", "must be text or json")
	}
}

// String returns the config as YAML that LoadConfig reads, every key with its
// value.
func (c Config) String() string {
	mapping := &yaml.Node{Kind: yaml.MappingNode}
	for _, k := range Keys() {
		key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: k.Name}
		value := &yaml.Node{Kind: yaml.ScalarNode, Tag: k.tag, Value: k.get(&c)}
		if k.Name == "cluster" {
			value = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
			for _, f := range c.Cluster {
				value.Content = append(value.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: f.Node + "=" + f.Address})
			}
		}
		mapping.Content = append(mapping.Content, key, value)
	}
	text, err := yaml.Marshal(mapping)
	if err != nil { // a tree of scalars always encodes
		return fmt.Sprintf("# the config does not encode: %v\n", err)
	}
	return string(text)
}

// validNodeName tells whether raftnode takes a name.
func validNodeName(name string) bool {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
	return name != "" && len(name) <= 64 && strings.Trim(name, allowed) == ""
}

// checkListenAddress returns the host of an address to listen on.
func checkListenAddress(address string) (host string, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("must be host:port, such as 127.0.0.1:7601")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > math.MaxUint16 {
		return "", fmt.Errorf("must have a port of 0 to 65535, as in 127.0.0.1:7601")
	}
	return host, nil
}

// checkDialAddress checks an address that others connect to.
func checkDialAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return fmt.Errorf("%q must be host:port, such as 10.0.0.1:7601", address)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > math.MaxUint16 {
		return fmt.Errorf("%q must have a port of 1 to 65535", address)
	}
	return nil
}

// checkAdvertise checks the address told to others; one taken over from listen
// may still have port 0.
func checkAdvertise(address string) error {
	if host, err := checkListenAddress(address); err != nil || host == "" {
		return fmt.Errorf("must be host:port at which other nodes and clients reach this node")
	}
	return nil
}

// isLoopback tells whether only this machine reaches a host. A name other than
// localhost is not looked up: its answer may change.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}

// LogValue logs the config as one group of all keys.
func (c Config) LogValue() slog.Value {
	var attrs []slog.Attr
	for _, k := range Keys() {
		attrs = append(attrs, slog.String(k.Name, k.get(&c)))
	}
	return slog.GroupValue(attrs...)
}

// NewLogger makes the logger that the config asks for, writing to w.
func (c *Config) NewLogger(w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo // Validate has the word; the logger may be needed to tell
	}
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
