// Package snapshot moves images of a group's state from a replica that has it to
// one that needs it, and keeps them on disk.
//
// An image is immutable and named by (group, index, random id). A state machine
// makes images (Capturer) and takes them (Stager); this package does what lies
// between: it keeps images with their expiry, sends them in chunks within a
// credit, stages what arrives so that nothing has to be sent twice, and checks
// it. Raft hears of an image only when everything fallible is done; that is
// raftnode's part.
package snapshot
