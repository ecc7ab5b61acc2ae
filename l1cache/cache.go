package l1cache

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/invariants"
)

// Cache is the store of objects in one arena. See the package comment.
type Cache struct {
	o     Options
	shift int // log2 of AlignBytes

	mu      sync.Mutex
	closed  bool                // guarded by mu
	broken  bool                // guarded by mu; a panic left the structures in doubt
	growing bool                // guarded by mu
	grow    chan struct{}       // guarded by mu; closed and replaced when the arena grows
	alloc   allocator           // guarded by mu
	scopes  scopes              // guarded by mu
	index   map[key]uint32      // guarded by mu; reserved, filling and published objects
	objects slab[object]        // guarded by mu
	lists   []recency           // guarded by mu; one, or see Policy
	clock   uint64              // guarded by mu; of stamps
	arc     arc                 // guarded by mu; of PolicyARC
	quotas  map[string]int64    // guarded by mu; by salt
	heads   []uint32            // guarded by mu; of a search through several lists
	waiters map[uint32][]func() // guarded by mu; lookups waiting for a filling object
	writes  list[*Reservation]  // guarded by mu; in the index, oldest deadline first
	leases  list[*Lease]        // guarded by mu; with holds, oldest deadline first
	n       counters            // guarded by mu
	search  uint32              // guarded by mu; number of the last search for a hole
	scratch []uint32            // guarded by mu; of a reservation or lookup
	victims []uint32            // guarded by mu; of an eviction
	ops     uint                // guarded by mu; for the self check
	sampler Sampler             // nil: nothing is followed

	alive    atomic.Bool
	stop     chan struct{}
	stopOnce sync.Once
	wg       sync.WaitGroup
	expiry   throttle
}

// New makes a cache in o.Arena and starts its background turn. The arena may
// still be growing. Close the cache before the arena.
func New(o Options) (*Cache, error) {
	o.setDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	c := &Cache{
		o: o, shift: bits.TrailingZeros(uint(o.AlignBytes)),
		grow: make(chan struct{}), growing: true,
		scopes: newScopes(), index: map[key]uint32{}, waiters: map[uint32][]func(){},
		stop: make(chan struct{}),
	}
	c.lists, c.quotas = make([]recency, 1), map[string]int64{}
	if o.Policy == PolicyARC {
		c.lists = make([]recency, 2)
		c.arc.seed = maphash.MakeSeed()
		for i := range c.arc.ghosts {
			c.arc.ghosts[i].at = map[uint64]uint64{}
		}
	}
	if s, ok := o.Observer.(Sampler); ok && o.SampleRate > 0 {
		c.sampler = s
	}
	if err := o.Arena.attach(c.onGrow); err != nil {
		return nil, err
	}
	c.onGrow()
	c.alive.Store(true)
	c.wg.Add(1)
	go c.loop()
	return c, nil
}

// Close stops the background turn, wakes everybody who waits for growth or for
// an object, and detaches from the arena. Reservations and transfers in
// progress keep their bytes as long as the arena is open; ending them is
// harmless. Further calls do nothing.
func (c *Cache) Close() error {
	c.stopOnce.Do(func() {
		close(c.stop)
		c.wg.Wait()
		c.o.Arena.detach()
		var fx effects
		c.closeLocked(&fx)
		c.flush(&fx)
	})
	return nil
}

func (c *Cache) closeLocked(fx *effects) {
	c.mu.Lock()
	defer c.unlock()
	c.closed = true
	close(c.grow)
	for slot := range c.waiters {
		c.settle(slot, fx)
	}
}

// Alive tells whether the background turn runs and the store is sound: a part
// of the server's health.
func (c *Cache) Alive() bool { return c.alive.Load() }

// unlock is deferred by every function that takes the lock. When the function
// panics, the structures may be half changed: the store is out of service from
// then on, but the lock is free and the panic goes on to whoever contains it.
func (c *Cache) unlock() {
	if r := recover(); r != nil {
		c.broken = true
		c.alive.Store(false)
		c.mu.Unlock()
		panic(r)
	}
	if invariants.Enabled && !c.broken {
		c.selfCheck()
	}
	c.mu.Unlock()
}

// selfCheck walks everything now and then, while that is cheap.
func (c *Cache) selfCheck() {
	const every, objectsMax = 32, 256
	if c.ops++; c.ops%every != 0 || c.objects.live() > objectsMax {
		return
	}
	if err := c.check(); err != nil {
		c.broken = true
		c.alive.Store(false)
		c.mu.Unlock()
		panic(fmt.Sprintf("l1cache: broken invariant: %v", err))
	}
}

// usable returns why nothing can be served, or nil.
func (c *Cache) usable() error {
	switch {
	case c.broken:
		return ErrBroken
	case c.closed:
		return ErrClosed
	}
	return nil
}

// onGrow is called by the arena, after it has published a piece or ended.
func (c *Cache) onGrow() {
	ready, growing := c.o.Arena.growth()
	if wake := c.growLocked(ready, growing); wake != nil {
		close(wake)
	}
}

func (c *Cache) growLocked(ready int64, growing bool) (wake chan struct{}) {
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return nil
	}
	// Calls may overtake each other: both facts only ever move one way.
	c.growing = c.growing && growing
	c.n.totalBytes = max(c.n.totalBytes, ready)
	c.alloc.grow(uint64(c.n.totalBytes) >> c.shift)
	wake, c.grow = c.grow, make(chan struct{})
	return wake
}

// loop is the background turn.
func (c *Cache) loop() {
	defer c.wg.Done()
	defer c.alive.Store(false)
	defer func() {
		if r := recover(); r != nil {
			c.o.Logger.Error("background turn of the store panicked", "err", fmt.Sprint(r), "stack", string(debug.Stack()))
		}
	}()
	ticks := c.o.Ticks
	if ticks == nil {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		ticks = t.C
	}
	for {
		select {
		case <-c.stop:
			return
		case <-ticks:
			c.turn()
		}
	}
}

// effects collects, under the lock, what is to be told after it.
type effects struct {
	evicted       [4]evictedCount
	nEvicted      int
	evictedMore   []evictedCount
	released      [2]releasedCount
	nReleased     int
	releasedMore  []releasedCount
	published     int
	publishedIn   Scope
	settled       []func()
	sampled       []ObjectEvent
	expiredWrites int // objects
	expiredReads  int // holds
}

type evictedCount struct {
	scope  Scope
	reason EvictReason
	n      int
}

type releasedCount struct {
	scope Scope
	n     int
}

func (fx *effects) evict(s Scope, reason EvictReason) {
	for i := range fx.nEvicted {
		if e := &fx.evicted[i]; e.reason == reason && e.scope == s {
			e.n++
			return
		}
	}
	if fx.nEvicted < len(fx.evicted) {
		fx.evicted[fx.nEvicted] = evictedCount{s, reason, 1}
		fx.nEvicted++
		return
	}
	for i := range fx.evictedMore {
		if e := &fx.evictedMore[i]; e.reason == reason && e.scope == s {
			e.n++
			return
		}
	}
	fx.evictedMore = append(fx.evictedMore, evictedCount{s, reason, 1})
}

func (fx *effects) release(s Scope, n int) {
	for i := range fx.nReleased {
		if r := &fx.released[i]; r.scope == s {
			r.n += n
			return
		}
	}
	if fx.nReleased < len(fx.released) {
		fx.released[fx.nReleased] = releasedCount{s, n}
		fx.nReleased++
		return
	}
	for i := range fx.releasedMore {
		if r := &fx.releasedMore[i]; r.scope == s {
			r.n += n
			return
		}
	}
	fx.releasedMore = append(fx.releasedMore, releasedCount{s, n})
}

// flush tells what fx collected. The lock is not held.
func (c *Cache) flush(fx *effects) {
	for _, f := range fx.settled {
		f()
	}
	if fx.expiredWrites+fx.expiredReads > 0 {
		c.expiry.do(func(dropped int) {
			c.o.Logger.Warn("time limits ended what nobody else did; a client is stuck or gone, or --l1-write-ttl-seconds or --l1-read-ttl-seconds is too short",
				"reserved_objects", fx.expiredWrites, "read_holds", fx.expiredReads, "messages_dropped", dropped)
		})
	}
	ob := c.o.Observer
	if ob == nil {
		return
	}
	if len(fx.sampled) > 0 {
		c.sampler.Sampled(fx.sampled)
	}
	if fx.published > 0 {
		ob.Published(fx.publishedIn, fx.published)
	}
	for _, e := range fx.evicted[:fx.nEvicted] {
		ob.Evicted(e.scope, e.n, e.reason)
	}
	for _, e := range fx.evictedMore {
		ob.Evicted(e.scope, e.n, e.reason)
	}
	for _, r := range fx.released[:fx.nReleased] {
		ob.ReadReleased(r.scope, r.n)
	}
	for _, r := range fx.releasedMore {
		ob.ReadReleased(r.scope, r.n)
	}
}

// throttle lets one message through each ten seconds and counts the others.
type throttle struct {
	mu      sync.Mutex
	last    time.Time
	dropped int
}

func (t *throttle) do(f func(dropped int)) {
	const every = 10 * time.Second
	t.mu.Lock()
	now := time.Now()
	if !t.last.IsZero() && now.Sub(t.last) < every {
		t.dropped++
		t.mu.Unlock()
		return
	}
	dropped := t.dropped
	t.last, t.dropped = now, 0
	t.mu.Unlock()
	f(dropped)
}
