package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/streamraft/streamraft/client/clienttest"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/server"
)

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"streamraft": main})
}

// leakChecked fails a run that leaves goroutines behind.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// TestScripts runs the command line against a scripted cluster of three nodes,
// which STREAMRAFT_ENDPOINTS names. Commands beside testscript's own:
//
//	exits CODE COMMAND...    runs a command and wants this exit code
//	cluster leader N|none    makes node N (0, 1, 2) the leader
//	cluster stop N           stops a node
//	cluster set KEY VALUE    writes a record
//	cluster has KEY VALUE    wants a record
//	cluster lacks KEY        wants no record
//	cluster answer REASON    answers all writes with a failure; "ok": none
//	node ...                 runs a real node; see scriptNodes
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			cluster, err := clienttest.New(3)
			if err != nil {
				return err
			}
			env.Defer(cluster.Close)
			env.Values["cluster"] = cluster
			nodes := &scriptNodes{listeners: map[string]net.Listener{}, running: map[string]*server.Server{}}
			env.Defer(nodes.close)
			env.Values["nodes"] = nodes
			env.Setenv("STREAMRAFT_ENDPOINTS", strings.Join(cluster.Addresses(), ","))
			env.Setenv("N0", cluster.Addresses()[0])
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": scriptExits, "cluster": scriptCluster, "node": scriptNode},
	})
}

func scriptExits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func scriptCluster(ts *testscript.TestScript, _ bool, args []string) {
	cluster := ts.Value("cluster").(*clienttest.Cluster)
	number := func() int {
		if args[1] == "none" {
			return clienttest.NoLeader
		}
		n, err := strconv.Atoi(args[1])
		ts.Check(err)
		return n
	}
	switch args[0] {
	case "leader":
		cluster.SetLeader(number())
	case "stop":
		cluster.Stop(number())
	case "set":
		cluster.Set(args[1], args[2])
	case "has":
		if value, ok := cluster.Value(args[1]); !ok || value != args[2] {
			ts.Fatalf("%s is %q, want %q", args[1], value, args[2])
		}
	case "lacks":
		if value, ok := cluster.Value(args[1]); ok {
			ts.Fatalf("%s is there: %q", args[1], value)
		}
	case "answer":
		cluster.Script(nil)
		if args[1] == "ok" {
			return
		}
		reason, ok := kvv1.Reason_value["REASON_"+args[1]]
		if !ok {
			ts.Fatalf("there is no reason %s", args[1])
		}
		cluster.Script(func(int, *kvv1.Write) clienttest.Action {
			return clienttest.Action{SkipApply: true, Failure: &kvv1.Failure{Reason: kvv1.Reason(reason), Message: "scripted"}}
		})
	default:
		ts.Fatalf("unknown: cluster %v", args)
	}
}
