package proctest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/localcluster"
)

// refused wants a node that was launched to end with exit code 6 and to say what
// to run.
func refused(t *testing.T, c *localcluster.Cluster, name string) {
	t.Helper()
	code, err := c.WaitExit(within(t, 20*time.Second), name)
	if err != nil {
		t.Fatal(err)
	}
	text := c.LogTail(name)
	if want := "streamraft node --name " + name; code != 6 || !strings.Contains(text, want) || !strings.Contains(text, "--replace") {
		t.Errorf("%s: exit code %d, want 6 and %q with --replace in:%s", name, code, want, text)
	}
}

func launch(t *testing.T, c *localcluster.Cluster, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := c.Launch(name); err != nil {
			t.Fatal(err)
		}
	}
}

// clusterID waits until a node is founded and returns its cluster's id.
func clusterID(t *testing.T, c *localcluster.Cluster, name string) (id string) {
	t.Helper()
	await(t, name+" is founded", 20*time.Second, func() error {
		status, err := c.Status(t.Context(), name)
		if err == nil && status.GetClusterId() == "" {
			err = errors.New("no cluster id")
		}
		id = status.GetClusterId()
		return err
	})
	return id
}

// Two wiped nodes are a majority: if they were let in, or founded a cluster of
// their own, acknowledged writes would be gone.
func TestFoundingWipe(t *testing.T) {
	t.Parallel()
	c, connection := startCluster(t, localcluster.Options{})
	if _, err := connection.Put(t.Context(), []byte("key"), []byte("value")); err != nil {
		t.Fatal(err)
	}
	id := clusterID(t, c, "n1")
	for _, name := range []string{"n2", "n3"} {
		if err := errors.Join(c.Kill(name), c.Wipe(name)); err != nil {
			t.Fatal(err)
		}
	}
	launch(t, c, "n2", "n3")
	refused(t, c, "n2")
	refused(t, c, "n3")

	// While the survivor is down the two can know nothing and must wait.
	if err := errors.Join(c.Kill("n1"), c.Wipe("n2"), c.Wipe("n3")); err != nil {
		t.Fatal(err)
	}
	launch(t, c, "n2", "n3")
	for _, name := range []string{"n2", "n3"} {
		await(t, name+" waits for n1", 20*time.Second, func() error {
			status, err := c.Status(t.Context(), name)
			if err == nil && !status.GetFounding() {
				err = errors.New("it is not founding")
			}
			return err
		})
	}
	launch(t, c, "n1")
	refused(t, c, "n2")
	refused(t, c, "n3")
	if got := clusterID(t, c, "n1"); got != id {
		t.Errorf("the cluster was %s and is %s", id, got)
	}
	record, err := connection.Get(t.Context(), []byte("key"), client.ReadOptions{Stale: true, Endpoint: c.Endpoint("n1")})
	if err != nil || string(record.Value) != "value" {
		t.Errorf("the survivor has %q, %v", record.Value, err)
	}
}

// The same command may be given again at any time, also where the first one was
// killed somewhere on its way.
func TestFoundingTwice(t *testing.T) {
	t.Parallel()
	c := newCluster(t, localcluster.Options{})
	for round := range rounds() {
		launch(t, c, c.Names()...)
		// In the first rounds the kill comes earlier than in the last.
		await(t, "n3 answers", 20*time.Second, func() error {
			_, err := c.Status(t.Context(), "n3")
			if round == 0 && c.Running("n3") {
				return nil
			}
			return err
		})
		c.KillAll()
	}
	if err := c.StartAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, name := range c.Names() {
		ids[clusterID(t, c, name)] = true
	}
	if len(ids) != 1 {
		t.Fatalf("clusters %v", ids)
	}
	connection := connect(t, c)
	if _, err := connection.Put(t.Context(), []byte("key"), []byte("value")); err != nil {
		t.Fatal(err)
	}
	c.KillAll()
	if err := c.StartAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if record, err := connection.Get(t.Context(), []byte("key"), client.ReadOptions{}); err != nil || string(record.Value) != "value" {
		t.Fatalf("got %q, %v", record.Value, err)
	}
	if id := clusterID(t, c, "n1"); !ids[id] {
		t.Fatalf("the cluster is now %s", id)
	}
}
