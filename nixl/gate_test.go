package nixl

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestGate(t *testing.T) {
	g := newGate(3)
	var inside, most atomic.Int32
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for range 2000 {
				g.enter()
				n := inside.Add(1)
				for {
					m := most.Load()
					if n <= m || most.CompareAndSwap(m, n) {
						break
					}
				}
				inside.Add(-1)
				g.leave()
			}
		})
	}
	all.Wait()
	if m := most.Load(); m > 3 || m == 0 {
		t.Errorf("%d were inside at once, the limit is 3", m)
	}
	if g.n.Load() != 0 || g.waiting.Load() != 0 {
		t.Errorf("left over: %d inside, %d waiting", g.n.Load(), g.waiting.Load())
	}
}
