package mpserver

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/lmcache-go/lmcache-go/internal/zmtp"
)

// client is one ZMQ identity: one connection of one role of one engine.
type client struct {
	lanes [laneClasses]lane
	// peer is the connection, nil when it has ended. One that chose its
	// identity and comes back under it has the same client.
	peer atomic.Pointer[zmtp.Peer]
	// goneAt is when the connection ended, in unix nanoseconds; 0 while it stands.
	goneAt atomic.Int64
	// spare is a request to be used again, of the goroutine that reads.
	spare *request
	// tap takes replies in place of a connection, for benchmarks of handlers.
	tap func(*outgoing)

	pickles pickleForms

	streamMu sync.Mutex
	streams  *simplelru.LRU[string, stream] // guarded by streamMu: by uid
}

func (c *client) isGone() bool { return c.goneAt.Load() != 0 }

// goneFor reports whether the connection ended at least d before now.
func (c *client) goneFor(d time.Duration, now time.Time) bool {
	at := c.goneAt.Load()
	return at != 0 && now.UnixNano()-at >= int64(d)
}

// disconnected notes that the connection has ended.
func (c *client) disconnected(p *zmtp.Peer, now time.Time) {
	if c.peer.CompareAndSwap(p, nil) {
		c.goneAt.Store(now.UnixNano())
	}
}

// clients is the table of connections.
type clients struct {
	mu   sync.Mutex
	byID map[string]*client // guarded by mu
}

func newClients() *clients { return &clients{byID: map[string]*client{}} }

// get returns the client of an identity, nil if it never connected.
func (t *clients) get(identity []byte) *client {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[string(identity)]
}

// connected notes a new connection. An identity has one at a time.
func (t *clients) connected(p *zmtp.Peer) *client { return t.attach(p.Identity(), p) }

func (t *clients) attach(identity []byte, p *zmtp.Peer) *client {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.byID[string(identity)]
	if c == nil {
		c = &client{}
		t.byID[string(identity)] = c
	}
	c.peer.Store(p)
	c.goneAt.Store(0)
	return c
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
