package cliui

import (
	"io"
	"os"

	"golang.org/x/term"
)

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// ClearScreen clears a terminal and puts the cursor at its top left, for output
// that is redrawn.
func ClearScreen(w io.Writer) error {
	_, err := io.WriteString(w, "\x1b[H\x1b[2J")
	return err
}
