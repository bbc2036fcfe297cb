// Package transport moves raft messages between the nodes of a cluster.
//
// The Transport interface is what raftnode needs; GRPC is its implementation
// over gRPC, the in-memory one for simulations is internal/faultnet. A
// transport may lose, delay, duplicate and reorder messages, as raft allows. It
// never alters a message, never delivers it to another node than it was sent
// to, and delivers nothing from a peer whose hello was not accepted.
//
// # Connections
//
// GRPC keeps two gRPC connections to each known peer, one per lane: urgent
// (votes, heartbeats, responses) and append (entries), so that bulk in front of
// a full window never delays an election. Each carries one stream of
// RaftService.Connect, in one direction: a node sends on the streams it opened
// and receives on the streams others opened to it. Both sides say hello first
// and each decides by Handler.CheckHello; a fresh hello is taken from the
// handler for every connection. A refusal travels as status FailedPrecondition
// (Aborted where it is only too early) with the reason as its text, and each
// side logs a reason once, until it changes. Lost and refused connections are tried again after an exponential,
// jittered back-off, which starts over after a connection that was stable.
//
// # Queues
//
// Send puts a message into the queue of its peer and lane and returns. The
// queue is bounded by messages and by bytes; a message that does not fit, or
// whose peer has no connection, is dropped and counted, and
// Handler.Unreachable follows once per disconnection or overflow burst. raft
// sends again what was lost. The lane's sender takes the whole queue at a time
// and packs the messages of all groups into batches, so heartbeats of many
// groups travel in one gRPC message.
//
// # Goroutines
//
// Per peer and lane one sender and, while connected, one goroutine that waits
// for the end of the stream; per accepted stream one receiver beside gRPC's
// handler; one that calls Handler.Unreachable. Close waits for all of them, so
// it must not be called from a Handler method. Handler methods must not block
// for long: a blocked Receive stops its lane of that peer (and only that).
//
// # Limits
//
// A gRPC message has at most MaxWireBytes, a raft message MaxMessageBytes and
// MaxEntries entries, a batch MaxBatchMessages messages, a hello MaxHelloBytes.
// All are checked before memory is taken for what they count. What violates
// them or does not decode ends the stream it came on with InvalidArgument.
package transport
