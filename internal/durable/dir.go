package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// dirPermissions of the directories MkdirAll makes: for the owner only, since
// they hold other people's data.
const dirPermissions os.FileMode = 0o700

// SyncDir makes the entries of a directory durable: files created in it,
// renamed into it and removed from it before the call.
func SyncDir(fsys vfs.FS, dir string) error {
	file, err := fsys.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("durable: syncing directory %s: %w", dir, err)
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("durable: syncing directory %s: %w", dir, err)
	}
	return nil
}

// MkdirAll makes dir and the parents it lacks, for the owner only (mode 0700),
// and makes their entries durable, from the top down. It does so also when dir
// exists already: an earlier call may have made it and failed, or been killed,
// before the sync.
func MkdirAll(fsys vfs.FS, dir string) error {
	missing, err := missingDirs(fsys, dir)
	if err != nil {
		return fmt.Errorf("durable: making directory %s: %w", dir, err)
	}
	existing := dir
	if len(missing) > 0 {
		existing = fsys.PathDir(missing[len(missing)-1])
	}
	// Only the lowest existing directory can be one whose sync is missing, since
	// each one below was made after its parent's entry was synced. Where its
	// parent may not be opened it isn't ours: the owner of that made it.
	err = SyncDir(fsys, fsys.PathDir(existing))
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := fsys.MkdirAll(missing[i], dirPermissions); err != nil {
			return fmt.Errorf("durable: making directory %s: %w", missing[i], err)
		}
		if err := SyncDir(fsys, fsys.PathDir(missing[i])); err != nil {
			return err
		}
	}
	return nil
}

// missingDirs returns dir and those of its parents that do not exist, deepest
// first.
func missingDirs(fsys vfs.FS, dir string) ([]string, error) {
	var missing []string
	for {
		info, err := fsys.Stat(dir)
		if err == nil {
			if !info.IsDir() {
				return nil, fmt.Errorf("%s is a file; remove it or choose another directory", dir)
			}
			return missing, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		parent := fsys.PathDir(dir)
		if parent == dir {
			// The root, or the directory the process was started in: a parent that
			// cannot be looked at but needs not be made.
			return missing, nil
		}
		missing = append(missing, dir)
		dir = parent
	}
}
