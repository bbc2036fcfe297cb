package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TempSuffix is appended to the name of a file to get the name of the temporary
// file that WriteFile writes first. A crash can leave one behind; the next
// WriteFile of the same path replaces it, and nothing ever reads it.
const TempSuffix = ".tmp"

// ErrTooLarge is returned when a file, or the data for one, is larger than the
// limit its caller set. Nothing was read into memory or written.
var ErrTooLarge = errors.New("durable: larger than its limit")

// WriteFile replaces the content of path with data, or creates it. The new
// content is durable when WriteFile returns nil. On an error the file holds the
// old content or the new one, whole; which of them a crash leaves is unknown, so
// the caller must either write again or read the file after a restart.
//
// The temporary file is removed on an error where that is possible.
func WriteFile(fsys vfs.FS, path string, data []byte) error {
	temp := path + TempSuffix
	if err := writeSynced(fsys, temp, data); err != nil {
		return fmt.Errorf("durable: writing %s: %w", path, errors.Join(err, removeIfExists(fsys, temp)))
	}
	// The data must be on disk before the name points to it: after a crash the
	// other order can show the new name with an empty file.
	if err := fsys.Rename(temp, path); err != nil {
		return fmt.Errorf("durable: writing %s: %w", path, errors.Join(err, removeIfExists(fsys, temp)))
	}
	// A rename is an entry of the directory and lost with it until it is synced.
	if err := SyncDir(fsys, fsys.PathDir(path)); err != nil {
		return fmt.Errorf("durable: writing %s: %w", path, err)
	}
	return nil
}

// ReadFile returns the content of path. A file of more than limit bytes is
// refused with ErrTooLarge before memory is allocated for it; an absent one is
// fs.ErrNotExist.
func ReadFile(fsys vfs.FS, path string, limit int) ([]byte, error) {
	file, err := fsys.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return nil, fmt.Errorf("durable: reading %s: %w", path, err)
	}
	data, err := readLimited(file, limit)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("durable: reading %s: %w", path, err)
	}
	return data, nil
}

// writeSynced creates path with data in it and syncs the file, not its
// directory.
func writeSynced(fsys vfs.FS, path string, data []byte) error {
	file, err := fsys.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err := file.Write(data); err != nil {
		return errors.Join(err, file.Close())
	}
	// A failed sync is not retried on the same file: the kernel may already have
	// dropped the dirty pages and would then report success.
	if err := file.Sync(); err != nil {
		return errors.Join(err, file.Close())
	}
	return file.Close()
}

func readLimited(file vfs.File, limit int) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size()
	if size > int64(limit) {
		return nil, fmt.Errorf("%w: %d bytes where at most %d are expected", ErrTooLarge, size, limit)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(file, data); err != nil {
		return nil, err
	}
	return data, nil
}

// removeIfExists is for cleaning up after another error.
func removeIfExists(fsys vfs.FS, path string) error {
	if err := fsys.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
