package raftnode

// WaitingReads returns how many reads wait for an applied index.
func WaitingReads(g *Group) int {
	g.waiters.mu.Lock()
	defer g.waiters.mu.Unlock()
	return len(g.waiters.waiting)
}
