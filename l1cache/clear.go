package l1cache

// Clear removes objects and returns how many published ones are gone.
//
// Not forced: those that nobody holds or reads; and reservations past their
// TTL lose their keys.
//
// Forced: all of them, held ones too, whose leases then find nothing. An object
// that a transfer reads leaves the index at once and its memory when the last
// transfer is done. Reservations go to quarantine: what is published from them
// later is dropped.
func (c *Cache) Clear(force bool) (removed int) {
	var fx effects
	removed = c.clearLocked(force, &fx)
	c.flush(&fx)
	return removed
}

func (c *Cache) clearLocked(force bool, fx *effects) int {
	c.mu.Lock()
	defer c.unlock()
	if c.usable() != nil {
		return 0
	}
	c.expireWrites(c.o.Now(), fx)
	removed := 0
	if !force {
		for i := c.oldest(); i != nilSlot; i = c.oldest() {
			c.evict(i, EvictClear, fx)
			removed++
		}
		return removed
	}
	for c.writes.len > 0 {
		c.writes.front.detach(fx)
	}
	// Held objects may have left the recency list: go through the index.
	for _, i := range c.index {
		o := c.objects.at(i)
		removed++
		if o.transfers == 0 {
			if !o.evictable() {
				c.hold(i, -int(o.holds), -int(o.yields))
			}
			c.evict(i, EvictClear, fx)
			continue
		}
		c.n.evictedObjects[EvictClear]++
		c.n.evictedBytes[EvictClear] += uint64(c.bytesOf(o))
		fx.evict(c.scopes.of(o.scope), EvictClear)
		c.forget(i, fx)
		c.count(o, -1)
		o.holds, o.yields, o.state = 0, 0, orphaned
		c.count(o, 1)
	}
	return removed
}
