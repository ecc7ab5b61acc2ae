package connector

import "sync"

// lane runs functions one after the other in a goroutine that exists while
// there is something to do.
type lane struct {
	mu     sync.Mutex
	queue  []func() // guarded by mu
	busy   bool     // guarded by mu
	closed bool     // guarded by mu
	idle   sync.WaitGroup
}

func newLane() *lane { return new(lane) }

// push queues f; false means that the lane is closed.
func (l *lane) push(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.queue = append(l.queue, f)
	if !l.busy {
		l.busy = true
		l.idle.Go(l.run)
	}
	return true
}

func (l *lane) run() {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.busy = false
			l.mu.Unlock()
			return
		}
		f := l.queue[0]
		l.queue[0] = nil
		l.queue = l.queue[1:]
		l.mu.Unlock()
		f()
	}
}

// close refuses more and waits for what was queued.
func (l *lane) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.idle.Wait()
}
