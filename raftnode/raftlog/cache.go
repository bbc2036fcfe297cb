package raftlog

// entryOverhead estimates what an entry takes in memory besides its data.
const entryOverhead = 128

// cached names a cached entry: the ref of that index, if it still points there.
type cached struct {
	group  *Group
	index  uint64
	place  *segment
	offset uint32
}

// cache bounds the entries the refs of all groups hold. It is first in, first
// out: what is read from the log is mostly what was just appended. It belongs to
// the append goroutine.
type cache struct {
	limit int64
	bytes int64
	count int

	queue []cached // queue[head:], oldest first; some may be dead
	head  int
}

func cachedBytes(r *ref) int64 { return int64(r.dataBytes()) + entryOverhead }

// added counts an entry that was just put into r, under g's lock.
func (c *cache) added(g *Group, i uint64, r *ref) {
	c.bytes += cachedBytes(r)
	c.count++
	c.queue = append(c.queue, cached{g, i, r.segment, r.offset})
}

// drop takes the entry out of r, under its group's lock. What the queue says of
// it is dead from then on.
func (c *cache) drop(r *ref) {
	if r.entry == nil {
		return
	}
	c.bytes -= cachedBytes(r)
	c.count--
	r.entry = nil
}

// find returns the ref a queue element names, nil if it is dead.
func (c *cached) find() *ref {
	x := &c.group.index
	if c.index < x.first || c.index > x.last {
		return nil
	}
	r := x.at(c.index)
	if r == nil || r.entry == nil || r.segment != c.place || r.offset != c.offset {
		return nil
	}
	return r
}

// shrink evicts the oldest entries until the rest fits, and forgets the dead
// where they outnumber the living, so that the queue stays in proportion to
// what is cached.
func (c *cache) shrink() {
	for c.bytes > c.limit && c.head < len(c.queue) {
		e := &c.queue[c.head]
		c.head++
		if r := e.find(); r != nil {
			e.group.mu.Lock()
			c.drop(r)
			e.group.mu.Unlock()
		}
		*e = cached{}
	}
	switch waiting := len(c.queue) - c.head; {
	case waiting > 2*c.count+1024:
		live := c.queue[:0]
		for i := c.head; i < len(c.queue); i++ {
			if c.queue[i].find() != nil {
				live = append(live, c.queue[i])
			}
		}
		clear(c.queue[len(live):])
		c.queue, c.head = live, 0
	case c.head > 1024 && c.head > waiting:
		n := copy(c.queue, c.queue[c.head:])
		clear(c.queue[n:])
		c.queue, c.head = c.queue[:n], 0
	}
}
