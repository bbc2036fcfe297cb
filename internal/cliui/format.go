package cliui

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bytes formats a size in powers of 1024: "0 B", "1.5 KiB", "64 MiB".
func Bytes(n uint64) string {
	if n < 1024 {
		return strconv.FormatUint(n, 10) + " B"
	}
	value, unit := float64(n), -1
	// 1023.95 would be shown as 1024.0 of the smaller unit.
	for value >= 1023.95 && unit < len(byteUnits)-1 {
		value /= 1024
		unit++
	}
	digits := strings.TrimSuffix(strconv.FormatFloat(value, 'f', 1, 64), ".0")
	if value >= 100 {
		digits = strconv.FormatFloat(value, 'f', 0, 64)
	}
	return fmt.Sprintf("%s %ciB", digits, byteUnits[unit])
}

const byteUnits = "KMGTPE"

// Rate formats bytes over a time in MB/s, millions of bytes a second, the unit
// of disks and links.
func Rate(n uint64, d time.Duration) string {
	return fmt.Sprintf("%.1f MB/s", MegabytesPerSecond(n, d))
}

// MegabytesPerSecond returns 10^6 bytes a second; 0 if no time has passed.
func MegabytesPerSecond(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / 1e6 / d.Seconds()
}

// Count formats a number with a comma after every three digits: "1,234,567".
func Count(n uint64) string {
	digits := strconv.FormatUint(n, 10)
	out := make([]byte, 0, len(digits)+len(digits)/3)
	for i := range len(digits) {
		if i > 0 && (len(digits)-i)%3 == 0 {
			out = append(out, ',')
		}
		out = append(out, digits[i])
	}
	return string(out)
}

// Duration formats a duration to about three digits: "850ms", "12.3s",
// "4m05s", "3h02m".
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	default:
		d = d.Round(time.Minute)
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
}

// Bar draws how much of a whole is done, width characters wide.
func Bar(done, total uint64, width int) string {
	if total == 0 || width <= 0 {
		return strings.Repeat("░", max(width, 0))
	}
	full := int(float64(min(done, total)) / float64(total) * float64(width))
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}
