// Package snapshottest is the conformance suite for the two sides of a state
// machine that make and take images, snapshot.Capturer and snapshot.Stager.
//
// Run tells whether a state machine keeps the promises that transfer and install
// rely on: an image holds one index and all of it; a delta adds up to the same
// state, and is refused where it is not legal; an image can be staged in part,
// staged again after a restart, prepared twice, given up without a trace; and a
// crash at any moment of an install leaves all of the old state or all of the
// new.
//
//	func TestImages(t *testing.T) {
//		snapshottest.Run(t, func(tb testing.TB, fsys vfs.FS, dir string, staged [][]byte) snapshottest.State {
//			return openMine(tb, fsys, dir, staged)
//		})
//	}
package snapshottest
