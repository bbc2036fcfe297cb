package server

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// docTable checks that a document holds a table between two marks, and writes
// it there with -update.
func docTable(t *testing.T, path, name, table string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->\n"
	before, rest, ok := strings.Cut(string(data), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks %q and %q", path, begin, end)
	}
	if old == table {
		return
	}
	if !updateWanted() {
		t.Errorf("the table %s in %s is not what the code says; run go test ./server -update", name, path)
		return
	}
	if err := os.WriteFile(path, []byte(before+begin+table+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestConfigTableInDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("| key | default | meaning |\n|---|---|---|\n")
	for _, k := range Keys() {
		def := "`" + k.Default + "`"
		if k.Default == "" {
			def = ""
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.Name, def, k.Help)
	}
	docTable(t, "../docs/operations.md", "config", b.String())
}

func TestMetricsTableInDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, f := range families() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, strings.Join(f.labels, ", "), f.help)
	}
	docTable(t, "../docs/metrics.md", "metrics", b.String())
}

// What a node exports is what families, and so docs/metrics.md, lists: names,
// types and labels, all of them and no other.
func TestExportedMetricsAreDocumented(t *testing.T) {
	registry := prometheus.NewRegistry()
	nodes := startCluster(t, 2, nil)
	ctx := testContext(t)
	leader, _ := leaderOf(t, nodes, 2)
	n := leader // only it has commits to tell of
	if _, err := leader.kv.Put(ctx, &kvv1.PutRequest{Key: []byte("k"), Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	stream := openStream(t, ctx, n)
	if err := stream.Send(&kvv1.WriteRequest{Writes: []*kvv1.Write{streamPut(1, "k", "v")}}); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := answers(stream); err != nil {
		t.Fatal(err)
	}
	if _, err := n.kv.Get(ctx, &kvv1.GetRequest{Key: []byte("k")}); err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]family)
	for _, f := range families() {
		if _, twice := documented[f.name]; twice {
			t.Errorf("%s is listed twice", f.name)
		}
		documented[f.name] = f
	}
	gathered, err := n.Server.options.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	exported := make(map[string]bool)
	for _, g := range gathered {
		exported[g.GetName()] = true
		f, ok := documented[g.GetName()]
		if !ok {
			t.Errorf("%s is exported and not documented", g.GetName())
			continue
		}
		if kind := strings.ToLower(g.GetType().String()); kind != f.kind {
			t.Errorf("%s is a %s, documented as %s", f.name, kind, f.kind)
		}
		var labels []string
		for _, l := range g.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		want := slices.Sorted(slices.Values(f.labels))
		if !slices.Equal(labels, want) {
			t.Errorf("%s has labels %v, documented are %v", f.name, labels, want)
		}
		if g.GetHelp() != f.help {
			t.Errorf("%s says %q, documented is %q", f.name, g.GetHelp(), f.help)
		}
	}
	for name := range documented {
		if !exported[name] {
			t.Errorf("%s is documented and not exported", name)
		}
	}
	// A registry holds one server, and is free again after it.
	for range 2 {
		m, err := newMetrics(&Server{}, registry)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newMetrics(&Server{}, registry); err == nil {
			t.Error("two servers share a registry")
		}
		m.unregister()
	}
}
