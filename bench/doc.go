// Package bench measures clusters of real nodes: on disk, on loopback sockets,
// three in one process. Today it holds Go benchmarks, whose figures are the base
// that later work is compared with (docs/performance.md); run them with
//
//	go test ./bench -run '^$' -bench Put -benchtime 10s -count 10 | tee new.txt
//
// and compare two outputs with benchstat.
package bench
