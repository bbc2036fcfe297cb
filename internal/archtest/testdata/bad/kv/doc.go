// Package kv is clean here: the state machine may use raftnode.
package kv
