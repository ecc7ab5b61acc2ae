package nixl

import (
	"sync"
	"sync/atomic"
)

// gate lets at most max through at once. A free place costs one atomic step,
// where a buffered channel costs ten times that: it stands in the path of every
// post.
type gate struct {
	max     int32
	n       atomic.Int32 // inside
	waiting atomic.Int32

	mu   sync.Mutex
	cond sync.Cond
}

func newGate(limit int) *gate {
	g := &gate{max: int32(limit)}
	g.cond.L = &g.mu
	return g
}

func (g *gate) try() bool {
	for {
		v := g.n.Load()
		if v >= g.max {
			return false
		}
		if g.n.CompareAndSwap(v, v+1) {
			return true
		}
	}
}

func (g *gate) enter() {
	if g.try() {
		return
	}
	// Whoever leaves after this counts us; who left before has made room that
	// try sees.
	g.waiting.Add(1)
	g.mu.Lock()
	for !g.try() {
		g.cond.Wait()
	}
	g.mu.Unlock()
	g.waiting.Add(-1)
}

func (g *gate) leave() {
	g.n.Add(-1)
	if g.waiting.Load() > 0 {
		g.mu.Lock()
		g.cond.Signal()
		g.mu.Unlock()
	}
}
