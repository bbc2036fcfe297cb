package bench

import (
	"testing"
	"time"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

func receivedAt(ms int64, image string, done uint64, stages ...*adminv1.TransferStage) *adminv1.Transfer {
	return &adminv1.Transfer{
		Transfer: []byte("t"), Role: adminv1.TransferRole_TRANSFER_ROLE_RECEIVER, Peer: "n2", Image: []byte(image), Kind: snapshotv1.Kind_KIND_FILES,
		BytesDone: done, BytesTotal: 1000, RawBytes: 4000, StartedUnixMs: ms, Stages: stages,
	}
}

func sentAt(ms int64, wire uint64, ended int64) *adminv1.Transfer {
	return &adminv1.Transfer{
		Transfer: []byte("t"), Role: adminv1.TransferRole_TRANSFER_ROLE_SOURCE, Peer: "n1",
		WireBytes: wire, StartedUnixMs: ms, EndedUnixMs: ended,
	}
}

func stage(name string, d time.Duration) *adminv1.TransferStage {
	return &adminv1.TransferStage{Stage: name, Nanoseconds: uint64(d)}
}

// A receiver that is killed and starts again tells of a new transfer, whose
// stages begin anew; what its first process told last counts too.
func TestTraceOfACutTransfer(t *testing.T) {
	trace := newTrace("n1")
	old := sentAt(500, 77, 600)
	trace.ignore("n2", old)
	started := time.UnixMilli(1000)

	if trace.percent() != 0 {
		t.Fatal("before anything is known")
	}
	trace.note("n2", old)
	trace.note("n1", receivedAt(1400, "", 0))
	trace.note("n2", sentAt(1450, 100, 0))
	trace.note("n1", receivedAt(1400, "a", 300, stage("send", 100*time.Millisecond)))
	trace.note("n1", receivedAt(1400, "a", 500, stage("queue", 10*time.Millisecond), stage("send", 200*time.Millisecond)))
	trace.note("n2", sentAt(1450, 520, 0))
	if got := trace.percent(); got != 50 {
		t.Fatalf("%v %%", got)
	}
	trace.note("n3", sentAt(1450, 9, 1460)) // an attempt at another source
	other := sentAt(1450, 1<<40, 0)
	other.Peer = "n3"
	trace.note("n2", other) // to another node
	trace.note("n2", sentAt(1450, 530, 1700))
	trace.note("n1", receivedAt(2400, "a", 1000, stage("send", 300*time.Millisecond), stage("verify", 50*time.Millisecond), stage("install", 40*time.Millisecond)))
	trace.note("n2", sentAt(2500, 490, 2800))

	var got Recovery
	if err := trace.fill(&got, started, 2*time.Second); err != nil {
		t.Fatal(err)
	}
	if trace.sender() != "n2" {
		t.Errorf("sender %q", trace.sender())
	}
	if got.ToTransfer != 400*time.Millisecond || got.Stages["send"] != 500*time.Millisecond || got.Stages["verify"] != 50*time.Millisecond {
		t.Errorf("%+v", got)
	}
	// 2 s - 0.4 s - 10 - 500 - 50 - 40 ms: the time without a process.
	if got.Other != time.Second {
		t.Errorf("other %v", got.Other)
	}
	if got.ImageBytes != 1000 || got.RawBytes != 4000 || got.SentBytes != 530+490+9 || got.Attempts != 3 || got.Kind != "files" {
		t.Errorf("%+v", got)
	}
}

func TestTraceWithoutAnImage(t *testing.T) {
	trace := newTrace("n1")
	if err := trace.fill(new(Recovery), time.UnixMilli(0), time.Second); err == nil {
		t.Error("no transfer, and no error")
	}
	trace.note("n1", receivedAt(10, "", 0))
	if err := trace.fill(new(Recovery), time.UnixMilli(0), time.Second); err == nil {
		t.Error("no image, and no error")
	}
	// A closing delta after a full image: both count.
	trace.note("n1", receivedAt(10, "a", 1000))
	trace.note("n1", receivedAt(30, "b", 10))
	var got Recovery
	if err := trace.fill(&got, time.UnixMilli(0), time.Second); err != nil || got.ImageBytes != 2000 {
		t.Errorf("%+v, %v", got, err)
	}
}
