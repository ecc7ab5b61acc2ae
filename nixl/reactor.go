package nixl

import (
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// reactor is the goroutine of an agent that polls the transfers which somebody
// waits for, or nobody any more: those that were closed or cancelled while
// they ran, and whose memory is pinned until they end. One goroutine that asks
// for many in one call into C is what makes a thousand waiters affordable.
//
// It runs while it has transfers, and a little longer.
type reactor struct {
	agent *Agent
	kick  chan struct{} // holds a token: a transfer was added, or stop was called

	mu      sync.Mutex
	active  []*Transfer
	running bool
	stopped bool
	idle    chan struct{} // closed when the goroutine has ended

	// Scratch of the goroutine.
	batch   []*Transfer
	locked  []*Transfer
	reqs    []uintptr
	results []capi.Result
}

// The first pauses between looks are short; each fruitless look makes the next
// one half as long again, up to Config.PollPause.
const minPollPause = 20 * time.Microsecond

// pollChunk bounds one call into C, which holds a thread, and how many
// transfers are locked at once.
const pollChunk = 64

// reactorLinger is how long the goroutine waits for more before it ends.
const reactorLinger = 100 * time.Millisecond

func newReactor(a *Agent) *reactor {
	return &reactor{agent: a, kick: make(chan struct{}, 1)}
}

// watch looks after a transfer until it has ended or nobody is interested.
func (r *reactor) watch(t *Transfer) {
	r.mu.Lock()
	if !t.watched {
		t.watched = true
		r.active = append(r.active, t)
	}
	if !r.running && !r.stopped {
		r.running, r.idle = true, make(chan struct{})
		go r.run()
	}
	r.mu.Unlock()
	r.wake()
}

func (r *reactor) wake() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// stop ends the goroutine and waits for it. Transfers that still run stay in
// active.
func (r *reactor) stop() {
	r.mu.Lock()
	r.stopped = true
	idle := r.idle
	running := r.running
	r.mu.Unlock()
	r.wake()
	if running {
		<-idle
	}
}

// left are the transfers that never ended; after stop.
func (r *reactor) left() []*Transfer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*Transfer(nil), r.active...)
}

func (r *reactor) run() {
	pause := minPollPause
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		r.mu.Lock()
		r.batch = append(r.batch[:0], r.active...)
		if r.stopped {
			r.end()
			return
		}
		r.mu.Unlock()
		if len(r.batch) == 0 {
			if !r.linger(timer) {
				return
			}
			pause = minPollPause
			continue
		}
		if r.look() > 0 {
			pause = minPollPause
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
			pause = min(pause+pause/2, r.agent.cfg.PollPause)
		case <-r.kick:
			pause = minPollPause
		}
	}
}

// end marks the goroutine as gone; it needs mu and releases it.
func (r *reactor) end() {
	clear(r.batch)
	clear(r.locked)
	r.running = false
	close(r.idle)
	r.mu.Unlock()
}

// linger waits for a transfer; false means that the goroutine has ended.
func (r *reactor) linger(timer *time.Timer) bool {
	timer.Reset(reactorLinger)
	select {
	case <-r.kick:
		return true
	case <-timer.C:
	}
	r.mu.Lock()
	if len(r.active) > 0 {
		r.mu.Unlock()
		return true
	}
	r.end()
	return false
}

// look asks for all transfers of the batch, and returns how many left it.
func (r *reactor) look() int {
	gone := 0
	for rest := r.batch; len(rest) > 0; {
		n := min(len(rest), pollChunk)
		gone += r.lookAt(rest[:n])
		rest = rest[n:]
	}
	return gone
}

func (r *reactor) lookAt(chunk []*Transfer) int {
	gone := 0
	r.locked, r.reqs = r.locked[:0], r.reqs[:0]
	for _, t := range chunk {
		// Somebody who holds the lock is asking the library himself.
		if !t.mu.TryLock() {
			continue
		}
		switch {
		case t.state != xferRunning, t.waiters == 0 && t.abandoned == nil:
			gone++
			r.forget(t)
			t.mu.Unlock()
		case t.posting:
			t.mu.Unlock()
		default:
			r.locked = append(r.locked, t)
			r.reqs = append(r.reqs, t.req)
		}
	}
	if len(r.reqs) == 0 {
		return gone
	}
	if cap(r.results) < len(r.reqs) {
		r.results = make([]capi.Result, pollChunk)
	}
	results := r.results[:len(r.reqs)]
	r.agent.hot.StatusMany(r.reqs, results)
	for i, t := range r.locked {
		act := t.settle("wait", results[i])
		ended, failed := t.state == xferEnded, t.err
		if act&actRelease != 0 {
			t.state = xferReleased
		}
		if ended {
			gone++
			r.forget(t)
		}
		t.mu.Unlock()
		t.after(act, failed)
	}
	return gone
}

// forget takes a transfer out; it needs t.mu, so that a waiter who comes now
// watches it anew.
func (r *reactor) forget(t *Transfer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.watched = false
	for i, x := range r.active {
		if x == t {
			last := len(r.active) - 1
			r.active[i] = r.active[last]
			r.active[last] = nil
			r.active = r.active[:last]
			return
		}
	}
}
