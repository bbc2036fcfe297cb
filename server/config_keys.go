package server

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
)

// Key is one key of the config, and one flag of `streamraft node`.
type Key struct {
	// Name in the file.
	Name string
	// Default as text; empty where there is none.
	Default string
	// Help says what the key does, in one line.
	Help string

	tag   string
	field func(*Config) any // pointer to the field
	off   string            // a word for -1 ("off") or 0 ("auto", "none")
}

// Flag returns the name of the key as a flag: data_dir is data-dir.
func (k Key) Flag() string { return strings.ReplaceAll(k.Name, "_", "-") }

// IsBool tells that the flag needs no value to be true.
func (k Key) IsBool() bool { return k.tag == "!!bool" }

// Keys returns all keys in the order they are shown.
func Keys() []Key {
	text := func(name, def, help string, field func(*Config) any) Key {
		return Key{Name: name, Default: def, Help: help, tag: "!!str", field: field}
	}
	number := func(name, def, help string, field func(*Config) any) Key {
		return Key{Name: name, Default: def, Help: help, tag: "!!int", field: field}
	}
	size := func(name, def, help, off string, field func(*Config) any) Key {
		return Key{Name: name, Default: def, Help: help, tag: "!!str", field: field, off: off}
	}
	return []Key{
		text("name", "", "name of this node, unique in the cluster", func(c *Config) any { return &c.Name }),
		text("data_dir", "", "directory of this node; created if missing", func(c *Config) any { return &c.DataDir }),
		text("listen", "127.0.0.1:7601", "host:port for peers and clients (gRPC)", func(c *Config) any { return &c.Listen }),
		text("advertise", "", "host:port at which others reach this node; default: its entry in cluster, else listen", func(c *Config) any { return &c.Advertise }),
		text("http_listen", "127.0.0.1:7602", "host:port for metrics, health and profiles (HTTP)", func(c *Config) any { return &c.HTTPListen }),
		text("cluster", "", "founding list, the same on each node: n1=host:port,n2=host:port,...", func(c *Config) any { return &c.Cluster }),
		text("join", "", "join the cluster of these members, host:port,..., with an empty directory", func(c *Config) any { return &c.Join }),
		text("replace", "", "take the place of the node of this name, with an empty directory; members as for join", func(c *Config) any { return &c.Replace }),
		{Name: "learner", Default: "false", Help: "with join or replace: stay a learner until promoted by hand", tag: "!!bool", field: func(c *Config) any { return &c.Learner }},
		{Name: "insecure_listen", Default: "false", Help: "permit addresses that are not loopback, without encryption", tag: "!!bool", field: func(c *Config) any { return &c.InsecureListen }},
		text("compression", "balanced", "compression at rest: none, fastest, balanced or good", func(c *Config) any { return &c.Compression }),
		text("tick_interval", "25ms", "raft's unit of time", func(c *Config) any { return &c.TickInterval }),
		number("heartbeat_ticks", "4", "ticks between heartbeats of a leader", func(c *Config) any { return &c.HeartbeatTicks }),
		number("election_ticks", "24", "ticks without a leader before an election, randomised up to twice that", func(c *Config) any { return &c.ElectionTicks }),
		size("log_budget", "64MiB", "log a group keeps before its state is flushed so that the log can be cut", "", func(c *Config) any { return &c.LogBudget }),
		size("log_segment_bytes", "64MiB", "size of a log segment", "", func(c *Config) any { return &c.LogSegmentBytes }),
		size("disk_reserve", "256MiB", "free space below which writes are refused; off: space is not watched", "off", func(c *Config) any { return &c.DiskReserve }),
		size("limit_key", "4KiB", "largest key, at most 32KiB", "", func(c *Config) any { return &c.LimitKey }),
		size("limit_value", "1MiB", "largest value, at most 4MiB", "", func(c *Config) any { return &c.LimitValue }),
		size("limit_txn", "2MiB", "largest transaction or batch, at most 4MiB", "", func(c *Config) any { return &c.LimitTxn }),
		size("cache_bytes", "auto", "block cache; auto: a quarter of the memory, at most 1GiB", "auto", func(c *Config) any { return &c.CacheBytes }),
		size("memtable_bytes", "256MiB", "unwritten state of all groups in memory", "", func(c *Config) any { return &c.MemtableBytes }),
		size("journal_bytes", "auto", "change journal of a group; auto: 5 % of its state", "auto", func(c *Config) any { return &c.JournalBytes }),
		number("max_connections", "4096", "connections that are accepted on each port; more wait", func(c *Config) any { return &c.MaxConnections }),
		number("max_streams", "1024", "calls and streams at a time on one connection; more wait", func(c *Config) any { return &c.MaxStreams }),
		size("max_inflight_bytes", "48MiB", "writes of all clients that wait for their outcome; more wait", "", func(c *Config) any { return &c.MaxInflightBytes }),
		text("snapshot_pacing", pacingLatency, "latency: images that are sent give way to clients; off: full speed", func(c *Config) any { return &c.SnapshotPacing }),
		size("snapshot_rate", "none", "most bytes a second that all images sent by this node take together, such as 50MiB", "none", func(c *Config) any { return &c.SnapshotRate }),
		text("snapshot_delta", deltaOn, "on: what changed is enough for a state that is behind; off: this node takes full images only", func(c *Config) any { return &c.SnapshotDelta }),
		number("snapshot_keep", "8", "images that a group keeps at most; the oldest that no transfer uses go first", func(c *Config) any { return &c.SnapshotKeep }),
		size("snapshot_keep_bytes", "off", "bytes of the images that a group keeps, beside the newest; off: no bound", "off", func(c *Config) any { return &c.SnapshotKeepBytes }),
		text("snapshot_expiry", "10m", "time that an image is kept after its last use", func(c *Config) any { return &c.SnapshotExpiry }),
		text("log_level", "info", "debug, info, warn or error", func(c *Config) any { return &c.LogLevel }),
		text("log_format", "text", "text or json", func(c *Config) any { return &c.LogFormat }),
		text("shutdown_timeout", "5s", "longest graceful stop", func(c *Config) any { return &c.ShutdownTimeout }),
	}
}

func findKey(name string) (Key, bool) {
	for _, k := range Keys() {
		if k.Name == name {
			return k, true
		}
	}
	return Key{}, false
}

// isZero tells whether the field was left at its default.
func (k Key) isZero(c *Config) bool { return reflect.ValueOf(k.field(c)).Elem().IsZero() }

// get returns the value as text that set reads.
func (k Key) get(c *Config) string {
	switch f := k.field(c).(type) {
	case *string:
		return *f
	case *kv.Compression:
		return string(*f)
	case *bool:
		return strconv.FormatBool(*f)
	case *int:
		return strconv.Itoa(*f)
	case *time.Duration:
		return f.String()
	case *Size:
		if k.off == "off" && *f < 0 || k.off != "" && k.off != "off" && *f == 0 {
			return k.off
		}
		return f.String()
	case *[]string:
		return strings.Join(*f, ",")
	case *[]raftnode.Founder:
		parts := make([]string, len(*f))
		for i, founder := range *f {
			parts[i] = founder.Node + "=" + founder.Address
		}
		return strings.Join(parts, ",")
	}
	return ""
}

// set reads text into the field. The error says what is allowed.
func (k Key) set(c *Config, text string) error {
	switch f := k.field(c).(type) {
	case *string:
		*f = text
	case *kv.Compression:
		*f = kv.Compression(text)
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("must be true or false")
		}
		*f = b
	case *int:
		n, err := strconv.Atoi(text)
		// Zero would be taken for the default.
		if err != nil || n == 0 {
			return fmt.Errorf("must be a whole number above 0")
		}
		*f = n
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil || d == 0 {
			return fmt.Errorf("must be a duration above 0 with a unit, such as 25ms or 5s")
		}
		*f = d
	case *Size:
		return k.setSize(f, text)
	case *[]string:
		*f = nil
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				*f = append(*f, part)
			}
		}
	case *[]raftnode.Founder:
		founders, err := parseFounders(text)
		if err != nil {
			return err
		}
		*f = founders
	}
	return nil
}

func (k Key) setSize(f *Size, text string) error {
	if k.off != "" && text == k.off {
		if *f = 0; k.off == "off" {
			*f = sizeOff
		}
		return nil
	}
	size, err := ParseSize(text)
	if err != nil {
		return err
	}
	if size == 0 {
		if k.off != "" {
			return fmt.Errorf("must be above 0, or %s", k.off)
		}
		return fmt.Errorf("must be above 0")
	}
	*f = size
	return nil
}

// parseFounders reads n1=host:port,n2=host:port,...
func parseFounders(text string) ([]raftnode.Founder, error) {
	var founders []raftnode.Founder
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		node, address, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("%q must be name=host:port; separate nodes by commas or write a list", part)
		}
		founders = append(founders, raftnode.Founder{Node: strings.TrimSpace(node), Address: strings.TrimSpace(address)})
	}
	return founders, nil
}
