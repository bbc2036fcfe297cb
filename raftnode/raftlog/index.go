package raftlog

import "go.etcd.io/raft/v3/raftpb"

// ref says where an entry is.
type ref struct {
	segment *segment      // nil: not found (yet); only while Open replays
	entry   *raftpb.Entry // nil: not cached
	term    uint64
	offset  uint32 // of the record in the segment
	bytes   uint32 // of the whole record
}

// dataBytes is the length of the entry's data.
func (r *ref) dataBytes() int { return int(r.bytes) - recordHeaderSize - entryPayload }

const (
	pageBits = 6
	pageLen  = 1 << pageBits
)

type page [pageLen]ref

// index maps the indexes first..last of a group, without a gap, to refs. It is
// made of pages aligned to the index, so that appending, cutting in front and
// truncating behind never copy refs. A nil page holds refs that are all zero:
// Open begins with what a head promises and fills in what it finds.
type index struct {
	first, last uint64 // last == first-1: empty
	pages       []*page
	firstPage   uint64 // number of pages[0]: its indexes begin at firstPage<<pageBits
}

// reset empties the index; the next entry is at first.
func (x *index) reset(first uint64) {
	*x = index{first: first, last: first - 1, firstPage: first >> pageBits}
}

// expect makes room for refs of first..last that are not known yet.
func (x *index) expect(last uint64) {
	x.last = last
	if last >= x.first {
		x.pages = make([]*page, last>>pageBits-x.firstPage+1)
	}
}

// at returns the ref of i, which must be in first..last; nil in a nil page.
func (x *index) at(i uint64) *ref {
	p := x.pages[i>>pageBits-x.firstPage]
	if p == nil {
		return nil
	}
	return &p[i&(pageLen-1)]
}

// make returns the ref of i, in first..last, to be filled in.
func (x *index) make(i uint64) *ref {
	p := &x.pages[i>>pageBits-x.firstPage]
	if *p == nil {
		*p = new(page)
	}
	return &(*p)[i&(pageLen-1)]
}

// push adds a ref behind the last one and returns it to be filled in.
func (x *index) push() *ref {
	x.last++
	if x.last>>pageBits-x.firstPage == uint64(len(x.pages)) {
		x.pages = append(x.pages, nil)
	}
	return x.make(x.last)
}

// truncate drops i..last.
func (x *index) truncate(i uint64) {
	n := 0
	if i > x.first {
		n = int((i-1)>>pageBits - x.firstPage + 1)
	}
	clear(x.pages[n:])
	x.pages = x.pages[:n]
	if n > 0 && x.pages[n-1] != nil {
		clear(x.pages[n-1][(i-1)&(pageLen-1)+1:])
	}
	x.last = i - 1
}

// cut drops first..i, all in the index.
func (x *index) cut(i uint64) {
	if i >= x.last {
		x.reset(i + 1)
		return
	}
	x.first = i + 1
	n := x.first>>pageBits - x.firstPage
	clear(x.pages[:n])
	x.pages = x.pages[n:]
	x.firstPage += n
	if x.pages[0] != nil {
		clear(x.pages[0][:x.first&(pageLen-1)])
	}
}

// each calls f for every ref of lo..hi that is known.
func (x *index) each(lo, hi uint64, f func(i uint64, r *ref)) {
	for i := lo; i <= hi; i++ {
		r := x.at(i)
		if r == nil {
			i |= pageLen - 1 // the rest of the page is unknown too
			continue
		}
		if r.segment != nil {
			f(i, r)
		}
	}
}

// firstMissing returns the first index whose entry is not known.
func (x *index) firstMissing() (uint64, bool) {
	for i := x.first; i <= x.last; i++ {
		if r := x.at(i); r == nil || r.segment == nil {
			return i, true
		}
	}
	return 0, false
}
