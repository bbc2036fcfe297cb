package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/spf13/cobra"
)

// linkRate tells the process inside the namespace how fast its network is to be.
const linkRate = "STREAMRAFT_BENCH_LINK"

// runOnLink runs this command again in a network namespace of its own, whose
// loopback can be slowed down without touching the machine's. The namespace goes
// with the processes in it.
func runOnLink(cmd *cobra.Command, rate string) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	var arguments []string
	for i := 1; i < len(os.Args); i++ {
		switch arg := os.Args[i]; {
		case arg == "--link":
			i++
		case len(arg) > 7 && arg[:7] == "--link=":
		default:
			arguments = append(arguments, arg)
		}
	}
	inner := exec.CommandContext(cmd.Context(), binary, arguments...)
	inner.Env = append(os.Environ(), linkRate+"="+rate)
	inner.Stdout, inner.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	inner.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	inner.Cancel = func() error { return inner.Process.Signal(syscall.SIGTERM) }
	if err := inner.Run(); err != nil {
		return fmt.Errorf("bench: in a network namespace of its own (this needs root): %w", err)
	}
	return nil
}

// limitLink slows the namespace's loopback down, where there is one.
func limitLink() error {
	rate := os.Getenv(linkRate)
	if rate == "" {
		return nil
	}
	return system("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "400ms")
}

// raiseLink switches the namespace's loopback on.
func raiseLink() error {
	if os.Getenv(linkRate) == "" {
		return nil
	}
	return system("ip", "link", "set", "lo", "up")
}

func system(name string, arguments ...string) error {
	if out, err := exec.Command(name, arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("bench: %s %v: %w: %s; it is part of iproute2", name, arguments, err, out)
	}
	return nil
}
