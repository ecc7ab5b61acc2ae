package l1cache

import "github.com/lmcache-go/lmcache-go/internal/invariants"

// This file changes the state of objects; every count of them is kept here.
// All functions need the lock.

// bytesOf is the space an object takes, rounded up.
func (c *Cache) bytesOf(o *object) int64 {
	step := int64(c.o.AlignBytes)
	return (o.sizeBytes + step - 1) &^ (step - 1)
}

func (c *Cache) offsetOf(o *object) int64 {
	return int64(c.alloc.blocks.at(o.block).start) << c.shift
}

// count adds an object to the count of its state, or with sign -1 takes it off.
func (c *Cache) count(o *object, sign int64) {
	bytes := sign * c.bytesOf(o)
	c.n.objects[o.state] += sign
	c.n.bytes[o.state] += bytes
	if o.state != published {
		return
	}
	c.scopes.list[o.scope].bytes += bytes
	l := &c.lists[o.list]
	l.n += sign
	l.bytes += bytes
	if !o.evictable() {
		c.n.heldObjects += sign
		c.n.heldBytes += bytes
	}
}

// setState moves an object that has memory to another state.
func (c *Cache) setState(i uint32, s state) {
	o := c.objects.at(i)
	c.count(o, -1)
	o.state = s
	c.count(o, 1)
}

// forget takes an object out of the index; its memory stays.
func (c *Cache) forget(i uint32, fx *effects) {
	o := c.objects.at(i)
	delete(c.index, o.key)
	c.unlink(i)
	c.settle(i, fx)
}

// free ends an object that is out of the index: memory, scope and slot go back.
func (c *Cache) free(i uint32) {
	o := c.objects.at(i)
	c.count(o, -1)
	c.poison(o)
	c.alloc.give(o.block)
	c.drop(i)
}

// drop gives back the slot of an object without memory.
func (c *Cache) drop(i uint32) {
	o := c.objects.at(i)
	c.scopes.unref(o.scope)
	*o = object{gen: o.gen + 1}
	c.objects.put(i)
}

// settle wakes the lookups that wait for the object.
func (c *Cache) settle(i uint32, fx *effects) {
	if w, ok := c.waiters[i]; ok {
		delete(c.waiters, i)
		fx.settled = append(fx.settled, w...)
	}
}

// evict drops a published object that nobody holds.
func (c *Cache) evict(i uint32, reason EvictReason, fx *effects) {
	o := c.objects.at(i)
	c.n.evictedObjects[reason]++
	c.n.evictedBytes[reason] += uint64(c.bytesOf(o))
	fx.evict(c.scopes.of(o.scope), reason)
	c.sample(o, ObjectGone, fx)
	c.mourn(o, reason)
	c.forget(i, fx)
	c.free(i)
}

// hold changes the holds of a published object: n more, of which y may be revoked.
func (c *Cache) hold(i uint32, n, y int) {
	o := c.objects.at(i)
	if o.evictable() {
		c.n.heldObjects++
		c.n.heldBytes += c.bytesOf(o)
	}
	o.holds = uint32(int(o.holds) + n)
	o.yields = uint32(int(o.yields) + y)
	c.unheld(i)
}

// unheld puts a published object that may have lost its last holder back among the evictable.
func (c *Cache) unheld(i uint32) {
	o := c.objects.at(i)
	if !o.evictable() {
		return
	}
	c.n.heldObjects--
	c.n.heldBytes -= c.bytesOf(o)
	c.relink(i)
}

// poisonBytes at each end of freed memory are overwritten in checking builds,
// so that a reader who kept an offset too long does not go unnoticed.
const poisonBytes = 64

func (c *Cache) poison(o *object) {
	if !invariants.Enabled || c.closed { // then the arena may be gone
		return
	}
	off, n := c.offsetOf(o), c.bytesOf(o)
	mem := c.o.Arena.Bytes()
	if off+n > int64(len(mem)) {
		return
	}
	head := mem[off : off+min(n, poisonBytes)]
	tail := mem[off+n-min(n, poisonBytes) : off+n]
	for i := range head {
		head[i] = 0xDB
	}
	for i := range tail {
		tail[i] = 0xDB
	}
}
