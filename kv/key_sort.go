package kv

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// keyRefBytes is what a key in memory costs beside its bytes.
	keyRefBytes = 8
	// keySampleEvery is how many keys of a file lie between two samples.
	keySampleEvery = 4096
	// spillPrefix begins the names of the files keys spill to; they live in the
	// directory of the image that is made and are gone when it is.
	spillPrefix = "keys-"
)

// keySorter sorts keys and drops repetitions, in at most limit bytes of memory:
// what is more goes to sorted files (each key as uvarint length and bytes).
type keySorter struct {
	fs    vfs.FS
	dir   string
	limit int

	arena []byte
	refs  []keyRef
	files []string
}

type keyRef struct{ offset, size uint32 }

// add adds a key, which is copied.
func (k *keySorter) add(key []byte) error {
	if len(k.refs) > 0 && len(k.arena)+len(key)+keyRefBytes*(len(k.refs)+1) > k.limit {
		if err := k.spill(); err != nil {
			return err
		}
	}
	k.refs = append(k.refs, keyRef{uint32(len(k.arena)), uint32(len(key))})
	k.arena = append(k.arena, key...)
	return nil
}

func (k *keySorter) key(r keyRef) []byte { return k.arena[r.offset : r.offset+r.size] }

// sort sorts what is in memory and drops repetitions.
func (k *keySorter) sort() {
	slices.SortFunc(k.refs, func(a, b keyRef) int { return bytes.Compare(k.key(a), k.key(b)) })
	k.refs = slices.CompactFunc(k.refs, func(a, b keyRef) bool { return bytes.Equal(k.key(a), k.key(b)) })
}

// spill moves what is in memory to a file.
func (k *keySorter) spill() error {
	k.sort()
	file, err := newKeyFile(k.fs, k.fs.PathJoin(k.dir, fmt.Sprintf("%s%06d", spillPrefix, len(k.files))))
	if err != nil {
		return err
	}
	k.files = append(k.files, file.path)
	for _, r := range k.refs {
		if err := file.add(k.key(r)); err != nil {
			return errors.Join(err, file.close())
		}
	}
	k.arena, k.refs = k.arena[:0], k.refs[:0]
	return file.close()
}

// finish returns the sorted keys. The sorter is of no further use.
func (k *keySorter) finish() (*sortedKeys, error) {
	if len(k.files) == 0 {
		k.sort()
		return &sortedKeys{count: len(k.refs), memory: k}, nil
	}
	if err := k.spill(); err != nil {
		return nil, err
	}
	k.arena, k.refs = nil, nil
	merged, err := newKeyFile(k.fs, k.fs.PathJoin(k.dir, spillPrefix+"merged"))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(k.merge(merged), merged.close()); err != nil {
		return nil, err
	}
	for _, path := range k.files {
		if err := k.fs.Remove(path); err != nil {
			return nil, err
		}
	}
	return &sortedKeys{count: merged.count, file: merged}, nil
}

// merge merges the spilled files. They are few: each held what fits in memory.
func (k *keySorter) merge(out *keyFile) (err error) {
	var readers []keyReader
	defer func() {
		for _, r := range readers {
			err = errors.Join(err, r.close())
		}
	}()
	heads := make([][]byte, len(k.files))
	for i, path := range k.files {
		reader, err := openKeyFile(k.fs, path, 0)
		if err != nil {
			return err
		}
		readers = append(readers, reader)
		if heads[i], err = reader.next(); err != nil {
			return err
		}
	}
	for {
		var least []byte
		for _, head := range heads {
			if head != nil && (least == nil || bytes.Compare(head, least) < 0) {
				least = head
			}
		}
		if least == nil {
			return nil
		}
		if err := out.add(least); err != nil {
			return err
		}
		least = bytes.Clone(least)
		for i, head := range heads {
			if head != nil && bytes.Equal(head, least) {
				if heads[i], err = readers[i].next(); err != nil {
					return err
				}
			}
		}
	}
}

// sortedKeys are distinct keys in order, in memory or in a file.
type sortedKeys struct {
	count  int
	memory *keySorter
	file   *keyFile
}

// quantile returns the key below which about i of n parts of the keys lie, nil
// if there are too few to say.
func (s *sortedKeys) quantile(i, n int) []byte {
	if s.memory != nil {
		if len(s.memory.refs) < n {
			return nil
		}
		return s.memory.key(s.memory.refs[len(s.memory.refs)*i/n])
	}
	if len(s.file.samples) < n {
		return nil
	}
	return s.file.samples[len(s.file.samples)*i/n].key
}

// from returns a reader of the keys from lower on.
func (s *sortedKeys) from(lower []byte) (keyReader, error) {
	if s.memory != nil {
		m := s.memory
		at := sort.Search(len(m.refs), func(i int) bool { return bytes.Compare(m.key(m.refs[i]), lower) >= 0 })
		return &memoryKeys{m, at}, nil
	}
	samples := s.file.samples
	at := sort.Search(len(samples), func(i int) bool { return bytes.Compare(samples[i].key, lower) > 0 })
	offset := int64(0)
	if at > 0 {
		offset = samples[at-1].offset
	}
	reader, err := openKeyFile(s.file.fs, s.file.path, offset)
	if err != nil {
		return nil, err
	}
	reader.skip = lower
	return reader, nil
}

// remove removes the file, if there is one.
func (s *sortedKeys) remove() error {
	if s.file == nil {
		return nil
	}
	return s.file.fs.Remove(s.file.path)
}

// keyReader reads keys in order. A key is valid until the next call; nil is the
// end.
type keyReader interface {
	next() ([]byte, error)
	close() error
}

type memoryKeys struct {
	k  *keySorter
	at int
}

func (m *memoryKeys) next() ([]byte, error) {
	if m.at == len(m.k.refs) {
		return nil, nil
	}
	m.at++
	return m.k.key(m.k.refs[m.at-1]), nil
}

func (m *memoryKeys) close() error { return nil }

// keyFile is a file of sorted keys that is written.
type keyFile struct {
	fs      vfs.FS
	path    string
	file    vfs.File
	w       *bufio.Writer
	count   int
	offset  int64
	samples []keySample
}

// keySample says where a key of a file begins.
type keySample struct {
	key    []byte
	offset int64
}

func newKeyFile(fs vfs.FS, path string) (*keyFile, error) {
	file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	return &keyFile{fs: fs, path: path, file: file, w: bufio.NewWriterSize(file, 64<<10)}, nil
}

func (f *keyFile) add(key []byte) error {
	if f.count%keySampleEvery == 0 {
		f.samples = append(f.samples, keySample{bytes.Clone(key), f.offset})
	}
	f.count++
	var size [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(size[:], uint64(len(key)))
	f.offset += int64(n + len(key))
	if _, err := f.w.Write(size[:n]); err != nil {
		return err
	}
	_, err := f.w.Write(key)
	return err
}

// close ends the writing. The file need not survive a crash.
func (f *keyFile) close() error { return errors.Join(f.w.Flush(), f.file.Close()) }

// fileKeys reads a file of sorted keys.
type fileKeys struct {
	file vfs.File
	r    *bufio.Reader
	key  []byte
	skip []byte
}

func openKeyFile(fs vfs.FS, path string, offset int64) (*fileKeys, error) {
	file, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	section := io.NewSectionReader(file, offset, info.Size()-offset)
	return &fileKeys{file: file, r: bufio.NewReaderSize(section, 64<<10)}, nil
}

func (f *fileKeys) next() ([]byte, error) {
	for {
		size, err := binary.ReadUvarint(f.r)
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		// Two key lengths of the format bound any storage key.
		if size > 2*MaxKeyBytes {
			return nil, corruptf("a sorted key of %d bytes", size)
		}
		f.key = slices.Grow(f.key[:0], int(size))[:size]
		if _, err := io.ReadFull(f.r, f.key); err != nil {
			return nil, err
		}
		if bytes.Compare(f.key, f.skip) >= 0 {
			return f.key, nil
		}
	}
}

func (f *fileKeys) close() error { return f.file.Close() }
