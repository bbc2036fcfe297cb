package testcluster

import (
	"regexp"
	"runtime"
	"strings"
	"testing/synctest"
)

// leakedGoroutines returns the stacks of the goroutines of this bubble that are
// still there, except the caller's and the one that runs the bubble. A bubble
// with such goroutines ends in a panic; this tells before, and with the trace,
// whose they are.
func leakedGoroutines() (leaks []string) {
	synctest.Wait()
	bubble := regexp.MustCompile(`synctest bubble \d+`)
	own := make([]byte, 4<<10)
	own = own[:runtime.Stack(own, false)]
	name := bubble.FindString(firstLine(string(own)))
	if name == "" {
		return nil
	}
	all := make([]byte, 16<<20)
	all = all[:runtime.Stack(all, true)]
	for stack := range strings.SplitSeq(string(all), "\n\n") {
		header := firstLine(stack)
		if bubble.FindString(header) != name ||
			goroutineID(header) == goroutineID(string(own)) || strings.Contains(header, "[synctest.Run") || strings.Contains(stack, "testingSynctestTest(") {
			continue
		}
		leaks = append(leaks, stack)
	}
	return leaks
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// goroutineID returns the number in the header of a stack.
func goroutineID(header string) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(header, "goroutine "), " ")
	return id
}
