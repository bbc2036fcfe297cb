package server

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/streamraft/streamraft/raftnode"
)

// update rewrites golden files: go test ./server -update.
func updateWanted() bool { return flag.Lookup("update").Value.String() == "true" }

var _ = flag.Bool("update", false, "rewrite golden files and the tables of docs/")

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if updateWanted() {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (run with -update to accept):\n%s", path, diff)
	}
}

func TestConfigGolden(t *testing.T) {
	c, err := LoadConfig("testdata/node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	golden(t, "effective.yaml", c.String())
	if c.Advertise != "10.0.0.1:7601" || c.TickInterval != 50*time.Millisecond || c.DiskReserve >= 0 || c.CacheBytes != 512<<20 || len(c.Cluster) != 3 {
		t.Errorf("loaded %+v", c)
	}
	// What is printed can be read, and says the same.
	again, problems := decodeConfig([]byte(c.String()))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if diff := cmp.Diff(c, again, cmpopts.IgnoreUnexported(Config{})); diff != "" {
		t.Error(diff)
	}
}

// Every problem of a file is told at once, with its line.
func TestConfigProblemsGolden(t *testing.T) {
	c, err := LoadConfig("testdata/bad.yaml")
	var bad *ConfigError
	if !errors.As(err, &bad) || !errors.Is(err, ErrConfig) {
		t.Fatalf("got %v", err)
	}
	c.EnsureDefaults()
	var more *ConfigError
	if err := c.Validate(); !errors.As(err, &more) {
		t.Fatalf("got %v", err)
	}
	golden(t, "problems.txt", bad.Error()+"\n"+more.Error()+"\n")
}

func TestConfigValidate(t *testing.T) {
	valid := Config{Name: "n1", DataDir: "d"}
	valid.EnsureDefaults()
	if err := valid.Validate(); err != nil {
		t.Fatalf("the defaults are refused: %v", err)
	}
	for _, c := range []struct {
		change func(*Config)
		key    string
		says   string
	}{
		{func(c *Config) { c.Name = "" }, "name", "missing"},
		{func(c *Config) { c.Name = "a b" }, "name", "A-Z a-z 0-9"},
		{func(c *Config) { c.DataDir = "" }, "data_dir", "missing"},
		{func(c *Config) { c.Listen = "10.0.0.1:7601" }, "listen", "insecure_listen"},
		{func(c *Config) { c.Listen = ":7601" }, "listen", "not a loopback"},
		{func(c *Config) { c.Listen = "example.org:7601" }, "listen", "not a loopback"},
		{func(c *Config) { c.Listen = "127.0.0.1:99999" }, "listen", "0 to 65535"},
		{func(c *Config) { c.HTTPListen = "0.0.0.0:7602" }, "http_listen", "insecure_listen"},
		{func(c *Config) { c.HTTPListen = c.Listen }, "http_listen", "a port each"},
		{func(c *Config) { c.Advertise = "x" }, "advertise", "host:port"},
		{func(c *Config) { c.Cluster = []raftnode.Founder{{Node: "n1", Address: "h:1"}} }, "advertise", "differs"},
		{func(c *Config) { c.Cluster = []raftnode.Founder{{Node: "n2", Address: "h:1"}} }, "cluster", "not in the list"},
		{func(c *Config) {
			c.Cluster = []raftnode.Founder{{Node: "n1", Address: c.Advertise}, {Node: "n1", Address: "h:1"}}
		}, "cluster", "twice"},
		{func(c *Config) {
			c.Cluster = []raftnode.Founder{{Node: "n1", Address: c.Advertise}, {Node: "n2", Address: c.Advertise}}
		}, "cluster", "twice"},
		{func(c *Config) {
			c.Cluster = []raftnode.Founder{{Node: "n1", Address: c.Advertise}, {Node: "n2", Address: "h:0"}}
		}, "cluster", "1 to 65535"},
		{func(c *Config) { c.ElectionTicks = c.HeartbeatTicks }, "election_ticks", "more than heartbeat_ticks"},
		{func(c *Config) { c.TickInterval = time.Microsecond }, "tick_interval", "1ms"},
		{func(c *Config) { c.LogSegmentBytes = 1 << 20 }, "log_segment_bytes", "8MiB to 1GiB"},
		{func(c *Config) { c.LimitTxn = 5 << 20 }, "limit_txn", "4MiB"},
		{func(c *Config) { c.CacheBytes = 1 }, "cache_bytes", "auto"},
		{func(c *Config) { c.Compression = "zip" }, "compression", "balanced"},
		{func(c *Config) { c.SnapshotPacing = "fast" }, "snapshot_pacing", "latency or off"},
		{func(c *Config) { c.SnapshotDelta = "never" }, "snapshot_delta", "on or off"},
		{func(c *Config) { c.SnapshotRate = 1000 }, "snapshot_rate", "none or 64KiB to 1TiB"},
		{func(c *Config) { c.LogFormat = "xml" }, "log_format", "json"},
		{func(c *Config) { c.MaxStreams = 1 }, "max_streams", "4 to"},
		{func(c *Config) { c.ShutdownTimeout = -1 }, "shutdown_timeout", "1h"},
	} {
		config := valid
		c.change(&config)
		var bad *ConfigError
		if err := config.Validate(); !errors.As(err, &bad) || len(bad.Problems) != 1 || bad.Problems[0].Key != c.key || !strings.Contains(bad.Problems[0].Reason, c.says) {
			t.Errorf("%s: got %v, want one problem that says %q", c.key, err, c.says)
		}
	}
	insecure := valid
	insecure.Listen, insecure.HTTPListen, insecure.InsecureListen = "0.0.0.0:7601", ":7602", true
	if err := insecure.Validate(); err != nil {
		t.Errorf("insecure_listen does not permit it: %v", err)
	}
}

func TestConfigSet(t *testing.T) {
	var c Config
	if err := c.Set("no_such", "1", "flag --no-such"); err == nil {
		t.Error("an unknown key was set")
	}
	before := c
	if err := c.Set("name", "n1", "flag --name"); err != nil {
		t.Fatal(err)
	}
	if before.sources != nil {
		t.Error("Set changed a copy")
	}
	for text, want := range map[string]Size{"none": 0, "50MiB": 50 << 20, "65536": 64 << 10} {
		if err := c.Set("snapshot_rate", text, "flag --snapshot-rate"); err != nil || c.SnapshotRate != want {
			t.Errorf("a rate of %s is %v, %v", text, c.SnapshotRate, err)
		}
	}
	for text, says := range map[string]string{"0": "above 0, or none", "fast": "not a size", "-1": "not a size", "off": "not a size"} {
		if err := c.Set("snapshot_rate", text, "flag --snapshot-rate"); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "flag --snapshot-rate") {
			t.Errorf("a rate of %s: %v", text, err)
		}
	}
	if err := c.Set("heartbeat_ticks", "0", "flag --heartbeat-ticks"); err == nil || !strings.Contains(err.Error(), "flag --heartbeat-ticks") {
		t.Errorf("got %v", err)
	}
}

func TestLoadConfigErrors(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, says string }{
		"empty":    {"# nothing\n", ""},
		"list":     {"- a\n", "must be a mapping"},
		"broken":   {"name: [\n", "line 1"},
		"large":    {strings.Repeat("#", maxConfigBytes+1), "larger than 1MiB"},
		"mapping":  {"cluster: {n1: x}\n", "must be a list"},
		"anchors":  {"name: &a x\ndata_dir: *a\n", "single value"},
		"twodocs":  {"name: a\n---\nname: b\n", ""},
		"nesting":  {"cluster: [[a]]\n", "name=host:port"},
		"intended": {"name:\n  n1\n", ""},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := LoadConfig(path)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path)) {
			t.Errorf("%s: got %v, want %q", name, err, c.says)
		}
	}
	if _, err := LoadConfig(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "1": 1, "1B": 1, "4 KiB": 4096, "256MiB": 256 << 20, "1gib": 1 << 30, "2TiB": 2 << 40} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "KiB", "-1", "1.5MiB", "1MB", "9999999999TiB", "0x10", "1 2"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %d", text, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		size := Size(rapid.Int64Min(0).Draw(t, "size"))
		if again, err := ParseSize(size.String()); err != nil || again != size {
			t.Fatalf("%d is written %q and read as %d, %v", int64(size), size, int64(again), err)
		}
	})
}

// Every field of Config is a key, so that nothing can be set in code only.
func TestEveryFieldIsAKey(t *testing.T) {
	var c Config
	fields := make(map[uintptr]string)
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).IsExported() {
			fields[v.Field(i).Addr().Pointer()] = v.Type().Field(i).Name
		}
	}
	for _, k := range Keys() {
		delete(fields, reflect.ValueOf(k.field(&c)).Pointer())
	}
	if len(fields) > 0 {
		t.Errorf("fields without a key: %v", fields)
	}
}

func FuzzDecodeConfig(f *testing.F) {
	for _, name := range []string{"testdata/node.yaml", "testdata/bad.yaml"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, problems := decodeConfig(data)
		c.EnsureDefaults()
		if len(problems) > 0 || c.Validate() != nil {
			return
		}
		again, problems := decodeConfig([]byte(c.String()))
		if len(problems) > 0 || again.String() != c.String() {
			t.Fatalf("printed and read again: %v\n%s\n%s", problems, c, again)
		}
	})
}

func TestLogValueHasEveryKey(t *testing.T) {
	c := Config{Name: "n1"}
	c.EnsureDefaults()
	var out bytes.Buffer
	c.NewLogger(&out).Info("x", "config", c)
	for _, k := range Keys() {
		if !strings.Contains(out.String(), "config."+k.Name+"=") {
			t.Errorf("%s is not logged: %s", k.Name, out.String())
		}
	}
}
