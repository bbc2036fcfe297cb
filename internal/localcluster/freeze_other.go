//go:build !unix

package localcluster

import "os"

// Signals that freeze a process and let it go on: this system has none.
func freezeSignals() (pause, resume os.Signal, ok bool) { return nil, nil, false }
