// Package archtest keeps the shape of the module by machine: which package may
// import which, and what no file may contain. It holds tests only.
//
// Rules (each has a name, which its findings begin with):
//
//	imports    own packages import only what the table in imports_test.go allows
//	libraries  other modules are used only where the same file says
//	deps       what runs at a user's place links neither raft nor a database
//	doc        every package has a doc.go with its contract
//	comments   everything exported has a comment
//	exits      a library neither exits the process nor panics on input
//	init       no init function: nothing happens because a package was linked
//	sleeps     no test waits by sleeping
//	lines      no file is longer than 500 lines
//
// A rule is a function from packages to findings. Each is run twice: over the
// module, where it must find nothing, and over the small module in
// testdata/bad, where it must find exactly what was put there, so that a rule
// that has stopped working is noticed.
//
// Generated files and directories named testdata are left out. The import rules
// look at what a package's own files import, not its tests.
package archtest
