package localcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/streamraft/streamraft/client"
)

// Cluster is a set of nodes on this machine. Nodes are named n1, n2, ...
type Cluster struct {
	options Options
	nodes   []*node
	byName  map[string]*node
	// client asks nodes for their status and digests; it connects lazily.
	client *client.Client

	closing  sync.Once
	closeErr error
}

// startAttempts bounds how often Start begins again because another process
// took one of its ports.
const startAttempts = 5

// Start makes a cluster and starts it: when it returns, all nodes run, the
// cluster is founded and every group has a leader. After an error nothing runs.
//
// The error of a node that ended is an *ExitError with what it printed.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	for attempt := 1; ; attempt++ {
		c, err := New(o)
		if err != nil {
			return nil, err
		}
		if err = c.StartAll(ctx); err == nil {
			return c, nil
		}
		err = errors.Join(err, c.Close())
		var exit *ExitError
		if attempt == startAttempts || !errors.As(err, &exit) || !exit.portTaken() {
			return nil, err
		}
		for _, n := range c.nodes {
			// The log goes too: it says that a port was taken.
			if err := errors.Join(n.wipe(), os.Remove(n.logFile)); err != nil {
				return nil, err
			}
		}
	}
}

// New makes a cluster without starting its nodes: directories are made and
// ports held. Close it.
func New(o Options) (*Cluster, error) {
	if err := o.EnsureDefaults(); err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &Cluster{options: o, byName: map[string]*node{}}
	if err := c.makeNodes(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) makeNodes() error {
	var list []string
	for i := range c.options.Nodes + c.options.Spare {
		n := &node{options: &c.options, name: fmt.Sprintf("n%d", i+1), spare: i >= c.options.Nodes}
		c.nodes = append(c.nodes, n)
		c.byName[n.name] = n
		n.dir = filepath.Join(c.options.Dir, n.name)
		n.logFile = filepath.Join(c.options.Dir, n.name+".log")
		if err := os.MkdirAll(n.dir, 0o750); err != nil {
			return fmt.Errorf("local cluster: %w", err)
		}
		for _, p := range []**port{&n.grpc, &n.http} {
			held, err := holdPort()
			if err != nil {
				return fmt.Errorf("local cluster: %w", err)
			}
			*p = held
		}
		if c.options.Advertise != nil {
			var err error
			if n.advertise, err = c.options.Advertise(n.name, n.grpc.address); err != nil {
				return fmt.Errorf("local cluster: where %s is reached: %w", n.name, err)
			}
		}
		if !n.spare {
			list = append(list, n.name+"="+n.advertised())
		}
	}
	for _, n := range c.nodes {
		n.cluster = strings.Join(list, ",")
	}
	var err error
	if c.client, err = client.Open(context.Background(), client.Options{Endpoints: c.Endpoints(), Lazy: true}); err != nil {
		return fmt.Errorf("local cluster: %w", err)
	}
	return nil
}

// StartAll starts every node that does not run and waits until the cluster is
// founded and every group has a leader. Spare nodes that were never started stay
// so.
func (c *Cluster) StartAll(ctx context.Context) error {
	var names []string
	for _, n := range c.nodes {
		if n.spare && n.current() == nil {
			continue
		}
		names = append(names, n.name)
		if n.running() {
			continue
		}
		if err := n.start(); err != nil {
			return err
		}
	}
	return c.waitReady(ctx, names)
}

// Close kills every node, waits until all are gone and lets go of the ports. The
// directory stays. It may be called more than once.
func (c *Cluster) Close() error {
	c.closing.Do(func() {
		// First all, then wait: so that the last of three does not work on.
		for _, n := range c.nodes {
			n.end()
		}
		var errs []error
		for _, n := range c.nodes {
			n.kill()
			errs = append(errs, n.freePorts())
		}
		if c.client != nil {
			errs = append(errs, c.client.Close())
		}
		c.closeErr = errors.Join(errs...)
	})
	return c.closeErr
}

// Names returns the names of all nodes, n1 first.
func (c *Cluster) Names() []string {
	var names []string
	for _, n := range c.nodes {
		names = append(names, n.name)
	}
	return names
}

// Endpoints returns the gRPC addresses of all nodes, in order.
func (c *Cluster) Endpoints() []string {
	var endpoints []string
	for _, n := range c.nodes {
		endpoints = append(endpoints, n.grpc.address)
	}
	return endpoints
}

// Endpoint returns a node's gRPC address; empty for an unknown node.
func (c *Cluster) Endpoint(name string) string {
	if n := c.byName[name]; n != nil {
		return n.grpc.address
	}
	return ""
}

// HTTPEndpoint returns a node's HTTP address; empty for an unknown node.
func (c *Cluster) HTTPEndpoint(name string) string {
	if n := c.byName[name]; n != nil {
		return n.http.address
	}
	return ""
}

// DataDir returns a node's directory; empty for an unknown node.
func (c *Cluster) DataDir(name string) string {
	if n := c.byName[name]; n != nil {
		return n.dir
	}
	return ""
}

// FoundingList returns the --cluster list of the founders.
func (c *Cluster) FoundingList() string { return c.nodes[0].cluster }

// Args returns the arguments a node is started with, for messages that tell how
// to start it by hand; nil for an unknown node.
func (c *Cluster) Args(name string) []string {
	if n := c.byName[name]; n != nil {
		return n.args()
	}
	return nil
}

// Running tells whether a node's process runs, frozen or not.
func (c *Cluster) Running(name string) bool {
	n := c.byName[name]
	return n != nil && n.running()
}

// PID returns the process id of a running node; 0 for any other.
func (c *Cluster) PID(name string) int {
	if n := c.byName[name]; n != nil && n.running() {
		return n.process.command.Process.Pid
	}
	return 0
}

func (c *Cluster) node(name string) (*node, error) {
	if n := c.byName[name]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("local cluster: no node %q; there are %s", name, strings.Join(c.Names(), ", "))
}
