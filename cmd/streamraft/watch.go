package main

import (
	"context"
	"time"
)

// watchUntilInterrupted shows something at once and then every interval, until
// the command is interrupted: its way to end, and no failure.
func watchUntilInterrupted(ctx context.Context, interval time.Duration, show func() error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := show()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}
