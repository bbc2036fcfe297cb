package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// holdSignals returns a context that a signal ends, and keeps signals from
// ending the process until release is called: what was started must be cleaned
// up, however impatient the hand is. A closed pipe becomes an error of the write.
func holdSignals(ctx context.Context) (held context.Context, release func()) {
	held, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return held, func() {
		signal.Stop(pipe)
		stop()
	}
}
