// Package importer moves records between files and a cluster: it reads JSON
// lines, CSV and directory trees, writes them through a pipelined client.Writer,
// and writes records back as JSON lines or as a tree.
//
// A Source is read by one goroutine, that of Run. What a person got wrong in
// the input is a BadRecordError that names the place; Run stops there or, if
// asked, counts it and goes on.
//
// # Trees
//
// The key of a file is a prefix and its path relative to the directory, with
// slashes. A file of more than ChunkBytes becomes several records, its parts,
// each with a key that says which part it is of how many:
//
//	path#00000000of00000003
//	path#00000001of00000003
//	path#00000002of00000003
//
// so that the parts stand in order, under the file's own path as their prefix,
// and a tree can be put together again from the keys alone. The parts of an
// older and longer or shorter version of a file have other keys; together with
// them a file is reported as ambiguous and not put together wrongly. A file
// whose own name ends like a part's is stored with the number signs in front of
// that ending doubled.
package importer
