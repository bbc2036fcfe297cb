//go:build !linux

package bench

import "os"

// dataSync makes a file's content durable.
func dataSync(file *os.File) error { return file.Sync() }

// dropCache does nothing here: the file is read from wherever it is.
func dropCache(*os.File) error { return nil }
