package bench

import (
	"slices"

	"github.com/streamraft/streamraft/snapshot"
)

// Summary is what repeated recoveries of one case come to: medians, and of the
// total the spread as well.
type Summary struct {
	Case  Case   `json:"case"`
	Kind  string `json:"kind"`
	Runs  int    `json:"runs"`
	Total Spread `json:"total_seconds"`
	// ToTransfer, Stages and Other are medians in seconds.
	ToTransfer float64            `json:"to_transfer_seconds"`
	Stages     map[string]float64 `json:"stages_seconds"`
	Other      float64            `json:"other_seconds"`
	ImageMB    float64            `json:"image_mb"`
	SentMB     float64            `json:"sent_mb"`
	// TimeToLost and SentToLost compare with the case lost; 0 where that was not
	// measured.
	TimeToLost float64 `json:"time_to_lost"`
	SentToLost float64 `json:"sent_to_lost"`
	// Wire is what was sent to what the image holds uncompressed; 0 if not known.
	Wire float64 `json:"sent_to_raw"`
	// Resent is what was sent to the size of the image: 1 where nothing was sent
	// twice.
	Resent float64 `json:"sent_to_image"`
	// Limit is the time to the least time that the bytes take by the limits of the
	// same round: medians of ratios.
	Limit            float64 `json:"time_to_limit"`
	SourceMemoryMB   float64 `json:"source_memory_mb"`
	ReceiverMemoryMB float64 `json:"receiver_memory_mb"`
	// Foreground latencies in milliseconds, medians; 0 without a load.
	BeforeP50 float64 `json:"foreground_before_p50_ms"`
	BeforeP99 float64 `json:"foreground_before_p99_ms"`
	DuringP50 float64 `json:"foreground_during_p50_ms"`
	DuringP99 float64 `json:"foreground_during_p99_ms"`
}

// Summarize sums up recoveries by case, in the order the cases first come in.
func Summarize(results []Recovery) []Summary {
	var summaries []Summary
	var order []Case
	byCase := make(map[Case][]Recovery)
	for _, r := range results {
		if !slices.Contains(order, r.Case) {
			order = append(order, r.Case)
		}
		byCase[r.Case] = append(byCase[r.Case], r)
	}
	for _, c := range order {
		summaries = append(summaries, summarize(c, byCase[c]))
	}
	for i := range summaries {
		for _, lost := range summaries {
			if lost.Case == CaseLost {
				summaries[i].TimeToLost = ratio(summaries[i].Total.Median, lost.Total.Median)
				summaries[i].SentToLost = ratio(summaries[i].SentMB, lost.SentMB)
			}
		}
	}
	return summaries
}

func summarize(c Case, runs []Recovery) Summary {
	s := Summary{Case: c, Kind: runs[0].Kind, Runs: len(runs), Stages: make(map[string]float64)}
	s.Total = SpreadOf(each(runs, func(r *Recovery) float64 { return r.Total.Seconds() }))
	middle := func(value func(r *Recovery) float64) float64 { return SpreadOf(each(runs, value)).Median }
	s.ToTransfer = middle(func(r *Recovery) float64 { return r.ToTransfer.Seconds() })
	s.Other = middle(func(r *Recovery) float64 { return r.Other.Seconds() })
	for _, stage := range stages() {
		s.Stages[stage] = middle(func(r *Recovery) float64 { return r.Stages[stage].Seconds() })
	}
	s.ImageMB = middle(func(r *Recovery) float64 { return float64(r.ImageBytes) / 1e6 })
	s.SentMB = middle(func(r *Recovery) float64 { return float64(r.SentBytes) / 1e6 })
	s.Resent = middle(func(r *Recovery) float64 { return ratio(float64(r.SentBytes), float64(r.ImageBytes)) })
	s.SourceMemoryMB = middle(func(r *Recovery) float64 { return float64(r.SourceMemory) / 1e6 })
	s.ReceiverMemoryMB = middle(func(r *Recovery) float64 { return float64(r.ReceiverMemory) / 1e6 })
	s.Limit = middle(func(r *Recovery) float64 { return ratio(r.Total.Seconds(), r.Limit.Seconds()) })
	s.Wire = middle(func(r *Recovery) float64 { return ratio(float64(r.SentBytes), float64(r.RawBytes)) })
	if runs[0].Before != nil {
		s.BeforeP50 = middle(func(r *Recovery) float64 { return milliseconds(r.Before.P50) })
		s.BeforeP99 = middle(func(r *Recovery) float64 { return milliseconds(r.Before.P99) })
		s.DuringP50 = middle(func(r *Recovery) float64 { return milliseconds(r.During.P50) })
		s.DuringP99 = middle(func(r *Recovery) float64 { return milliseconds(r.During.P99) })
	}
	return s
}

// stages are the names of the stages of a transfer, in order.
func stages() []string {
	var names []string
	for _, stage := range snapshot.Stages() {
		names = append(names, string(stage))
	}
	return names
}
