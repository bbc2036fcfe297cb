package importer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// TreeOptions says how a directory tree becomes records.
type TreeOptions struct {
	// Prefix stands in front of every key.
	Prefix string
	// ChunkBytes is the size over which a file is split into parts, and the
	// size of a part. Default 256 KiB.
	ChunkBytes int
}

// DefaultChunkBytes is a quarter of the largest value that clusters take by
// default.
const DefaultChunkBytes = 256 << 10

// tree is the Source of a directory tree.
type tree struct {
	dir     string
	root    *os.Root
	options TreeOptions
	entries []treeEntry
	total   uint64
	// file is the one that is being split, as number number of its parts.
	file   *os.File
	name   string
	left   int64
	number int
	count  int
}

// treeEntry is one path that was found, or what is wrong with it.
type treeEntry struct {
	path string
	size int64
	bad  string
}

// NewTree reads the regular files under dir, in order of path. Anything else
// than files and directories, symbolic links above all, is a BadRecordError:
// what they point to may lie outside or change. The tree must not change
// meanwhile; a file that does is reported.
func NewTree(dir string, o TreeOptions) (Source, error) {
	if o.ChunkBytes == 0 {
		o.ChunkBytes = DefaultChunkBytes
	}
	if o.ChunkBytes < 0 {
		return nil, fmt.Errorf("chunk bytes is negative: %d", o.ChunkBytes)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open tree: %w", err)
	}
	t := &tree{dir: dir, root: root, options: o}
	err = fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		t.visit(path, entry, err)
		if err != nil && entry != nil && entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("walk %s: %w", dir, err)
	}
	return t, nil
}

func (t *tree) visit(path string, entry fs.DirEntry, err error) {
	e := treeEntry{path: path}
	switch {
	case err != nil:
		e.bad = "cannot be read: " + plainPathError(err)
	case entry.IsDir():
		return
	case entry.Type()&fs.ModeSymlink != 0:
		e.bad = "is a symbolic link; links are not followed"
	case !entry.Type().IsRegular():
		e.bad = "is neither a file nor a directory"
	default:
		info, err := entry.Info()
		if err != nil {
			e.bad = "cannot be read: " + plainPathError(err)
		} else {
			e.size = info.Size()
			t.total += uint64(e.size)
		}
	}
	t.entries = append(t.entries, e)
}

// plainPathError leaves out the path, which the message has already.
func plainPathError(err error) string {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err.Error()
	}
	return err.Error()
}

func (t *tree) Next() (Record, error) {
	if t.file != nil {
		return t.nextPart()
	}
	if len(t.entries) == 0 {
		return Record{}, io.EOF
	}
	e := t.entries[0]
	t.entries = t.entries[1:]
	if e.bad != "" {
		return Record{}, t.bad(e.path, e.bad)
	}
	file, err := t.root.Open(filepath.FromSlash(e.path))
	if err != nil {
		return Record{}, t.bad(e.path, "cannot be read: "+plainPathError(err))
	}
	t.file, t.name, t.left, t.number, t.count = file, e.path, e.size, 0, 1
	if chunk := int64(t.options.ChunkBytes); e.size > chunk {
		parts := (e.size + chunk - 1) / chunk
		if parts > MaxParts {
			t.closeFile()
			return Record{}, t.bad(e.path, fmt.Sprintf("would have %d parts; the most is %d: raise the chunk size", parts, MaxParts))
		}
		t.count = int(parts)
	}
	return t.nextPart()
}

// nextPart reads one part of the open file, and closes it after the last.
func (t *tree) nextPart() (Record, error) {
	size := min(t.left, int64(t.options.ChunkBytes))
	value := make([]byte, size)
	if _, err := io.ReadFull(t.file, value); err != nil {
		t.closeFile()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return Record{}, t.bad(t.name, "became shorter while it was read")
		}
		return Record{}, t.bad(t.name, "cannot be read: "+plainPathError(err))
	}
	key := FileKey(t.name)
	if t.count > 1 {
		key = PartKey(t.name, t.number, t.count)
	}
	t.left -= size
	t.number++
	if t.left == 0 {
		n, err := t.file.Read(make([]byte, 1))
		t.closeFile()
		if n > 0 || (err != nil && err != io.EOF) {
			return Record{}, t.bad(t.name, "became longer while it was read")
		}
	}
	return Record{Key: []byte(t.options.Prefix + key), Value: value, Input: int(size)}, nil
}

func (t *tree) bad(path, problem string) error {
	return &BadRecordError{Where: filepath.Join(t.dir, filepath.FromSlash(path)), Problem: problem}
}

func (t *tree) closeFile() {
	t.file.Close()
	t.file = nil
}

func (t *tree) Total() uint64 { return t.total }

func (t *tree) Close() error {
	if t.file != nil {
		t.closeFile()
	}
	return t.root.Close()
}
