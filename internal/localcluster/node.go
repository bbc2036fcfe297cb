package localcluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// node is one node of a cluster and its process, if it runs.
type node struct {
	options      *Options
	name         string
	dir, logFile string
	grpc, http   *port
	cluster      string
	// advertise is where the others reach it; empty: where it listens.
	advertise string
	// spare: it is no founder, it joins.
	spare bool

	mu      sync.Mutex
	process *process // of the last start; nil before the first
	// entry is how it enters the cluster, if not as a founder.
	entry []string
}

// advertised is the address at which the others reach the node.
func (n *node) advertised() string {
	if n.advertise != "" {
		return n.advertise
	}
	return n.grpc.address
}

// args returns the command line behind the program's name.
func (n *node) args() []string {
	args := []string{
		"node", "--name", n.name, "--data-dir", n.dir,
		"--listen", n.grpc.address, "--http-listen", n.http.address,
	}
	if n.advertise != "" {
		args = append(args, "--advertise", n.advertise)
	}
	n.mu.Lock()
	entry := n.entry
	n.mu.Unlock()
	if entry == nil {
		entry = []string{"--cluster", n.cluster}
	}
	args = append(args, entry...)
	args = append(args, n.options.ExtraArgs...)
	if n.options.NodeArgs != nil {
		args = append(args, n.options.NodeArgs(n.name)...)
	}
	return args
}

func (n *node) current() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

func (n *node) running() bool {
	p := n.current()
	return p != nil && p.running()
}

// start starts the process, with its output at the end of the log file.
func (n *node) start() error {
	if n.running() {
		return fmt.Errorf("node %s runs already", n.name)
	}
	log, err := os.OpenFile(n.logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return fmt.Errorf("local cluster: %w", err)
	}
	defer log.Close() // the process has its own
	if err := n.releasePorts(); err != nil {
		return err
	}
	command := exec.Command(n.options.Binary, n.args()...)
	command.Env = append(os.Environ(), n.options.Env...)
	command.Stdout, command.Stderr = log, log
	p, err := startProcess(command)
	if err != nil {
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	n.mu.Lock()
	n.process = p
	n.mu.Unlock()
	return nil
}

func (n *node) releasePorts() error { return n.eachPort((*port).release) }

func (n *node) freePorts() error { return n.eachPort((*port).free) }

func (n *node) eachPort(do func(*port) error) error {
	var errs []error
	for _, p := range []*port{n.grpc, n.http} {
		if p != nil {
			errs = append(errs, do(p))
		}
	}
	return errors.Join(errs...)
}

// end asks the system to end the process and does not wait for it.
func (n *node) end() {
	if p := n.current(); p != nil && p.running() {
		// It fails only if the process has ended, which is what is wanted.
		_ = p.command.Process.Kill()
	}
}

// kill ends the process, if it runs, and waits until it is gone.
func (n *node) kill() {
	if p := n.current(); p != nil {
		p.kill()
	}
}

func (n *node) signal(s os.Signal) error {
	p := n.current()
	if p == nil || !p.running() {
		return fmt.Errorf("node %s does not run", n.name)
	}
	if err := p.signal(s); err != nil {
		return fmt.Errorf("node %s: %v: %w", n.name, s, err)
	}
	return nil
}

// wipe removes all that is in the node's directory, but not the directory, which
// may be a mount.
func (n *node) wipe() error {
	entries, err := os.ReadDir(n.dir)
	if err != nil {
		return fmt.Errorf("local cluster: %w", err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(n.dir, entry.Name())); err != nil {
			return fmt.Errorf("local cluster: %w", err)
		}
	}
	return nil
}
