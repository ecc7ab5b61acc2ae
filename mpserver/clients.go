package mpserver

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// client is one ZMQ identity: one connection of one role of one engine.
type client struct {
	identity []byte
	lanes    [laneClasses]lane
	// goneAt is when the connection ended, in unix nanoseconds; 0 while it stands.
	goneAt atomic.Int64
	fd     int // guarded by clients.mu

	streamMu sync.Mutex
	streams  *simplelru.LRU[string, stream] // guarded by streamMu: by uid
}

func (c *client) isGone() bool { return c.goneAt.Load() != 0 }

// goneFor reports whether the connection ended at least d before now.
func (c *client) goneFor(d time.Duration, now time.Time) bool {
	at := c.goneAt.Load()
	return at != 0 && now.UnixNano()-at >= int64(d)
}

// noDescriptor marks a connection without one (inproc).
const noDescriptor = -1

// clients is the table of connections. A descriptor belongs to one connection
// at a time, but its number is used again at once, and events of the monitor
// arrive beside the messages, not between them: stale counts the ends that are
// still to be announced for earlier owners of a number.
type clients struct {
	mu    sync.Mutex
	byID  map[string]*client // guarded by mu
	byFD  map[int]*client    // guarded by mu
	stale map[int]int        // guarded by mu
}

func newClients() *clients {
	return &clients{byID: map[string]*client{}, byFD: map[int]*client{}, stale: map[int]int{}}
}

// get returns the client of an identity, nil if it has not spoken yet.
func (t *clients) get(identity []byte) *client {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[string(identity)]
}

// connected notes that identity speaks over descriptor fd.
func (t *clients) connected(identity []byte, fd int) *client {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byID[string(identity)]
	if c == nil {
		c = &client{identity: append([]byte(nil), identity...)}
		t.byID[string(identity)] = c
	} else if t.byFD[c.fd] == c {
		delete(t.byFD, c.fd)
	}
	c.goneAt.Store(0)
	c.fd = fd
	if fd == noDescriptor {
		return c
	}
	if old := t.byFD[fd]; old != nil && old != c {
		// The number has a new owner, so the old connection has ended; its
		// event is on its way.
		old.goneAt.CompareAndSwap(0, time.Now().UnixNano())
		t.stale[fd]++
	}
	t.byFD[fd] = c
	return c
}

// accepted notes a new connection on fd: whoever had the number is gone.
func (t *clients) accepted(fd int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.stale, fd) // ends come before the next accept of the same number
	if old := t.byFD[fd]; old != nil && old.isGone() {
		delete(t.byFD, fd)
	}
}

// disconnected notes that the connection on fd has ended.
func (t *clients) disconnected(fd int, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.stale[fd]; n > 0 {
		t.stale[fd] = n - 1
		return
	}
	if c := t.byFD[fd]; c != nil {
		c.goneAt.CompareAndSwap(0, now.UnixNano())
		delete(t.byFD, fd)
	}
}

// sweep forgets the clients whose connection ended at least grace ago and
// whose lanes are empty.
func (t *clients) sweep(grace time.Duration, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, c := range t.byID {
		if !c.goneFor(grace, now) {
			continue
		}
		idle := true
		for i := range c.lanes {
			idle = idle && c.lanes[i].idle()
		}
		if idle {
			delete(t.byID, id)
			if t.byFD[c.fd] == c {
				delete(t.byFD, c.fd)
			}
		}
	}
}

// queued is the number of requests that wait in lanes.
func (t *clients) queued() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, c := range t.byID {
		for i := range c.lanes {
			n += c.lanes[i].waiting()
		}
	}
	return n
}
