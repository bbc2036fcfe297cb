package snapshot

import (
	"slices"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// SendInfo describes an attempt at its source.
type SendInfo struct {
	// Transfer, Attempt and Group, and the node they go to.
	Transfer []byte
	Attempt  uint64
	Group    uint64
	Node     string
	// Image that is sent, its kind, the index it starts from, its index and term;
	// zero while there is none yet.
	Image     []byte
	Kind      snapshotv1.Kind
	FromIndex uint64
	Index     uint64
	Term      uint64
	// Phase it is in; Position in the queue.
	Phase    snapshotv1.Phase
	Position int
	// SentBytes of files in this attempt, WireBytes of them on the wire.
	SentBytes, WireBytes uint64
	// DoneBytes of TotalBytes of the image are at the receiver: what it had when
	// the attempt began and what was sent since. While the image is being made
	// they count that. RawBytes is what it holds uncompressed, if known.
	DoneBytes, TotalBytes, RawBytes uint64
	// BytesPerSecond is the rate of SentBytes over the last few seconds; of an
	// ended attempt, over the time it spent sending.
	BytesPerSecond uint64
	// Paced: the pacing held it back within the last two seconds. NoCredit is since when the receiver
	// takes no more; zero: it does.
	Paced    bool
	NoCredit time.Time
	// Started and Ended; Ended is zero while it runs.
	Started, Ended time.Time
	// Err is why it ended before the receiver had all it wants; nil otherwise.
	Err error
	// Stages is the time spent in queue, capture and send.
	Stages map[Stage]time.Duration
}

// pacedNotice is how long a wait for the pacing must be to be told: shorter ones
// cost nobody anything.
const pacedNotice = time.Millisecond

// maxEndedSends is how many ended attempts of a group are remembered.
const maxEndedSends = 16

// Sends lists the attempts that run.
func (s *Source) Sends() []SendInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	infos := make([]SendInfo, 0, len(s.attempts))
	for _, a := range s.attempts {
		infos = append(infos, a.info())
	}
	return infos
}

// EndedSends lists the last 16 attempts of each group that have ended, the
// latest first. Of attempts of one transfer that sent nothing, one after the
// other, only the last is there: a receiver that is refused for a while must
// not displace the rest.
func (s *Source) EndedSends() []SendInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var infos []SendInfo
	for _, group := range s.ended {
		infos = append(infos, group...)
	}
	slices.SortStableFunc(infos, func(a, b SendInfo) int { return b.Ended.Compare(a.Ended) })
	return infos
}

// remember keeps an ended attempt.
func (s *Source) remember(i SendInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.ended[i.Group]
	if n := len(list); n > 0 && i.SentBytes == 0 && list[n-1].SentBytes == 0 && list[n-1].Node == i.Node && string(list[n-1].Transfer) == string(i.Transfer) {
		list = list[:n-1]
	}
	if len(list) >= maxEndedSends {
		list = slices.Delete(list, 0, len(list)-maxEndedSends+1)
	}
	s.ended[i.Group] = append(list, i)
}

// info describes an attempt of now.
func (a *sending) info() SendInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	i := SendInfo{
		Transfer: a.open.Transfer, Attempt: a.open.Attempt, Group: a.open.Group, Node: a.open.Node,
		Phase: a.phase, Position: a.position, SentBytes: a.sent, WireBytes: a.wire, BytesPerSecond: a.meter.rate(now),
		DoneBytes: a.built[0], TotalBytes: a.built[1],
		Paced: a.paced(now), NoCredit: a.noCredit, Started: a.started, Stages: a.timeline.times(now),
	}
	if a.image != nil {
		m := a.image.Manifest()
		i.Image, i.Kind, i.FromIndex, i.Index, i.Term = m.Image, m.Kind, m.FromIndex, m.Index, m.Term
		i.DoneBytes, i.TotalBytes, i.RawBytes = min(a.resumed+a.sent, m.Bytes), m.Bytes, m.RawBytes
	}
	return i
}

// lastInfo describes an attempt that ends now.
func (a *sending) lastInfo(err error) SendInfo {
	i := a.info()
	i.Phase, i.Position, i.Paced, i.NoCredit = snapshotv1.Phase_PHASE_DONE, 0, false, time.Time{}
	i.Ended, i.Err = time.Now(), err
	i.BytesPerSecond = perSecond(i.SentBytes, i.Stages[StageSend])
	return i
}

// resumedBytes is what a receiver has of an image already.
func resumedBytes(m *snapshotv1.Manifest, done []bool, offset uint64) uint64 {
	for no, f := range m.Files {
		if done[no] {
			offset += f.Size
		}
	}
	return offset
}

func (a *sending) setResumed(bytes uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resumed = bytes
}

// count counts a chunk.
func (a *sending) count(raw, wire int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent += uint64(raw)
	a.wire += uint64(wire)
	a.meter.add(time.Now(), uint64(raw))
}

// waitsForPace notes that a wait for the pacing begins.
func (a *sending) waitsForPace(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waits = now
}

// waitedForPace notes that it ended; held tells that it was one worth the name.
func (a *sending) waitedForPace(now time.Time, held bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waits = time.Time{}
	if held {
		a.waited = now
	}
}

// paced tells that the pacing holds the attempt back, or did lately: between two
// waits a chunk goes, and nobody wants to see that flicker. a.mu is held.
func (a *sending) paced(now time.Time) bool {
	return !a.waits.IsZero() && now.Sub(a.waits) >= pacedNotice || !a.waited.IsZero() && now.Sub(a.waited) < a.source.opts.KeepaliveEvery
}

func (a *sending) heldBack() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.paced(time.Now())
}

func (a *sending) setNoCredit(since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noCredit = since
}
