package main

import (
	"encoding/json"
	"io"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// printJSON prints a value as one line of JSON.
func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// shown returns data for people: as it is if it is printable text of one line,
// quoted otherwise, so that a value cannot draw on the terminal.
func shown(data []byte) string {
	if !utf8.Valid(data) {
		return strconv.Quote(string(data))
	}
	for _, r := range string(data) {
		if !unicode.IsPrint(r) {
			return strconv.Quote(string(data))
		}
	}
	return string(data)
}
