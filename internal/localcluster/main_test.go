package localcluster

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

// The test program plays two more parts: a node, when its first argument is
// "node", and a parent that starts a cluster and can be killed.
const parentDir = "STREAMRAFT_LOCALCLUSTER_PARENT"

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "node":
		os.Exit(playNode(os.Args[2:]))
	case os.Getenv(parentDir) != "":
		os.Exit(playParent(os.Getenv(parentDir)))
	}
	goleak.VerifyTestMain(m)
}

// playNode answers Status as a node of which n1 is the leader. With
// --portsTaken N the first N starts fail as if a port were taken.
func playNode(args []string) int {
	flags := flag.NewFlagSet("node", flag.ContinueOnError)
	name, dir := flags.String("name", "", ""), flags.String("data-dir", "", "")
	listen, _ := flags.String("listen", "", ""), flags.String("http-listen", "", "")
	for _, ignored := range []string{"cluster", "replace", "join", "advertise"} {
		_ = flags.String(ignored, "", "")
	}
	taken := flags.Int("ports-taken", 0, "")
	refuse := flags.Bool("refuse", false, "")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	count := filepath.Join(filepath.Dir(*dir), *name+".starts")
	starts, _ := os.ReadFile(count)
	if err := os.WriteFile(count, append(starts, '.'), 0o600); err != nil {
		return 1
	}
	if len(starts) < *taken {
		fmt.Printf("listen %s: %v\n", *listen, syscall.EADDRINUSE)
		return 1
	}
	if *refuse {
		fmt.Println("refused: another cluster")
		return 6
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	server := grpc.NewServer()
	adminv1.RegisterAdminServiceServer(server, &playedAdmin{name: *name})
	go func() { _ = server.Serve(listener) }()
	fmt.Printf("%s serves\n", *name)
	<-ctx.Done()
	return 7
}

type playedAdmin struct {
	adminv1.UnimplementedAdminServiceServer
	name string
}

func (a *playedAdmin) Status(context.Context, *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	var groups []*adminv1.GroupStatus
	for group := uint64(1); group <= 2; group++ {
		g := &adminv1.GroupStatus{
			Group: group, LeaderNode: "n1", Term: 2, CommitIndex: 10, AppliedIndex: 10, Role: adminv1.Role_ROLE_FOLLOWER,
		}
		// n3 believes that it leads, as a leader does that was cut off.
		if a.name == "n1" || a.name == "n3" {
			g.Role = adminv1.Role_ROLE_LEADER
		}
		if a.name == "n3" {
			g.Term = 1
		}
		groups = append(groups, g)
	}
	return &adminv1.StatusResponse{Node: a.name, Groups: groups}, nil
}

// playParent starts a cluster, prints the process ids of its nodes and waits to
// be killed.
func playParent(dir string) int {
	c, err := Start(context.Background(), Options{Dir: dir, Nodes: 2})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	var pids []string
	for _, name := range c.Names() {
		pids = append(pids, fmt.Sprint(c.PID(name)))
	}
	fmt.Println(strings.Join(pids, " "))
	select {}
}
