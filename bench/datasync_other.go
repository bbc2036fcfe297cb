//go:build !linux

package bench

import "os"

// dataSync makes a file's content durable.
func dataSync(file *os.File) error { return file.Sync() }
