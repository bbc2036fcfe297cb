// Package raftnode imports what it must not.
package raftnode
