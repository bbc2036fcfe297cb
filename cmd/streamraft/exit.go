package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/importer"
)

// Exit codes; documented in docs/cli.md and stable.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitUnavailable = 3
	exitNotFound    = 4
	exitUncertain   = 5
	exitRefused     = 6
	exitNodeFailed  = 7
	exitInterrupted = 130
)

// codedError is an error with an exit code of its own.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// withExitCode gives an error an exit code that its kind does not tell.
func withExitCode(code int, err error) error { return &codedError{code, err} }

// usageErrorf makes an error of wrong usage.
func usageErrorf(format string, args ...any) error {
	return withExitCode(exitUsage, fmt.Errorf(format, args...))
}

// exitCode returns the exit code of an error.
func exitCode(err error) int {
	var coded *codedError
	var bad *importer.BadRecordError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &coded):
		return coded.code
	// First of the outcomes: an error may match several, and this is the one
	// that a script must not take for a failure.
	case errors.Is(err, client.ErrUncertain):
		return exitUncertain
	case errors.Is(err, client.ErrNotFound):
		return exitNotFound
	case errors.As(err, &bad):
		return exitUsage
	case errors.Is(err, client.ErrFailed), errors.Is(err, client.ErrNoSpace):
		return exitNodeFailed
	case errors.Is(err, client.ErrInvalid), errors.Is(err, client.ErrRefused),
		errors.Is(err, client.ErrSessionExpired), errors.Is(err, client.ErrSequenceTooOld):
		return exitRefused
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, client.ErrNotLeader), errors.Is(err, client.ErrOverloaded),
		errors.Is(err, client.ErrDropped), errors.Is(err, context.DeadlineExceeded):
		return exitUnavailable
	}
	return exitFailure
}

// errorReport is how an error looks with --json.
type errorReport struct {
	Error    string `json:"error"`
	ExitCode int    `json:"exit_code"`
	// Outcome of a write: not_applied or uncertain; empty for all else.
	Outcome string `json:"outcome,omitempty"`
}

// reportError tells an error on the standard error output.
func reportError(w io.Writer, err error, code int, asJSON bool) {
	if !asJSON {
		fmt.Fprintf(w, "streamraft: %v\n", err)
		return
	}
	report := errorReport{Error: err.Error(), ExitCode: code}
	var e *client.Error
	if errors.As(err, &e) {
		switch e.Outcome {
		case client.OutcomeNotApplied:
			report.Outcome = "not_applied"
		case client.OutcomeUncertain:
			report.Outcome = "uncertain"
		}
	}
	_ = json.NewEncoder(w).Encode(report)
}
