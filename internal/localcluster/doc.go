// Package localcluster runs real streamraft nodes as processes on loopback, for
// the demonstration and for tests: each node is a process of its own, so that it
// can be killed, frozen and stopped as on a real machine.
//
// A Cluster lives in a directory of the caller: DIR/n1, DIR/n2, ... are the data
// directories, DIR/n1.log, ... what the processes print. The directory stays;
// whoever made it removes it after Close.
//
// # Ports
//
// Ports are chosen at random below the range that systems use for outgoing
// connections, and held open until their node starts. Where another process
// takes one in between, Start begins again with others. They stay the same over
// restarts of a node, for they are its identity to its peers, and are claimed
// until Close, so that no other Cluster on the machine takes one while its node
// is down.
//
// # Processes
//
// Close kills every process and waits until it is gone. Should this process die
// first, in whatever way, the kernel kills the nodes (Linux only; elsewhere nodes
// outlive a parent that was killed). Nodes do not receive the signals that a
// terminal sends to its foreground programs on Linux: their owner decides how
// they end.
//
// # Goroutines
//
// All methods may be called from any goroutine; those that start, end or freeze
// the same node must not overlap. One goroutine per process waits for its end.
package localcluster
