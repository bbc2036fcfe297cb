//go:build !linux

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// runOnLink is for Linux.
func runOnLink(*cobra.Command, string) error {
	return errors.New("bench: --link needs network namespaces, which this system does not have")
}

func limitLink() error { return nil }

func raiseLink() error { return nil }
