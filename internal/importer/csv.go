package importer

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// csvSource is the Source of comma-separated values.
type csvSource struct {
	name   string
	closer io.Closer
	reader *csv.Reader
	total  uint64
	offset int64
	// columns of key and value, and the number of columns.
	key, value, columns int
}

// NewCSV reads comma-separated values with a header line that names the columns
// (RFC 4180). keyColumn and valueColumn choose two of them; "" means "key" and
// "value". The other arguments are as for NewJSONLines. A header without those
// columns is an error that names those it has.
func NewCSV(name string, r io.Reader, total uint64, closer io.Closer, keyColumn, valueColumn string) (Source, error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	// The byte order mark that some spreadsheets write is no part of a name.
	if mark, err := buffered.Peek(3); err == nil && string(mark) == "\ufeff" {
		_, _ = buffered.Discard(3)
	}
	s := &csvSource{name: name, closer: closer, total: total, reader: csv.NewReader(buffered)}
	s.reader.FieldsPerRecord = -1
	header, err := s.reader.Read()
	if err != nil {
		return nil, badLine(name, 1, "no header line: %v", err)
	}
	s.columns = len(header)
	for _, column := range []struct {
		at           *int
		name, common string
		flag         string
	}{{&s.key, keyColumn, "key", "--key-column"}, {&s.value, valueColumn, "value", "--value-column"}} {
		wanted := column.name
		if wanted == "" {
			wanted = column.common
		}
		if *column.at = slices.Index(header, wanted); *column.at < 0 {
			return nil, badLine(name, 1, "no column %q among %s; choose one with %s", wanted, quoted(header), column.flag)
		}
	}
	s.offset = s.reader.InputOffset()
	return s, nil
}

func quoted(names []string) string {
	var list []string
	for _, name := range names {
		list = append(list, fmt.Sprintf("%q", name))
	}
	return strings.Join(list, ", ")
}

func (s *csvSource) Next() (Record, error) {
	fields, err := s.reader.Read()
	input := int(s.reader.InputOffset() - s.offset)
	s.offset = s.reader.InputOffset()
	var bad *csv.ParseError
	switch {
	case errors.As(err, &bad):
		return Record{}, badLine(s.name, bad.StartLine, "not CSV: %v", bad.Err)
	case err == io.EOF:
		return Record{}, io.EOF
	case err != nil:
		return Record{}, fmt.Errorf("%s: %w", s.name, err)
	}
	number, _ := s.reader.FieldPos(0)
	if len(fields) != s.columns {
		return Record{}, badLine(s.name, number, "%d fields where the header has %d", len(fields), s.columns)
	}
	if fields[s.key] == "" {
		return Record{}, badLine(s.name, number, "the key is empty")
	}
	return Record{Key: []byte(fields[s.key]), Value: []byte(fields[s.value]), Input: input}, nil
}

func (s *csvSource) Total() uint64 { return s.total }

func (s *csvSource) Close() error {
	if s.closer == nil {
		return nil
	}
	return s.closer.Close()
}
