package importer

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// TreeWriter writes records as files under a directory, the way back from
// NewTree. Records must come in order of key, prefix cut off. It is used by one
// goroutine.
type TreeWriter struct {
	root *os.Root
	// open holds the files of which parts are still to come.
	open map[string]*openFile
	// Files and Bytes count what is written whole.
	Files int
	Bytes uint64
}

type openFile struct {
	file        *os.File
	next, count int
	bytes       uint64
}

// NewTreeWriter writes into dir, which must be empty or not exist: files that
// are there would mix with those that are written.
func NewTreeWriter(dir string) (*TreeWriter, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("create directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("directory %s is not empty: %w; choose a new one", dir, fs.ErrExist)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open directory: %w", err)
	}
	return &TreeWriter{root: root, open: map[string]*openFile{}}, nil
}

// Add writes one record. A key that is no path below the directory is a
// BadRecordError; nothing is ever written outside.
func (t *TreeWriter) Add(key string, value []byte) error {
	name, number, count := ParseKey(key)
	if !fs.ValidPath(name) || name == "." || strings.ContainsAny(name, "\x00") || !filepath.IsLocal(filepath.FromSlash(name)) {
		return badKey(key, "is no relative path of a file")
	}
	if count == 0 {
		file, err := t.create(key, name)
		if err != nil {
			return err
		}
		return t.writeLast(key, file, value, 0)
	}
	o := t.open[name]
	switch {
	case o == nil && number != 0:
		return badKey(key, "the parts before it are missing")
	case o != nil && (o.next != number || o.count != count):
		return badKey(key, "does not follow the part before it: parts of two versions of the file, or one is missing")
	case o == nil:
		file, err := t.create(key, name)
		if err != nil {
			return err
		}
		o = &openFile{file: file, count: count}
		t.open[name] = o
	}
	o.next++
	if o.next == count {
		delete(t.open, name)
		return t.writeLast(key, o.file, value, o.bytes)
	}
	if _, err := o.file.Write(value); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	o.bytes += uint64(len(value))
	return nil
}

func (t *TreeWriter) writeLast(key string, file *os.File, value []byte, before uint64) error {
	_, err := file.Write(value)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write file of key %q: %w", key, err)
	}
	t.Files++
	t.Bytes += before + uint64(len(value))
	return nil
}

// create makes a new file and the directories above it.
func (t *TreeWriter) create(key, name string) (*os.File, error) {
	local := filepath.FromSlash(name)
	if parent := path.Dir(name); parent != "." {
		if err := t.root.MkdirAll(filepath.FromSlash(parent), 0o777); err != nil {
			return nil, badKey(key, "its directory cannot be made: "+plainPathError(err)+": another key is a file of that name")
		}
	}
	file, err := t.root.OpenFile(local, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return nil, badKey(key, "a file or directory of that name is written already: parts of two versions of the file, or a key that is the directory of another")
	}
	if err != nil {
		return nil, fmt.Errorf("create file of key %q: %w", key, err)
	}
	return file, nil
}

// Close ends the writing. Files of which parts are missing are removed and
// named in the error.
func (t *TreeWriter) Close() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(t.open)) {
		o := t.open[name]
		errs = append(errs, &BadRecordError{
			Where: fmt.Sprintf("file %q", name), Problem: fmt.Sprintf("only %d of its %d parts are there; it was left out", o.next, o.count),
		}, o.file.Close(), t.root.Remove(filepath.FromSlash(name)))
	}
	clear(t.open)
	return errors.Join(append(errs, t.root.Close())...)
}

func badKey(key, problem string) error {
	return &BadRecordError{Where: fmt.Sprintf("key %q", key), Problem: problem}
}
