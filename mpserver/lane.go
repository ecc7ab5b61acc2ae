package mpserver

import (
	"context"
	"sync"
)

// laneClass keeps apart what may overtake each other within one client
// (wire-protocol 4: the reference's normal and affinity pools).
type laneClass uint8

const (
	// laneRequest orders what a scheduler sends: FREE_LOOKUP_LOCKS before END_SESSION.
	laneRequest laneClass = iota
	// laneTransfer orders what a worker sends: stores, retrieves, registrations.
	laneTransfer
	laneClasses
)

// maxLaneBytes bounds the frames that wait in one lane, beside their number.
const maxLaneBytes = 2 << 30

// lane is the queue of one client and class: its requests run one at a time,
// in order, on any worker of the pool.
type lane struct {
	mu      sync.Mutex
	queue   []*request // guarded by mu
	head    int        // guarded by mu: queue[head:] waits
	bytes   int64      // guarded by mu
	running bool       // guarded by mu: in the pool's ready list or on a worker
}

// idle reports whether nothing waits or runs, so that a request may be
// answered by the reader without overtaking anybody.
func (l *lane) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.running && l.head == len(l.queue)
}

// waiting is the number of requests that have not started.
func (l *lane) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) - l.head
}

// push appends r. ok is false when the lane is full; ready is true when the
// lane must be handed to the pool.
func (l *lane) push(r *request, depth int) (ok, ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue)-l.head >= depth || l.bytes > maxLaneBytes {
		return false, false
	}
	if l.head > 0 && l.head == len(l.queue) {
		l.queue, l.head = l.queue[:0], 0
	}
	l.queue = append(l.queue, r)
	l.bytes += int64(r.size)
	ready = !l.running
	l.running = true
	return true, ready
}

// pop takes the next request; nil ends the lane's turn.
func (l *lane) pop() *request {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.head == len(l.queue) {
		l.running = false
		return nil
	}
	r := l.queue[l.head]
	l.queue[l.head] = nil
	l.head++
	l.bytes -= int64(r.size)
	return r
}

// pool is the bounded set of workers that run lanes.
type pool struct {
	n       int
	run     func(*request)
	mu      sync.Mutex
	cond    *sync.Cond
	ready   []*lane // guarded by mu: each lane at most once
	busy    int     // guarded by mu
	stopped bool    // guarded by mu
	started bool    // guarded by mu
	wg      sync.WaitGroup
}

func newPool(n int, run func(*request)) *pool {
	p := &pool{n: n, run: run}
	p.cond = sync.NewCond(&p.mu)
	return p
}

func (p *pool) start() {
	p.mu.Lock()
	p.started = true
	p.mu.Unlock()
	for range p.n {
		p.wg.Go(p.worker)
	}
}

// submit schedules l. It never blocks.
func (p *pool) submit(l *lane) {
	p.mu.Lock()
	p.ready = append(p.ready, l)
	p.mu.Unlock()
	p.cond.Signal()
}

func (p *pool) worker() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for len(p.ready) == 0 {
			if p.stopped {
				return
			}
			p.cond.Wait()
		}
		l := p.ready[0]
		p.ready[0] = nil
		p.ready = p.ready[1:]
		p.busy++
		p.mu.Unlock()
		// One request a turn: a client with a full lane does not starve others.
		r := l.pop()
		if r != nil {
			p.run(r)
		}
		p.mu.Lock()
		p.busy--
		if r != nil {
			p.ready = append(p.ready, l)
		} else if p.stopped {
			p.cond.Broadcast()
		}
	}
}

// drain ends the workers once everything that waits has been answered; it
// reports whether that happened before ctx ended.
func (p *pool) drain(ctx context.Context) bool {
	p.mu.Lock()
	p.stopped = true
	started := p.started
	p.mu.Unlock()
	p.cond.Broadcast()
	if !started {
		return true
	}
	done := make(chan struct{})
	go func() {
		p.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
