package importer

import (
	"fmt"
	"strconv"
	"strings"
)

// Part keys. A key is a file's name, or a name and a part:
//
//	key    = name | name part
//	part   = "#" 8 digits "of" 8 digits      (number from 0, count from 2)
//
// Where a name itself ends like a part, or in number signs before a part, its
// last run of number signs is doubled: then the run in front of the digits is
// even for a name, and odd for a part.

const (
	// MaxParts is the most parts that a file can have.
	MaxParts = 99_999_999
	// partDigits is the length of "00000000of00000000".
	partDigits = 18
)

// FileKey returns the key of a file that is one record.
func FileKey(name string) string {
	if _, hashes, ok := splitPart(name); ok {
		return double(name, len(name)-partDigits, hashes)
	}
	return name
}

// PartKey returns the key of part number, from 0, of count.
func PartKey(name string, number, count int) string {
	hashes := trailingHashes(name)
	return double(name, len(name), hashes) + fmt.Sprintf("#%08dof%08d", number, count)
}

// double repeats the run of number signs that ends at end.
func double(name string, end, hashes int) string {
	return name[:end] + strings.Repeat("#", hashes) + name[end:]
}

// ParseKey undoes FileKey and PartKey; count is 0 for a file that is one
// record.
func ParseKey(key string) (name string, number, count int) {
	digits, hashes, ok := splitPart(key)
	if !ok {
		return key, 0, 0
	}
	stem := key[:len(key)-partDigits-hashes]
	if hashes%2 == 0 {
		return stem + strings.Repeat("#", hashes/2) + digits, 0, 0
	}
	number, _ = strconv.Atoi(digits[:8])
	count, _ = strconv.Atoi(digits[10:])
	if count < 2 || number >= count {
		// Not written by an import.
		return key, 0, 0
	}
	return stem + strings.Repeat("#", hashes/2), number, count
}

// splitPart finds the digits that end a part's key and the number signs before
// them; ok is false if there are none.
func splitPart(key string) (digits string, hashes int, ok bool) {
	if len(key) <= partDigits {
		return "", 0, false
	}
	digits = key[len(key)-partDigits:]
	if digits[8:10] != "of" || strings.Trim(digits[:8], "0123456789") != "" || strings.Trim(digits[10:], "0123456789") != "" {
		return "", 0, false
	}
	hashes = trailingHashes(key[:len(key)-partDigits])
	return digits, hashes, hashes > 0
}

func trailingHashes(s string) int { return len(s) - len(strings.TrimRight(s, "#")) }
