package l1cache

import (
	"encoding/binary"
	"hash/maphash"
)

// Policy says which objects go first when some must.
type Policy uint8

const (
	// PolicyLRU: those that were used longest ago.
	PolicyLRU Policy = iota
	// PolicyARC keeps objects that were found once apart from those that were
	// found again, and gives each kind the room that it turned out to need:
	// many prompts that come once do not push out those that come back.
	PolicyARC
	// PolicyIsolated: those that were used longest ago, and before them those of
	// salts that have reached their quota ([Cache.SetQuota]).
	PolicyIsolated
)

// Lists of [PolicyARC]: found once since they were stored, or not at all, and
// found again. With the other policies an object's list is 0, or its salt's.
const (
	recent   = 0
	frequent = 1
)

// arc is what PolicyARC knows beside the lists.
type arc struct {
	target float64 // how many objects the recent list should have
	most   int64   // the largest number of objects so far: the capacity
	ghosts [2]ghosts
	seed   maphash.Seed
}

// ghosts are objects that have gone, by fingerprint; two that share one are
// taken for each other, which costs a little accuracy.
type ghosts struct {
	at    map[uint64]uint64
	queue []ghost
	clock uint64
}

type ghost struct{ id, at uint64 }

func (g *ghosts) add(id uint64) {
	g.clock++
	g.at[id] = g.clock
	g.queue = append(g.queue, ghost{id, g.clock})
}

// trim forgets the oldest until at most n are left.
func (g *ghosts) trim(n int64) {
	i := 0
	for int64(len(g.at)) > max(0, n) {
		if x := g.queue[i]; g.at[x.id] == x.at {
			delete(g.at, x.id)
		}
		i++
	}
	// Entries of those that came back are dead: they go with the next copy.
	if i > 0 || len(g.queue) > 2*len(g.at)+64 {
		kept := g.queue[:0]
		for _, x := range g.queue[i:] {
			if g.at[x.id] == x.at {
				kept = append(kept, x)
			}
		}
		g.queue = kept
	}
}

// fingerprint is the name of an object among the ghosts.
func (c *Cache) fingerprint(o *object) uint64 {
	return binary.LittleEndian.Uint64(o.hash[:]) ^ maphash.Comparable(c.arc.seed, c.scopes.of(o.scope)) ^ uint64(o.rank)*0x9E3779B97F4A7C15
}

// enlist chooses the list of an object that is about to be published.
func (c *Cache) enlist(o *object) {
	switch c.o.Policy {
	case PolicyIsolated:
		o.list = c.scopes.list[o.scope].list
		for int(o.list) >= len(c.lists) {
			c.lists = append(c.lists, recency{})
		}
	case PolicyARC:
		a := &c.arc
		a.most = max(a.most, c.n.objects[published]+1)
		id := c.fingerprint(o)
		once, again := &a.ghosts[recent], &a.ghosts[frequent]
		grow := func(by, of *ghosts) float64 { return max(1, float64(len(by.at))/float64(len(of.at))) }
		switch {
		case once.at[id] != 0: // it should have stayed: more room for its kind
			a.target = min(float64(a.most), a.target+grow(again, once))
			delete(once.at, id)
			o.list = frequent
		case again.at[id] != 0:
			a.target = max(0, a.target-grow(once, again))
			delete(again.at, id)
			o.list = frequent
		default:
			o.list = recent
		}
	default:
		o.list = 0
	}
}

// use marks an object as found by a lookup.
func (c *Cache) use(i uint32) {
	if o := c.objects.at(i); c.o.Policy == PolicyARC && o.list == recent {
		c.unlink(i)
		c.count(o, -1)
		o.list = frequent
		c.count(o, 1)
	}
	c.touch(i)
}

// mourn remembers an object that had to go to make room.
func (c *Cache) mourn(o *object, reason EvictReason) {
	if c.o.Policy != PolicyARC || reason == EvictClear || reason == EvictDelete {
		return
	}
	a := &c.arc
	a.ghosts[o.list].add(c.fingerprint(o))
	n1, n2 := c.lists[recent].n, c.lists[frequent].n
	a.ghosts[recent].trim(a.most - n1)
	a.ghosts[frequent].trim(2*a.most - n1 - n2 - int64(len(a.ghosts[recent].at)))
}

// pick chooses among the next victims of all lists. gone is how many of the
// recent list the caller has taken already without evicting them.
func (c *Cache) pick(next []uint32, gone int64) uint32 {
	if c.o.Policy == PolicyARC {
		t1, t2 := next[recent], next[frequent]
		if n := c.lists[recent].n - gone; t2 == nilSlot || t1 != nilSlot && n > 0 && float64(n) >= c.arc.target {
			return t1
		}
		return t2
	}
	best := uint32(nilSlot)
	for _, i := range next {
		if i != nilSlot && (best == nilSlot || c.objects.at(i).stamp < c.objects.at(best).stamp) {
			best = i
		}
	}
	return best
}

// order goes through the objects that may be evicted, first victims first.
// While it does, only objects may leave that it has returned before the last.
type order struct {
	c    *Cache
	next []uint32 // by list
	last uint32   // returned by the last take
	gone int64    // of the recent list
}

func (c *Cache) victimsInOrder() order {
	w := order{c: c, next: c.heads[:0]}
	for l := range c.lists {
		w.next = append(w.next, c.oldestOf(uint32(l)))
	}
	c.heads = w.next
	return w
}

// take returns the next object, nilSlot at the end.
func (w *order) take() uint32 {
	if len(w.next) == 1 { // most policies, and the quick way
		if w.last == nilSlot {
			w.last = w.next[0]
		} else {
			w.last = w.c.younger(w.last)
		}
		return w.last
	}
	if w.last != nilSlot {
		l := w.c.objects.at(w.last).list
		w.next[l] = w.c.younger(w.last)
		if l == recent {
			w.gone++
		}
	}
	w.last = w.c.pick(w.next, w.gone)
	return w.last
}

// evictOne evicts the first of what was returned, in the list of the last, but
// not the last itself.
func (w *order) evictOne(fx *effects) {
	l := w.c.objects.at(w.last).list
	i := w.c.oldestOf(l)
	if i == w.last {
		return
	}
	w.c.evict(i, EvictDemand, fx)
	if l == recent {
		w.gone--
	}
}

// oldest returns the object that goes first, or nilSlot.
func (c *Cache) oldest() uint32 {
	if len(c.lists) == 1 {
		return c.oldestOf(0)
	}
	w := c.victimsInOrder()
	return c.pick(w.next, 0)
}

// SetQuota limits the space of a salt's objects under [PolicyIsolated]; 0 keeps
// none of them. The limit is soft: what is over it goes when more is stored, or
// with the next background turn. A salt without a quota has no limit.
func (c *Cache) SetQuota(salt string, limitBytes int64) {
	c.mu.Lock()
	defer c.unlock()
	c.quotas[salt] = limitBytes
}

// DeleteQuota takes the limit of a salt away.
func (c *Cache) DeleteQuota(salt string) {
	c.mu.Lock()
	defer c.unlock()
	delete(c.quotas, salt)
}

// overQuota is a salt at its limit and how many of its objects are to go.
type overQuota struct {
	salt string
	left int
}

// quotasReached lists the salts at or above the watermark of their quota. The
// lock is held.
func (c *Cache) quotasReached() (out []overQuota) {
	if c.o.Policy != PolicyIsolated || !c.o.Evict {
		return nil
	}
	for salt, limit := range c.quotas {
		s, ok := c.scopes.salts[salt]
		if !ok || int(s.list) >= len(c.lists) {
			continue
		}
		l := &c.lists[s.list]
		switch {
		case l.n == 0 || float64(l.bytes) < c.o.TriggerWatermark*float64(limit):
		case limit == 0:
			out = append(out, overQuota{salt, int(l.n)})
		default:
			out = append(out, overQuota{salt, max(1, int(float64(l.n)*c.o.EvictionRatio))})
		}
	}
	return out
}

// trimSalt evicts objects of a salt, one batch of them, and returns how many are
// left to do.
func (c *Cache) trimSalt(q overQuota, fx *effects) int {
	c.mu.Lock()
	defer c.unlock()
	s, ok := c.scopes.salts[q.salt]
	if c.usable() != nil || !ok {
		return 0
	}
	for range turnBatch {
		i := c.oldestOf(s.list)
		if q.left == 0 || i == nilSlot {
			return 0
		}
		c.evict(i, EvictQuota, fx)
		q.left--
		if s, ok = c.scopes.salts[q.salt]; !ok {
			return 0 // that was the last
		}
	}
	return q.left
}

// makeRoomInQuota evicts a salt's own objects before more of it are stored, so
// that a tenant at its limit pushes out nobody else's. The lock is held.
func (c *Cache) makeRoomInQuota(salt string, need int64, fx *effects) {
	limit, limited := c.quotas[salt]
	if c.o.Policy != PolicyIsolated || !c.o.Evict || !limited {
		return
	}
	for {
		s, ok := c.scopes.salts[salt]
		if !ok || int(s.list) >= len(c.lists) || c.lists[s.list].bytes+need <= limit {
			return
		}
		i := c.oldestOf(s.list)
		if i == nilSlot {
			return
		}
		c.evict(i, EvictQuota, fx)
	}
}
