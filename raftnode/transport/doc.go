// Package transport moves raft messages between the nodes of a cluster.
package transport
