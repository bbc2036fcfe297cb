package bench

import (
	"math"
	"slices"
	"time"
)

// Spread sums up repeated measurements of one thing.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

// SpreadOf returns the median, the least and the greatest of values; all zero
// without any. values is left as it is.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	s := Spread{Min: sorted[0], Max: sorted[len(sorted)-1], N: len(sorted)}
	middle := len(sorted) / 2
	if s.Median = sorted[middle]; len(sorted)%2 == 0 {
		s.Median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return s
}

// MBPerSecond is bytes in d as 10^6 bytes a second; 0 for no time.
func MBPerSecond(bytes uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(bytes) / 1e6 / d.Seconds()
}

// ratio is a/b, and 0 where b is 0: the result is printed, and encoded as JSON,
// which has no infinity.
func ratio(a, b float64) float64 {
	if b == 0 || math.IsNaN(a) || math.IsNaN(b) {
		return 0
	}
	return a / b
}

// each maps values to numbers.
func each[T any](values []T, number func(v *T) float64) []float64 {
	var numbers []float64
	for i := range values {
		numbers = append(numbers, number(&values[i]))
	}
	return numbers
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
