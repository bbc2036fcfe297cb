// Package faultnet is a network in memory that loses, delays, duplicates,
// reorders and cuts, for simulations of whole clusters in one process.
//
// A Network holds one transport.Transport per running node. It keeps the rules
// of the real one: connections are made in the background, both sides check
// each other's hello first (transport.CheckPeer), a message without a connection
// is dropped and Handler.Unreachable follows once, messages of one lane arrive
// in the order they were sent. Faults then break what raft must stand:
//
//	drop       a message vanishes, and nobody is told
//	duplicate  it arrives once more, later
//	reorder    it is overtaken by later messages of its lane
//	slow       a link takes longer
//	cut        one direction of a link, or both, carries nothing: its connections
//	           are lost, and what would arrive meanwhile; they are made anew after
//	           Heal, within Options.Redial
//
// Every message travels as bytes of the real codec and is decoded for each
// delivery, so that no two nodes, and no two deliveries, share memory. When it
// arrives the sent message is encoded again: a difference means that its sender
// changed it after Send, and is counted as Mutated.
//
// # Crash and restart
//
// Closing a transport is the crash of its node. Nothing is delivered to it any
// more, and what was on the way to it is lost with its connections; what it had
// sent still arrives. Network.Transport then makes a new one under the same
// name, which connects with fresh hellos.
//
// # Time and chance
//
// All waiting is done with timers, so in a testing/synctest bubble time is
// virtual; the Network must be made and used inside. Faults are chosen by a
// generator seeded with Options.Seed. Which message meets which choice depends
// on the scheduling of the senders, which is not seeded.
//
// # Goroutines
//
// A transport has two, owned by it: one delivers to its handler, one connects to
// its peers and calls Unreachable. Its Close waits for both. A Network has none.
package faultnet
