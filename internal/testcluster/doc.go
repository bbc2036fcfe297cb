// Package testcluster is the simulator: whole clusters of real nodes in one
// process and in virtual time, with faults.
//
// A run is one cluster of raftnode.Node with the real log and the real kv state
// machine on memory file systems that crash, connected by internal/faultnet. It
// lives in one testing/synctest bubble: Simulate must be called inside of one,
// and everything it started has ended when it returns.
//
// # What a run does
//
// The nodes found a cluster. Clients write and read, while a plan of faults is
// carried out: links are cut, slow or lossy, nodes crash with and without what
// was not synced, disks fail a sync or run full, clocks go wrong, leaderships
// move. First the run injures; then it heals everything and demands recovery:
// every node runs again, a write succeeds, all replicas apply the same index and
// have the same digest there, within a bounded time.
//
// # What is checked
//
// While it runs, by the checker (file checker.go): one leader per term; entries
// of one index and term are equal everywhere; every state machine applies every
// index once, in order, the same entry with the same results as all others and
// as before a crash; votes and terms never go back; an acknowledgement to a peer
// or a client holds after every crash; a log is cut only below what is durable;
// nothing is sent or acknowledged after a failed sync; what was refused as
// certainly not applied never is. Each log is read in the state a crash left it
// before its node starts again (inspect.go).
//
// Afterwards, from what the clients saw alone (Report.CheckHistory): the history
// is linearizable (porcupine) by three models: registers with revisions and
// transactions, sets written by batches and read as a whole, and swaps in client
// sessions, of which each happens exactly once.
//
// # Seeds
//
// A seed fixes the plan of faults, the options of the cluster and what each
// client does next. It does not fix the scheduling of goroutines, nor raft's
// election timeouts: the same seed run again is a similar run, not the same. A
// failure therefore comes with the trace of its events.
//
// # Goroutines
//
// A run owns its nodes, its clients and the goroutine of Simulate, which carries
// out the faults. Methods of a Report are for one goroutine, after the run.
package testcluster
