package server

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes. As text it is a number with an optional unit: B,
// KiB, MiB, GiB or TiB (powers of 1024), as in "256MiB".
type Size int64

// sizeUnit is a unit of a Size.
type sizeUnit struct {
	name  string
	bytes int64
}

// sizeUnits returns the units, largest first.
func sizeUnits() []sizeUnit {
	return []sizeUnit{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}
}

// ParseSize reads a Size. Units are taken in any case; fractions are not. The
// error names what is allowed.
func ParseSize(text string) (Size, error) {
	number, unit := strings.TrimSpace(text), int64(1)
	for _, u := range sizeUnits() {
		if len(number) > len(u.name) && strings.EqualFold(number[len(number)-len(u.name):], u.name) {
			number, unit = strings.TrimSpace(number[:len(number)-len(u.name)]), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return 0, fmt.Errorf("not a size: write bytes, or a number with KiB, MiB, GiB or TiB, such as 256MiB")
	}
	return Size(n * unit), nil
}

// String writes the size with the largest unit that divides it.
func (s Size) String() string {
	for _, u := range sizeUnits() {
		if s != 0 && int64(s)%u.bytes == 0 && u.bytes > 1 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
