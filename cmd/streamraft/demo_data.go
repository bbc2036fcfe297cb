package main

import (
	"context"
	"errors"
	"go/build"
	"hash/maphash"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/streamraft/streamraft/internal/importer"
)

// defaultDemoData returns the directory of the sources of Go, a real data set
// that is there wherever Go is.
func defaultDemoData(ctx context.Context) (string, error) {
	root := build.Default.GOROOT
	if out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output(); err == nil {
		root = strings.TrimSpace(string(out))
	}
	dir := filepath.Join(root, "src")
	if info, err := os.Stat(dir); root == "" || err != nil || !info.IsDir() {
		return "", errors.New("the default data set, the sources of Go, was not found (asked `go env GOROOT`): " +
			"name a directory, or a .jsonl or .csv file, with --data PATH")
	}
	return dir, nil
}

// openDemoData opens the data set that is imported. It resolves options.data
// where that is empty.
func openDemoData(ctx context.Context, o *demoOptions) (importer.Source, error) {
	if o.data == "" {
		dir, err := defaultDemoData(ctx)
		if err != nil {
			return nil, withExitCode(exitUsage, err)
		}
		o.data = dir
	}
	if o.data == "-" {
		return nil, usageErrorf("--data -: name a file or a directory")
	}
	flags := importFlags{chunkBytes: importer.DefaultChunkBytes}
	if info, err := os.Stat(o.data); err == nil && info.IsDir() {
		flags.prefix = filepath.Base(o.data) + "/"
	}
	source, err := openSource(nil, o.data, flags)
	if err != nil {
		return nil, usageErrorf("--data: %w", err)
	}
	if o.limit > 0 {
		source = &limitedSource{Source: source, left: o.limit, total: o.limit}
	}
	return source, nil
}

// limitedSource ends before the record that would go over a number of bytes.
type limitedSource struct {
	importer.Source
	left, total uint64
}

func (s *limitedSource) Next() (importer.Record, error) {
	record, err := s.Source.Next()
	if err != nil {
		return record, err
	}
	if uint64(record.Input) > s.left {
		return importer.Record{}, io.EOF
	}
	s.left -= uint64(record.Input)
	return record, nil
}

func (s *limitedSource) Total() uint64 {
	if total := s.Source.Total(); total > 0 {
		return min(total, s.total)
	}
	return s.total
}

// importCheck remembers, by hashes, the last value of every key that a source
// yielded. A successful import has all of them acknowledged.
type importCheck struct {
	importer.Source
	seed   maphash.Seed
	values map[uint64]uint64 // hash of the key -> hash of the value
}

func newImportCheck(source importer.Source) *importCheck {
	return &importCheck{Source: source, seed: maphash.MakeSeed(), values: map[uint64]uint64{}}
}

func (c *importCheck) Next() (importer.Record, error) {
	record, err := c.Source.Next()
	if err == nil {
		c.values[maphash.Bytes(c.seed, record.Key)] = maphash.Bytes(c.seed, record.Value)
	}
	return record, err
}

// take tells whether a record that was read back is as it was imported, and
// crosses it off.
func (c *importCheck) take(key, value []byte) bool {
	k := maphash.Bytes(c.seed, key)
	want, ok := c.values[k]
	if !ok || want != maphash.Bytes(c.seed, value) {
		return false
	}
	delete(c.values, k)
	return true
}
