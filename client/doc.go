// Package client talks to a streamraft cluster: it finds the leader, follows
// it when it moves, retries what is safe to retry, and says honestly what it
// knows of a write's outcome when it gives up.
//
// # Outcomes
//
// A write ends in one of three ways:
//
//   - it returns no error: it is applied and durable on a majority;
//   - it returns an error that does not match ErrUncertain: it is certainly
//     not applied and never will be;
//   - it returns an error that matches ErrUncertain: it may be applied, now or
//     a little later. The client never sends such a write a second time, unless
//     it carries a client session.
//
// Reads and the other calls that change nothing twice are retried freely until
// their deadline.
//
// # What is retried
//
// A write that a node refused as NOT_LEADER, DROPPED, OVERLOADED or
// UNAVAILABLE, and a write that never left this process, is sent again until
// its deadline: at once where the refusal names the leader, with back-off and
// jitter otherwise. So is one that was refused as NO_SPACE, since a leader whose
// disk is full hands over; where the same node still leads after 2 s it fails
// with ErrNoSpace. A write that was sent and not answered when its stream
// ended is uncertain, unless the node ended the stream with UNAVAILABLE, by
// which it vouches that it answered everything it took: so a node that is
// stopped in order leaves nothing uncertain. With a client session (OpenClientSession) the replicas
// recognise a write they have seen, so that it too is sent again and is applied
// exactly once.
//
// # Nodes that do not answer
//
// A node that is frozen or cut off leaves its connections open. When it has not
// answered for Options.StallCheck, the client asks all nodes it knows who leads.
// If another node leads in a higher term, the stream of writes is closed: what
// was never sent and what carries a client session goes to the new leader, the
// rest is uncertain and fails at once. A call that is safe to repeat is abandoned
// and done there; a read also goes to another node if its own does not answer
// that question. Otherwise the client keeps waiting and asks again later.
//
// # Writes share one stream
//
// Put, Delete, DeleteRange, Txn and Batch of one Client travel over one
// pipelined stream to the leader: what many goroutines write at the same time is
// packed into few messages, and each waits for its own answer. NewWriter makes a
// further stream for a caller that wants many writes in flight from one
// goroutine.
//
// Writes that are in flight at the same time have no order among each other,
// as concurrent calls have none: one that is refused and sent again may be
// applied after one given later. WriterOptions.OrderKeys keeps the order of
// writes to the same key.
//
// # Goroutines
//
// All methods of Client, Writer, ClientSession and Pending may be called from
// any goroutine. A Client owns the goroutines of its writers; Close waits for
// them. A Writer has one sending goroutine, one receiving goroutine per open
// stream, one that watches deadlines, and one at a time that looks for another
// leader while a node does not answer.
package client
