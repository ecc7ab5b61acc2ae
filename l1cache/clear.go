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
		c.remove(i, EvictClear, fx)
		removed++
	}
	return removed
}
