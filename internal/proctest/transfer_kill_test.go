package proctest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/streamraft/streamraft/internal/localcluster"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// moment waits for a random moment of the transfer to a node: a share of its
// bytes between two bounds, and a little more. It tells whether the transfer was
// still under way.
func moment(t *testing.T, c *localcluster.Cluster, receiver string, from, to float64) (under bool) {
	t.Helper()
	share, more := from+(to-from)*rand.Float64(), rand.N(60*time.Millisecond)
	var seen *adminv1.Transfer
	await(t, fmt.Sprintf("%s has %.0f %% of the image", receiver, 100*share), 60*time.Second, func() error {
		if !c.Running(receiver) {
			t.Fatalf("%s ended:%s", receiver, c.LogTail(receiver))
		}
		for _, x := range transfersOf(t, c, receiver, adminv1.TransferRole_TRANSFER_ROLE_RECEIVER) {
			seen = x
			if x.GetEndedUnixMs() != 0 || x.GetBytesTotal() > 0 && float64(x.GetBytesDone()) >= share*float64(x.GetBytesTotal()) {
				return nil
			}
		}
		return errors.New("not yet")
	})
	reached := time.Now()
	await(t, "a little more", 10*time.Second, func() error {
		if time.Since(reached) < more {
			return errors.New("not yet")
		}
		return nil
	})
	under = seen.GetEndedUnixMs() == 0
	t.Logf("at %.0f %% + %v: %v, %d of %d bytes", 100*share, more.Round(time.Millisecond), seen.GetPhase(), seen.GetBytesDone(), seen.GetBytesTotal())
	return under
}

// sourceOf returns the node that sends an image to a receiver, or sent it last.
func sourceOf(t *testing.T, c *localcluster.Cluster, receiver string) (source string) {
	t.Helper()
	await(t, "a source of the image for "+receiver, 30*time.Second, func() error {
		for _, x := range transfersOf(t, c, receiver, adminv1.TransferRole_TRANSFER_ROLE_RECEIVER) {
			if source = x.GetPeer(); source != "" {
				return nil
			}
		}
		return errors.New("none yet")
	})
	return source
}

// killDuring replaces a lost disk again and again, kills one end of each
// transfer at a random moment, starts it again, and wants everything to be there
// in the end and nothing else.
func killDuring(t *testing.T, victim func(t *testing.T, c *localcluster.Cluster, receiver string) string) {
	c, connection := startCluster(t, localcluster.Options{ExtraArgs: transferring()})
	data := &bulk{prefix: "bulk"}
	data.write(t, connection, 0, bulkRecords)
	l := startPacedLoad(t, connection, "load", 100, 5*time.Millisecond)
	struck, resumed := 0, 0
	for range rounds() {
		lost := follower(t, c)
		if err := c.Kill(lost); err != nil {
			t.Fatal(err)
		}
		if err := c.Replace(lost); err != nil {
			t.Fatal(err)
		}
		under := moment(t, c, lost, 0, 1)
		killed := victim(t, c, lost)
		if err := c.Kill(killed); err != nil {
			t.Fatal(err)
		}
		launch(t, c, killed)
		whole(t, c, lost)
		if under {
			struck++
			if got := received(t, c, lost); got.GetOutcome() == snapshotv1.Outcome_OUTCOME_INSTALLED && got.GetRestarts() == 0 {
				resumed++
			}
		}
	}
	l.finish()
	l.check(t)
	data.check(t, connection)
	sameDigests(t, c)
	imagesGo(t, c)
	t.Logf("%d of %d kills struck a transfer under way, %d of those lost nothing that was staged", struck, rounds(), resumed)
	if struck == 0 {
		t.Error("no kill struck a transfer under way: this proves nothing")
	}
}

func TestReceiverKill(t *testing.T) {
	killDuring(t, func(_ *testing.T, _ *localcluster.Cluster, receiver string) string { return receiver })
}

func TestSourceKill(t *testing.T) { killDuring(t, sourceOf) }
