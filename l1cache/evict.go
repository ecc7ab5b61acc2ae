package l1cache

import "fmt"

// This file makes room on demand. All functions need the lock.

// makeRoom gives each of the objects a block of steps, or none of them. A
// channel means: the arena grows, try again when it is closed. Whether the
// request can be met at all is settled before anything is evicted.
func (c *Cache) makeRoom(ids []uint32, steps uint64, fx *effects) (<-chan struct{}, error) {
	got := c.assignAll(ids, steps)
	if got == len(ids) {
		return nil, nil
	}
	n := len(ids)
	if most := uint64(c.capacityBytes()) >> c.shift / steps; uint64(n) > most {
		c.unassign(ids[:got])
		return nil, c.tooLarge(n, most, steps)
	}
	if c.growing {
		c.unassign(ids[:got])
		return c.grow, nil
	}
	if !c.o.Evict {
		c.unassign(ids[:got])
		return nil, c.noSpace(n, steps)
	}
	if !c.surelyFits(n-got, got, steps) {
		c.unassign(ids[:got])
		got = 0
		if !c.fits(n, steps, (*object).evictable) {
			if !c.fits(n, steps, (*object).yieldable) {
				return nil, c.noSpace(n, steps)
			}
			c.revoke(n, steps, fx)
		}
	}
	for got < n {
		switch {
		case c.assign(ids[got], steps):
			got++
		case c.makeHole(steps, fx):
		default:
			// The holes made one by one cut the space so that the rest does not
			// fit, though it would in order: start over, run by run. Nothing was
			// written to the blocks given back here.
			c.unassign(ids[:got])
			c.sweep(n, steps, fx)
			if got = c.assignAll(ids, steps); got < n {
				panic(fmt.Sprintf("l1cache: %d of %d objects of %d steps fit, but all should", got, n, steps))
			}
		}
	}
	return nil, nil
}

// capacityBytes is what the pool has, or will have when it has grown.
func (c *Cache) capacityBytes() int64 {
	if c.growing {
		return c.o.Arena.SizeBytes()
	}
	return c.n.totalBytes
}

func (c *Cache) tooLarge(n int, most, steps uint64) error {
	c.n.tooLarge += uint64(n)
	if why := c.o.Arena.Err(); why != nil {
		return fmt.Errorf("%w: %d objects of %d bytes, but the pool stopped growing at %d bytes, room for %d: %w",
			ErrTooLarge, n, steps<<c.shift, c.n.totalBytes, most, why)
	}
	return fmt.Errorf("%w: %d objects of %d bytes, but %d bytes hold %d of them: raise --l1-size-gb or lower --chunk-size",
		ErrTooLarge, n, steps<<c.shift, c.capacityBytes(), most)
}

func (c *Cache) noSpace(n int, steps uint64) error {
	c.n.noSpace += uint64(n)
	policy := "they come back when their clients are done, or raise --l1-size-gb"
	if !c.o.Evict {
		policy = "and eviction is off: use --eviction-policy LRU, clear the cache, or raise --l1-size-gb"
	}
	return fmt.Errorf("%w for %d objects of %d bytes: of %d bytes, %d are free, %d resident, of these %d held by leases and transfers, %d reserved, %d in quarantine; %s",
		ErrNoSpace, n, steps<<c.shift, c.n.totalBytes, int64(c.alloc.freeSteps)<<c.shift, c.n.bytes[published], c.n.heldBytes+c.n.bytes[orphaned],
		c.n.bytes[reserved]+c.n.bytes[filling], c.n.bytes[quarantined], policy)
}

func (c *Cache) assign(id uint32, steps uint64) bool {
	b := c.alloc.take(steps, id)
	c.objects.at(id).block = b
	return b != nilSlot
}

func (c *Cache) assignAll(ids []uint32, steps uint64) (got int) {
	for got < len(ids) && c.assign(ids[got], steps) {
		got++
	}
	return got
}

func (c *Cache) unassign(ids []uint32) {
	for i := len(ids) - 1; i >= 0; i-- {
		o := c.objects.at(ids[i])
		c.alloc.give(o.block)
		o.block = nilSlot
	}
}

// surelyFits tells in O(1) that n more objects fit once everything evictable
// has gone: what can neither be free nor evicted cuts the region into at most
// one run more than its blocks, and each run wastes less than one object. taken
// is how many blocks the caller has already. False means only that it is not
// certain.
func (c *Cache) surelyFits(n, taken int, steps uint64) bool {
	stuck := uint64(taken) + uint64(c.n.heldObjects)
	for s := range c.n.objects {
		if state(s) != published {
			stuck += uint64(c.n.objects[s])
		}
	}
	free := c.alloc.freeSteps + uint64(c.n.bytes[published]-c.n.heldBytes)>>c.shift
	// Sizes are below 2^51 steps and counts below 2^31: guard the product.
	waste := stuck + 1
	if steps > 1<<32 || waste > 1<<30 {
		return false
	}
	waste *= steps - 1
	return free >= waste && (free-waste)/steps >= uint64(n)
}

// fits counts exactly how many objects fit once all that may go has gone.
func (c *Cache) fits(n int, steps uint64, mayGo func(*object) bool) bool {
	var run, sum uint64
	for b := c.alloc.first; b != nilSlot; b = c.alloc.blocks.at(b).next {
		r := c.alloc.blocks.at(b)
		if r.owner == nilSlot || mayGo(c.objects.at(r.owner)) {
			run += r.size
			continue
		}
		sum += run / steps
		run = 0
		if sum >= uint64(n) {
			return true
		}
	}
	return sum+run/steps >= uint64(n)
}

// revoke ends yielding leases, oldest first, until the request fits without the
// others'.
func (c *Cache) revoke(n int, steps uint64, fx *effects) {
	for l := c.leases.front; l != nil; {
		next := l.k.next
		if l.yield {
			c.n.revokedHolds += uint64(l.left)
			l.end(fx)
			if c.fits(n, steps, (*object).evictable) {
				return
			}
		}
		l = next
	}
}

// younger returns the next younger object that may be evicted.
func (c *Cache) younger(i uint32) uint32 {
	for {
		n := c.objects.at(i).prev
		if n == nilSlot || c.objects.at(n).evictable() {
			return n
		}
		c.unlink(n)
	}
}

// searchMax is how many objects a search for a hole looks at before it starts to
// evict the oldest of them, hole or not. It bounds the time under the lock, and
// how many old objects in the wrong places a pool of mixed sizes carries along.
const searchMax = 64

// makeHole evicts so that a free block of steps exists. It marks objects in the
// order of their age until the marked and the free blocks beside the last one
// make a run that is large enough, and evicts from that run only what is needed.
// Thus the youngest object that goes is as old as it can be, older ones in the
// wrong places stay for now, and with objects of one size it is the oldest that
// goes. False: there is no such run.
func (c *Cache) makeHole(steps uint64, fx *effects) bool {
	if c.search++; c.search == 0 {
		c.search = 1 // 0 is no mark
	}
	seen := 0
	w := c.victimsInOrder()
	for i := w.take(); i != nilSlot; i = w.take() {
		o := c.objects.at(i)
		o.marked = c.search
		if low, high, ok := c.runAround(o.block, steps); ok {
			c.evictSpan(low, high, i, fx)
			return true
		}
		if seen++; seen > searchMax {
			w.evictOne(fx)
		}
	}
	return false
}

// mayGo tells whether a block is free or its object marked by this search.
func (c *Cache) mayGo(b uint32) bool {
	if b == nilSlot {
		return false
	}
	owner := c.alloc.blocks.at(b).owner
	return owner == nilSlot || c.objects.at(owner).marked == c.search && c.objects.at(owner).evictable()
}

// runAround finds steps in the blocks around b that may go. Every run that was
// large enough before b joined it has been found before: so b is in it, and
// walking stops when it is large enough. Ends that are not needed are dropped.
func (c *Cache) runAround(b uint32, steps uint64) (low, high uint32, ok bool) {
	blocks := &c.alloc.blocks
	low, high = b, b
	total := blocks.at(b).size
	for total < steps && c.mayGo(blocks.at(low).prev) {
		low = blocks.at(low).prev
		total += blocks.at(low).size
	}
	for total < steps && c.mayGo(blocks.at(high).next) {
		high = blocks.at(high).next
		total += blocks.at(high).size
	}
	for total-blocks.at(low).size >= steps {
		total -= blocks.at(low).size
		low = blocks.at(low).next
	}
	return low, high, total >= steps
}

// evictSpan evicts the objects from block low to block high, all of which may go.
func (c *Cache) evictSpan(low, high, oldest uint32, fx *effects) {
	victims := c.victims[:0]
	for b := low; ; b = c.alloc.blocks.at(b).next {
		if owner := c.alloc.blocks.at(b).owner; owner != nilSlot {
			victims = append(victims, owner)
		}
		if b == high {
			break
		}
	}
	c.victims = victims
	for _, v := range victims {
		reason := EvictNeighbour
		if v == oldest {
			reason = EvictDemand
		}
		c.evict(v, reason, fx)
	}
}

// sweep evicts whole runs of evictable neighbours, from the low end, until n
// objects fit. The caller knows that they do.
func (c *Cache) sweep(n int, steps uint64, fx *effects) {
	victims := c.victims[:0]
	var run, sum uint64
	start := 0 // of the present run in victims
	for b := c.alloc.first; sum < uint64(n); b = c.alloc.blocks.at(b).next {
		r := c.alloc.blocks.at(b)
		if b != nilSlot && (r.owner == nilSlot || c.objects.at(r.owner).evictable()) {
			run += r.size
			if r.owner != nilSlot {
				victims = append(victims, r.owner)
			}
			continue
		}
		if run < steps {
			victims = victims[:start] // no object fits here: keep them
		}
		sum += run / steps
		run, start = 0, len(victims)
		if b == nilSlot {
			break
		}
	}
	c.victims = victims
	for _, v := range victims {
		c.evict(v, EvictDemand, fx)
	}
}
