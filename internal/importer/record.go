package importer

import (
	"fmt"
)

// Record is one record on its way.
type Record struct {
	Key   []byte
	Value []byte
	// Input is the bytes of the source that the record took, for progress.
	Input int
}

// Source yields records. The slices of a record are the caller's.
type Source interface {
	// Next returns the next record; io.EOF at the end. After a BadRecordError
	// it goes on with the record behind.
	Next() (Record, error)
	// Total is the bytes that the Input of all records will come to; 0 if that
	// is not known.
	Total() uint64
	// Close closes what the source opened.
	Close() error
}

// BadRecordError is input that is no record. It is found with errors.As.
type BadRecordError struct {
	// Where names the place: file:line, or a path.
	Where string
	// Problem says what is wrong there.
	Problem string
}

// Error returns "where: problem".
func (e *BadRecordError) Error() string { return e.Where + ": " + e.Problem }

func badLine(file string, line int, format string, args ...any) error {
	return &BadRecordError{Where: fmt.Sprintf("%s:%d", file, line), Problem: fmt.Sprintf(format, args...)}
}
