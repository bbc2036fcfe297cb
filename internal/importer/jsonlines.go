package importer

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Line is a record as one JSON object:
//
//	{"key": "greeting", "value": "hello"}
//
// key_base64 and value_base64 stand for key and value where those are not
// UTF-8 text. mod_revision may be there and is ignored, so that what range
// prints can be imported. A missing value is an empty one. Empty lines are
// skipped.
type Line struct {
	Key         *string `json:"key,omitempty"`
	KeyBase64   *string `json:"key_base64,omitempty"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 *string `json:"value_base64,omitempty"`
	ModRevision uint64  `json:"mod_revision,omitempty"`
}

// MaxLineBytes bounds a line: a value of the largest size a cluster takes, with
// every byte escaped, fits.
const MaxLineBytes = 8 << 20

// NewLine makes a line of a record. revision 0 is left out; so is the value if
// keysOnly is set.
func NewLine(key, value []byte, revision uint64, keysOnly bool) Line {
	l := Line{ModRevision: revision}
	l.Key, l.KeyBase64 = textOrBase64(key)
	if !keysOnly {
		l.Value, l.ValueBase64 = textOrBase64(value)
	}
	return l
}

// EncodeLine appends a record to b as a line with its end; see NewLine.
func EncodeLine(b []byte, key, value []byte, revision uint64, keysOnly bool) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(NewLine(key, value, revision, keysOnly)); err != nil {
		return b, fmt.Errorf("encode record: %w", err)
	}
	return append(b, out.Bytes()...), nil
}

func textOrBase64(data []byte) (text, encoded *string) {
	if utf8.Valid(data) {
		return new(string(data)), nil
	}
	return nil, new(base64.StdEncoding.EncodeToString(data))
}

// DecodeLine reads one line. The error says what is wrong with it.
func DecodeLine(data []byte) (key, value []byte, err error) {
	if !utf8.Valid(data) {
		return nil, nil, errors.New("not UTF-8; use key_base64 and value_base64 for binary data")
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var l Line
	if err := decoder.Decode(&l); err != nil {
		return nil, nil, fmt.Errorf("not a record: %w", plainJSONError(err))
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, nil, errors.New("something follows the record on its line")
	}
	if key, err = pick("key", l.Key, l.KeyBase64); err != nil {
		return nil, nil, err
	}
	if len(key) == 0 {
		return nil, nil, errors.New("no key")
	}
	value, err = pick("value", l.Value, l.ValueBase64)
	return key, value, err
}

func pick(name string, text, encoded *string) ([]byte, error) {
	switch {
	case text != nil && encoded != nil:
		return nil, fmt.Errorf("both %s and %s_base64", name, name)
	case text != nil:
		return []byte(*text), nil
	case encoded != nil:
		data, err := base64.StdEncoding.DecodeString(*encoded)
		if err != nil {
			return nil, fmt.Errorf("%s_base64: %w", name, err)
		}
		return data, nil
	}
	return nil, nil
}

// plainJSONError turns the decoder's end of input into words.
func plainJSONError(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errors.New("the line ends within it")
	}
	return err
}

// jsonLines is the Source of JSON lines.
type jsonLines struct {
	name   string
	closer io.Closer
	reader *bufio.Reader
	total  uint64
	line   int
}

// NewJSONLines reads JSON lines. name is for messages; total is the size of the
// input, 0 if it is not known; closer, if not nil, is closed by Close.
func NewJSONLines(name string, r io.Reader, total uint64, closer io.Closer) Source {
	return &jsonLines{name: name, reader: bufio.NewReaderSize(r, 1<<16), total: total, closer: closer}
}

func (s *jsonLines) Next() (Record, error) {
	for {
		data, err := s.readLine()
		if err != nil {
			return Record{}, err
		}
		input := len(data)
		if data = bytes.TrimSpace(data); len(data) == 0 {
			continue
		}
		key, value, err := DecodeLine(data)
		if err != nil {
			return Record{}, badLine(s.name, s.line, "%v", err)
		}
		return Record{Key: key, Value: value, Input: input}, nil
	}
}

// readLine returns one line with its end; a line over MaxLineBytes is read over
// and reported.
func (s *jsonLines) readLine() ([]byte, error) {
	s.line++
	var data []byte
	size := 0
	for {
		part, err := s.reader.ReadSlice('\n')
		size += len(part)
		if size <= MaxLineBytes {
			data = append(data, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == io.EOF && size > 0, err == nil:
			if size > MaxLineBytes {
				return nil, badLine(s.name, s.line, "the line has %d bytes; the most is %d", size, MaxLineBytes)
			}
			return data, nil
		case err == io.EOF:
			return nil, io.EOF
		default:
			return nil, fmt.Errorf("%s:%d: %w", s.name, s.line, err)
		}
	}
}

func (s *jsonLines) Total() uint64 { return s.total }

func (s *jsonLines) Close() error {
	if s.closer == nil {
		return nil
	}
	return s.closer.Close()
}
