// Package server is one streamraft node as a library: it wires the groups of
// raftnode with kv state machines, the gRPC services and the HTTP pages, from a
// Config.
//
// # Life
//
//	Open: listen -> serve -> (found) -> open log and state -> running
//	running -> Shutdown: not ready -> hand leaderships over -> end streams -> closed
//	running -> failed (Failed is closed; Status, metrics and health go on) -> Close
//
// Open listens before it touches the directory, so a port that is taken costs
// nothing. From then on AdminService.Status, health and the HTTP pages answer;
// all else answers UNAVAILABLE until Open returned. Close and Shutdown wait for
// every goroutine of the server.
//
// # Writes
//
// A write is checked against the node's limits, encoded and submitted to its
// group; nothing is answered before it is durable on a quorum and applied here.
// Unary calls run on gRPC's goroutines. A Write stream has one receiving and
// one sending goroutine; results are handed from the group's apply goroutine to
// the sender through a slice, so an operation costs no goroutine.
//
// # Reads
//
// A read first waits in raftnode.Group.Read for what its consistency needs and
// then takes its view of the local state; the answer tells the index of exactly
// the state it was read from.
//
// # Membership
//
// A change of a node is a plan in the registry space of the meta group
// (member_plan.go). The leader of that group carries it out (member_driver.go):
// it asks the leader of each group for one step at a time (member_group.go),
// which looks first what is done, and notes what was. A node with --join or
// --replace asks for such a plan at its start (join.go), and Open returns once it
// is durable.
//
// # Bounds
//
// Everything a peer or client can make the node hold is bounded: connections
// and streams (Config), messages (8 MiB), writes in flight per node
// (Config.MaxInflightBytes) and per stream (16 MiB with their results), a page
// of a Range (10,000 records, 3 MiB, or a single record), Ranges at a time, the
// time of a unary call (2 minutes). What is over a bound waits, by not being
// read, or is refused with its reason; nothing is queued without limit.
//
// # Errors
//
// An error status of KvService carries a kvv1.Failure whose Reason says what is
// known of the outcome; failure.go holds the mapping.
package server
