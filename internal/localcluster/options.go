package localcluster

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Options says what to run. Dir is required.
type Options struct {
	// Binary is the streamraft program. Default: the running one.
	Binary string
	// Dir is where the nodes' directories and logs are; made if missing.
	Dir string
	// Nodes is how many nodes the cluster has, 1 to 9. Default 3.
	Nodes int
	// Spare is how many further nodes have a name and a directory and are no
	// founders: Join starts one. Together with Nodes at most 9.
	Spare int
	// ExtraArgs are given to every node after the arguments of this package.
	ExtraArgs []string
	// NodeArgs gives further arguments to one node. nil: none.
	NodeArgs func(node string) []string
	// Advertise is told where a node listens and returns where the others reach
	// it, such as the address of a relay. nil: where it listens.
	Advertise func(node, listens string) (address string, err error)
	// Env is added to the environment of the nodes.
	Env []string
	// StartTimeout bounds how long a node, or the whole cluster, may take until
	// it answers and knows a leader. Default 30 s.
	StartTimeout time.Duration
}

// EnsureDefaults fills in every field that is zero.
func (o *Options) EnsureDefaults() error {
	if o.Binary == "" {
		binary, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the running program: %w", err)
		}
		o.Binary = binary
	}
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = 30 * time.Second
	}
	return nil
}

// Validate tells what is wrong with the options.
func (o *Options) Validate() error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, errors.New("no directory"))
	}
	if o.Nodes < 1 || o.Nodes > 9 {
		errs = append(errs, fmt.Errorf("%d nodes: must be 1 to 9", o.Nodes))
	}
	if o.Spare < 0 || o.Nodes+o.Spare > 9 {
		errs = append(errs, fmt.Errorf("%d spare nodes beside %d: together at most 9", o.Spare, o.Nodes))
	}
	if o.StartTimeout < 0 {
		errs = append(errs, fmt.Errorf("StartTimeout %s is negative", o.StartTimeout))
	}
	if len(errs) > 0 {
		return fmt.Errorf("local cluster: %w", errors.Join(errs...))
	}
	return nil
}
