// Package clienttest has a scripted cluster for tests of programs that use
// package client: nodes that speak the gRPC services on loopback ports, keep
// records in memory, and fail the way the test says. There is no raft in it:
// the test names the leader.
//
// All methods may be called from any goroutine. Close waits for everything the
// cluster started.
package clienttest
