package proctest

import (
	"testing"

	"github.com/streamraft/streamraft/internal/localcluster"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// TestCutTransfer cuts the connection of a transfer several times on its way, and
// wants no byte of the image to travel twice but what was under way.
func TestCutTransfer(t *testing.T) {
	t.Parallel()
	relays := map[string]*relay{}
	c, connection := startCluster(t, localcluster.Options{
		ExtraArgs: transferring(),
		Advertise: func(node, listens string) (address string, err error) {
			relays[node], address, err = startRelay(t, listens)
			return address, err
		},
	})
	data := &bulk{prefix: "bulk"}
	data.write(t, connection, 0, bulkRecords)
	lost := follower(t, c)
	if err := c.Kill(lost); err != nil {
		t.Fatal(err)
	}
	// From here on nobody writes, so what is much is the image.
	for _, r := range relays {
		r.forget()
	}
	if err := c.Replace(lost); err != nil {
		t.Fatal(err)
	}
	cuts := 0
	for i := range rounds() {
		// Each in its own part of the transfer, and not in its last moments.
		part := 0.9 / float64(rounds())
		if !moment(t, c, lost, part*float64(i), part*float64(i+1)) {
			break
		}
		cuts += relays[sourceOf(t, c, lost)].cutBulky()
	}
	if cuts == 0 {
		t.Error("nothing was cut: this proves nothing")
	}
	whole(t, c, lost)
	data.check(t, connection)
	got := received(t, c, lost)
	if got.GetKind() != snapshotv1.Kind_KIND_FILES || got.GetRestarts() != 0 {
		t.Errorf("it got %v, %d times from the beginning: %s", got.GetKind(), got.GetRestarts(), got.GetLastRestart())
	}
	var sent uint64
	for _, r := range relays {
		sent += r.bulky()
	}
	t.Logf("%d cuts; an image of %d bytes: %d received in %d attempts, %d sent over the relays", cuts, got.GetBytesTotal(), got.GetWireBytes(), got.GetAttempt(), sent)
	if got.GetWireBytes() > got.GetBytesTotal()*102/100 {
		t.Errorf("%d bytes were received for an image of %d", got.GetWireBytes(), got.GetBytesTotal())
	}
	if got.GetAttempt() < 2 {
		t.Error("the transfer did not notice that it was cut")
	}
}
