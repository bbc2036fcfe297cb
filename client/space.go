package client

import (
	"time"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// defaultFullPatience is how long a leader whose disk is full may take to hand
// its leadership over. It needs some 100 ms; after this there is nobody who can
// take over.
const defaultFullPatience = 2 * time.Second

// fullLeader keeps how long one leader has refused for want of space. The zero
// value is of one that has not.
type fullLeader struct {
	address     string
	since, last time.Time
}

// refused notes a refusal and tells whether it is final: the same node has
// refused, and nothing else was heard, for patience. After a silence as long, the
// time begins anew: who led meanwhile is not known.
func (f *fullLeader) refused(address string, now time.Time, patience time.Duration) bool {
	if f.address != address || now.Sub(f.last) > patience {
		f.address, f.since = address, now
	}
	f.last = now
	return now.Sub(f.since) >= patience
}

// judge makes the verdict on a refusal for want of space final where it is, and
// forgets the refusals before any other verdict.
func (f *fullLeader) judge(v *verdict, address string, patience time.Duration) {
	if v.reason != kvv1.Reason_REASON_NO_SPACE {
		*f = fullLeader{}
		return
	}
	if f.refused(address, time.Now(), patience) {
		v.again = false
		v.message += "; it still leads after " + patience.String() + ": free space on it, or let another node take over"
	}
}
