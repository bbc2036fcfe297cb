package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// linkRate tells the process inside the namespace how fast its network is to be.
const linkRate = "STREAMRAFT_BENCH_LINK"

// runOnLink runs this command again in a network namespace of its own, whose
// loopback can be slowed down without touching the machine's. The namespace goes
// with the processes in it. All traffic of the nodes and of this program shares
// the rate, both ways.
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
		case strings.HasPrefix(arg, "--link="):
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
		var ended *exec.ExitError
		if errors.As(err, &ended) {
			// It has said why.
			return withExitCode(ended.ExitCode(), errors.New("bench: the run in a network namespace of its own failed, see above"))
		}
		return fmt.Errorf("bench: --link runs in a network namespace of its own, and making one needs root: %w", err)
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
		return fmt.Errorf("bench: --link needs the programs ip and tc of iproute2, and root: %s %s: %w: %s",
			name, strings.Join(arguments, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
