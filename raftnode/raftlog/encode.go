package raftlog

// encoder builds one batch in a buffer it uses again for the next one.
type encoder struct {
	buf     []byte
	used    int
	segment uint64
	batch   uint64
	records uint32
}

// begin starts a batch whose records take bodyBytes.
func (e *encoder) begin(segment, batch uint64, bodyBytes int) {
	size := align(headerSize + bodyBytes)
	if cap(e.buf) < size {
		e.buf = make([]byte, size, size+size/4)
	}
	e.buf = e.buf[:size]
	e.used, e.segment, e.batch, e.records = headerSize, segment, batch, 0
}

// record returns the payload of the next record, to be filled in before seal.
func (e *encoder) record(payload int) []byte {
	return e.buf[e.used+recordHeaderSize:][:payload:payload]
}

// seal completes the record whose payload was just filled in.
func (e *encoder) seal(group uint64, k kind, payload int) {
	end := e.used + recordHeaderSize + payload
	putRecord(e.buf[e.used:end:end], e.segment, e.batch, group, k)
	e.used = end
	e.records++
}

func (e *encoder) step(s *step) {
	id := s.group.id
	if s.marker {
		putMarker(e.record(markerPayload), *s.update.Marker, s.update.Reset)
		e.seal(id, kindMarker, markerPayload)
	}
	for _, entry := range s.update.Entries {
		n := entryPayload + len(entry.Data)
		putEntry(e.record(n), entry.GetType(), entry.GetTerm(), entry.GetIndex(), entry.Data)
		e.seal(id, kindEntry, n)
	}
	if s.hasHS {
		putHardState(e.record(hardStatePayload), s.hs)
		e.seal(id, kindHardState, hardStatePayload)
	}
}

// headBytes is the size of a head that names n groups, without header.
func headBytes(n int) int {
	return recordHeaderSize + headPayload + n*(recordHeaderSize+groupPayload)
}

// head encodes the records of a segment's head.
func (e *encoder) head(firstNeeded uint64, groups []*Group) {
	putUint64s(e.record(headPayload), firstNeeded)
	e.seal(0, kindHead, headPayload)
	for _, g := range groups {
		h := g.head()
		putGroupHead(e.record(groupPayload), &h)
		e.seal(g.id, kindGroup, groupPayload)
	}
}

// head returns what a head says about g.
func (g *Group) head() groupHead {
	h := groupHead{marker: g.marker, last: g.index.last, lastTerm: g.marker.Term, hardState: g.hardState}
	if g.index.last >= g.index.first {
		if r := g.index.at(g.index.last); r != nil {
			h.lastTerm = r.term
		}
	}
	return h
}

// finish pads the batch and puts its header in front. The result is valid until
// the next begin.
func (e *encoder) finish(flags uint16, salt, syncedThrough uint64) []byte {
	h := header{
		flags: flags, records: e.records, salt: salt, segment: e.segment, batch: e.batch,
		syncedThrough: syncedThrough, bodyBytes: uint64(e.used - headerSize),
	}
	size := align(e.used)
	clear(e.buf[e.used:size])
	h.put(e.buf)
	return e.buf[:size]
}
