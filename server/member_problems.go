package server

import "sync"

// planProblems are why plans have not gone on, by node; only the leader of the
// meta group knows.
type planProblems struct {
	mu    sync.Mutex
	texts map[string]string
}

// set notes a problem, or that there is none.
func (p *planProblems) set(node string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.texts, node)
		return
	}
	if p.texts == nil {
		p.texts = make(map[string]string)
	}
	p.texts[node] = problemText(err)
}

func (p *planProblems) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.texts)
}

func (p *planProblems) get(node string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.texts[node]
}
