package bench

import (
	"math"
	"testing"
	"time"
)

func TestSpread(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{4}, Spread{Median: 4, Min: 4, Max: 4, N: 1}},
		{[]float64{9, 1}, Spread{Median: 5, Min: 1, Max: 9, N: 2}},
		{[]float64{5, 1, 3}, Spread{Median: 3, Min: 1, Max: 5, N: 3}},
		{[]float64{8, 2, 100, 4}, Spread{Median: 6, Min: 2, Max: 100, N: 4}},
	} {
		if got := SpreadOf(test.values); got != test.want {
			t.Errorf("%v: %+v, want %+v", test.values, got, test.want)
		}
	}
	values := []float64{3, 1, 2}
	SpreadOf(values)
	if values[0] != 3 {
		t.Error("the samples were sorted in place")
	}
}

func TestRatios(t *testing.T) {
	if got := ratio(1, 0); got != 0 {
		t.Errorf("1/0: %v, which JSON cannot hold", got)
	}
	if got := ratio(math.NaN(), 1); got != 0 {
		t.Errorf("NaN: %v", got)
	}
	if got := MBPerSecond(250e6, 500*time.Millisecond); got != 500 {
		t.Errorf("250 MB in 0.5 s: %v MB/s", got)
	}
	if got := MBPerSecond(1, 0); got != 0 {
		t.Errorf("no time: %v", got)
	}
	l := Limits{DiskWrite: 1000, GRPC: 500}
	if got := l.Transfer(1e9); got != 2*time.Second {
		t.Errorf("1 GB at the slower of 1000 and 500 MB/s: %v", got)
	}
	if got := (&Limits{}).Transfer(1e9); got != 0 {
		t.Errorf("without limits: %v", got)
	}
}

func TestMedianLimits(t *testing.T) {
	got := MedianLimits([]Limits{{GRPC: 3, Append: 30}, {GRPC: 1, Append: 10}, {GRPC: 2, Append: 90}})
	if got.GRPC != 2 || got.Append != 30 {
		t.Errorf("%+v", got)
	}
}
