// Package proctest holds tests only: of real streamraft processes that are
// killed, frozen, stopped, wiped, given bad input and a full disk, and of the
// demonstration that is interrupted. What they cannot show is what a power cut
// loses, since the page cache outlives a killed process; the crash tests of the
// packages below do.
//
// STREAMRAFT_LONG=1 repeats the kills 20 times instead of 3.
//
// The tests of a full disk mount a small file system and so need root on Linux;
// elsewhere they are skipped and say so.
package proctest
