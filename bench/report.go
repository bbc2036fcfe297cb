package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Summary is what repeated recoveries of one case come to.
type Summary struct {
	Case  Case   `json:"case"`
	Kind  string `json:"kind"`
	Runs  int    `json:"runs"`
	Total Spread `json:"total_seconds"`
	// ToTransfer and Stages are medians in seconds.
	ToTransfer float64            `json:"to_transfer_seconds"`
	Stages     map[string]float64 `json:"stages_seconds"`
	ImageMB    float64            `json:"image_mb"`
	SentMB     float64            `json:"sent_mb"`
	// Resent is what was sent to the size of the image: 1 where nothing was sent
	// twice.
	Resent float64 `json:"sent_to_image"`
	// Limit is the median time to the least time that the bytes take by the limits.
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
// limits may be nil.
func Summarize(results []Recovery, limits *Limits) []Summary {
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
		runs := byCase[c]
		s := Summary{Case: c, Kind: runs[0].Kind, Runs: len(runs), Stages: make(map[string]float64)}
		s.Total = SpreadOf(each(runs, func(r *Recovery) float64 { return r.Total.Seconds() }))
		middle := func(value func(r *Recovery) float64) float64 { return SpreadOf(each(runs, value)).Median }
		s.ToTransfer = middle(func(r *Recovery) float64 { return r.ToTransfer.Seconds() })
		for stage := range runs[0].Stages {
			s.Stages[stage] = middle(func(r *Recovery) float64 { return r.Stages[stage].Seconds() })
		}
		s.ImageMB = middle(func(r *Recovery) float64 { return float64(r.ImageBytes) / 1e6 })
		s.SentMB = middle(func(r *Recovery) float64 { return float64(r.SentBytes) / 1e6 })
		s.Resent = middle(func(r *Recovery) float64 { return ratio(float64(r.SentBytes), float64(r.ImageBytes)) })
		s.SourceMemoryMB = middle(func(r *Recovery) float64 { return float64(r.SourceMemory) / 1e6 })
		s.ReceiverMemoryMB = middle(func(r *Recovery) float64 { return float64(r.ReceiverMemory) / 1e6 })
		if limits != nil {
			s.Limit = ratio(s.Total.Median, limits.Transfer(uint64(s.ImageMB*1e6)).Seconds())
		}
		if runs[0].Before != nil {
			s.BeforeP50 = middle(func(r *Recovery) float64 { return milliseconds(r.Before.P50) })
			s.BeforeP99 = middle(func(r *Recovery) float64 { return milliseconds(r.Before.P99) })
			s.DuringP50 = middle(func(r *Recovery) float64 { return milliseconds(r.During.P50) })
			s.DuringP99 = middle(func(r *Recovery) float64 { return milliseconds(r.During.P99) })
		}
		summaries = append(summaries, s)
	}
	return summaries
}

func each(runs []Recovery, value func(r *Recovery) float64) []float64 {
	var values []float64
	for i := range runs {
		values = append(values, value(&runs[i]))
	}
	return values
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// SummaryColumns are the headings of Summary.Row.
func SummaryColumns() []string {
	return []string{"case", "image", "runs", "seconds", "min..max", "x limit", "to transfer", "capture", "send", "verify", "install", "catch up",
		"image MB", "sent MB", "sent/image", "source MB", "receiver MB", "p99 before", "p99 during"}
}

// Row returns a summary as the cells of a table.
func (s *Summary) Row() []string {
	number := func(v float64, digits int) string {
		if v == 0 {
			return "-"
		}
		return fmt.Sprintf("%.*f", digits, v)
	}
	row := []string{
		string(s.Case), s.Kind, fmt.Sprint(s.Runs), fmt.Sprintf("%.2f", s.Total.Median), fmt.Sprintf("%.2f..%.2f", s.Total.Min, s.Total.Max),
		number(s.Limit, 2), fmt.Sprintf("%.2f", s.ToTransfer),
	}
	for _, stage := range []string{"capture", "send", "verify", "install", "catchup"} {
		row = append(row, fmt.Sprintf("%.3f", s.Stages[stage]))
	}
	return append(row, fmt.Sprintf("%.1f", s.ImageMB), fmt.Sprintf("%.1f", s.SentMB), fmt.Sprintf("%.3f", s.Resent),
		number(s.SourceMemoryMB, 0), number(s.ReceiverMemoryMB, 0), number(s.BeforeP99, 1), number(s.DuringP99, 1))
}

// Markdown returns a table.
func Markdown(columns []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	line(columns)
	line(slices.Repeat([]string{"---"}, len(columns)))
	for _, row := range rows {
		line(row)
	}
	return b.String()
}

// LimitsColumns are the headings of Limits.Row.
func LimitsColumns() []string {
	return []string{"disk write MB/s", "append+sync ms", "overwrite+sync ms", "gRPC MB/s", "zstd encode MB/s", "zstd decode MB/s", "zstd ratio"}
}

// Row returns the limits as the cells of a table.
func (l *Limits) Row() []string {
	return []string{
		fmt.Sprintf("%.0f", l.DiskWrite), fmt.Sprintf("%.2f", milliseconds(l.Append)), fmt.Sprintf("%.2f", milliseconds(l.Overwrite)),
		fmt.Sprintf("%.0f", l.GRPC), fmt.Sprintf("%.0f", l.Encode), fmt.Sprintf("%.0f", l.Decode), fmt.Sprintf("%.2f", l.Ratio),
	}
}
