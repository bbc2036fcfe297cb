package localcluster

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
)

// process is one running or finished process.
type process struct {
	command *exec.Cmd
	// done is closed when the process is gone and its state is known.
	done chan struct{}
}

// startProcess starts a command and the goroutine that waits for its end.
func startProcess(command *exec.Cmd) (*process, error) {
	p := &process{command: command, done: make(chan struct{})}
	command.SysProcAttr = processAttributes()
	started := make(chan error, 1)
	go func() {
		// The kernel ties a child's life to the thread that made it, so this
		// thread must live as long as the child does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := command.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		defer close(p.done)
		// The exit status is in ProcessState, whatever the error.
		_ = command.Wait()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Path, err)
	}
	return p, nil
}

// running tells whether the process has not ended.
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// signal sends a signal; to a process that has ended it is an error.
func (p *process) signal(s os.Signal) error {
	return p.command.Process.Signal(s)
}

// kill ends the process at once and waits until it is gone.
func (p *process) kill() {
	// It fails only if the process has ended, which is what is wanted.
	_ = p.command.Process.Kill()
	<-p.done
}

// exitCode of a process that has ended; -1 if a signal ended it.
func (p *process) exitCode() int {
	<-p.done
	return p.command.ProcessState.ExitCode()
}
