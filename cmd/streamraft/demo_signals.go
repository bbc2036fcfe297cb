package main

import (
	"os"
	"os/signal"
	"syscall"
)

// holdSignals keeps signals from ending the process until release is called:
// the first one has cancelled the command by then, and what it started must be
// cleaned up. A closed pipe becomes an error of the write, a closed terminal
// one of reading.
func holdSignals() (release func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	return func() { signal.Stop(c) }
}
