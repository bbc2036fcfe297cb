package raftnode

import (
	"context"
	"fmt"
	"log/slog"
)

// raftLogger gives raft's messages to slog. Raft's own Info is what an operator
// calls debug: elections are told through the listener. Panic and Fatal become
// a panic, which the step goroutine turns into a failed replica.
type raftLogger struct{ log *slog.Logger }

func (l raftLogger) printf(level slog.Level, format string, v []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, fmt.Sprintf(format, v...))
	}
}

func (l raftLogger) print(level slog.Level, v []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, fmt.Sprint(v...))
	}
}

func (l raftLogger) Debug(v ...any)                   { l.print(slog.LevelDebug-4, v) }
func (l raftLogger) Debugf(format string, v ...any)   { l.printf(slog.LevelDebug-4, format, v) }
func (l raftLogger) Info(v ...any)                    { l.print(slog.LevelDebug, v) }
func (l raftLogger) Infof(format string, v ...any)    { l.printf(slog.LevelDebug, format, v) }
func (l raftLogger) Warning(v ...any)                 { l.print(slog.LevelWarn, v) }
func (l raftLogger) Warningf(format string, v ...any) { l.printf(slog.LevelWarn, format, v) }
func (l raftLogger) Error(v ...any)                   { l.print(slog.LevelError, v) }
func (l raftLogger) Errorf(format string, v ...any)   { l.printf(slog.LevelError, format, v) }

// invariant: raft calls these only when its state is broken; run recovers.
func (l raftLogger) Fatal(v ...any) { panic(fmt.Sprint(v...)) }

// invariant: as Fatal.
func (l raftLogger) Fatalf(format string, v ...any) { panic(fmt.Sprintf(format, v...)) }

// invariant: as Fatal.
func (l raftLogger) Panic(v ...any) { panic(fmt.Sprint(v...)) }

// invariant: as Fatal.
func (l raftLogger) Panicf(format string, v ...any) { panic(fmt.Sprintf(format, v...)) }
