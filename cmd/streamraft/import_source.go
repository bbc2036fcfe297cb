package main

import (
	"bytes"
	"fmt"
	"io"

	"github.com/streamraft/streamraft/internal/importer"
)

// newSource makes the source of a file's format.
func newSource(name, format string, r io.Reader, total uint64, closer io.Closer, flags importFlags) (importer.Source, error) {
	var source importer.Source
	switch format {
	case "jsonl":
		source = importer.NewJSONLines(name, r, total, closer)
	case "csv":
		var err error
		if source, err = importer.NewCSV(name, r, total, closer, flags.keyColumn, flags.valueColumn); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("--format %q is unknown; it is jsonl or csv", format)
	}
	if flags.prefix != "" {
		source = prefixed{source, []byte(flags.prefix)}
	}
	return source, nil
}

// prefixed puts a prefix in front of every key of a source.
type prefixed struct {
	importer.Source
	prefix []byte
}

func (p prefixed) Next() (importer.Record, error) {
	record, err := p.Source.Next()
	if err == nil {
		record.Key = bytes.Join([][]byte{p.prefix, record.Key}, nil)
	}
	return record, err
}
