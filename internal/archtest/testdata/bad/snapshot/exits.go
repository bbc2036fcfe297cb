package snapshot

import (
	goerrors "errors"
	"log"
	exiting "os"
	"syscall"
)

func exits(n int) error {
	switch n {
	case 0:
		exiting.Exit(1)
	case 1:
		log.Fatalf("no")
	case 2:
		syscall.Exit(1)
	case 3:
		log.Panic("no")
	case 4:
		panic("no reason")
	case 5:
		// A comment that gives no reason:
		// invariant:
		panic("empty reason")
	case 6:
		// The caller checked n.
		// invariant: n is at most 5
		panic("allowed")
	case 7:
		// Same names, other packages: allowed.
		var os struct{ Exit func(int) }
		os.Exit(1)
	}
	return goerrors.New("os.Exit(1)")
}
