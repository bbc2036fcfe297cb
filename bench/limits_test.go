package bench

import (
	"context"
	"errors"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMeasureLimits(t *testing.T) {
	dir := t.TempDir()
	l, err := MeasureLimits(t.Context(), dir, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	if l.DiskWrite <= 0 || l.DiskRead <= 0 || l.GRPC <= 0 || l.Encode <= 0 || l.Decode <= 0 || l.Append <= 0 || l.Overwrite <= 0 {
		t.Errorf("%+v", l)
	}
	if l.Ratio <= 0.02 || l.Ratio >= 0.5 {
		t.Errorf("JSON text to %v of its size", l.Ratio)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestMeasureLimitsIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := MeasureLimits(ctx, t.TempDir(), 1<<30); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
