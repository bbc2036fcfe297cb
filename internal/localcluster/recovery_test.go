//go:build unix

package localcluster

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// value returns what stands behind a flag; empty where the flag is missing.
func value(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

func TestReplaceAndJoin(t *testing.T) {
	c := start(t, Options{Nodes: 3, Spare: 1, Advertise: func(node, listens string) (string, error) {
		return node + ".example:1", nil
	}})
	if list := c.FoundingList(); list != "n1=n1.example:1,n2=n2.example:1,n3=n3.example:1" {
		t.Errorf("the founders are %s", list)
	}
	if c.Running("n4") {
		t.Error("a spare node runs before it joins")
	}
	if err := c.Join("n2"); err == nil {
		t.Error("a founder joins")
	}
	if err := c.Replace("n2"); err == nil {
		t.Error("a running node is replaced")
	}
	file := filepath.Join(c.DataDir("n2"), "state")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill("n2"); err != nil {
		t.Fatal(err)
	}
	if err := c.Replace("n2"); err != nil {
		t.Fatal(err)
	}
	if err := c.Join("n4"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the lost disk: %v", err)
	}
	for name, want := range map[string][2]string{
		"n2": {"--replace", "n1.example:1,n3.example:1"}, "n4": {"--join", "n1.example:1,n2.example:1,n3.example:1"},
	} {
		args := c.Args(name)
		if value(args, want[0]) != want[1] || value(args, "--cluster") != "" || value(args, "--advertise") != name+".example:1" {
			t.Errorf("%s is started with %s", name, strings.Join(args, " "))
		}
	}
}
