package snapshot

import (
	"testing"
	"time"
)

func init() {}

func TestSleeps(t *testing.T) {
	time.Sleep(time.Second)
	<-time.After(time.Second)
	select {
	case <-time.After(time.Second):
	case <-t.Context().Done():
		panic("allowed in tests")
	}
}
