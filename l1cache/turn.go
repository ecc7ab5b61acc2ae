package l1cache

// turnBatch is how many objects a turn evicts before it lets others in.
const turnBatch = 256

// turn is one round of the background loop: it ends what is past its TTL and,
// from the watermark on, evicts a fraction of the objects, as the reference
// does once a second. With eviction on demand this only keeps headroom.
func (c *Cache) turn() {
	for left, first := turnBatch, true; left > 0; first = false {
		var fx effects
		left = c.turnLocked(first, left, &fx)
		c.flush(&fx)
	}
	for _, q := range c.reached() {
		for q.left > 0 {
			var fx effects
			q.left = c.trimSalt(q, &fx)
			c.flush(&fx)
		}
	}
}

func (c *Cache) reached() []overQuota {
	c.mu.Lock()
	defer c.unlock()
	if c.usable() != nil {
		return nil
	}
	return c.quotasReached()
}

// turnLocked begins a turn, or goes on with one that still has left victims,
// and returns how many are left to do.
func (c *Cache) turnLocked(first bool, left int, fx *effects) int {
	c.mu.Lock()
	defer c.unlock()
	if c.usable() != nil {
		return 0
	}
	if first {
		c.n.turns++
		now := c.o.Now()
		c.n.lastTurn = now
		c.expireWrites(now, fx)
		c.expireReads(now, fx)
		// While the arena grows, growth is the headroom.
		used := c.usedBytes()
		if !c.o.Evict || c.growing || c.n.totalBytes == 0 || float64(used)/float64(c.n.totalBytes) < c.o.TriggerWatermark {
			return 0
		}
		c.n.turnsTriggered++
		// Staged objects count as well, as in the reference (9.5.1).
		tracked := c.n.objects[published] + c.n.objects[reserved] + c.n.objects[filling]
		left = max(1, int(float64(tracked)*c.o.EvictionRatio))
	}
	for range turnBatch {
		i := c.oldest()
		if left == 0 || i == nilSlot {
			return 0
		}
		c.evict(i, EvictWatermark, fx)
		left--
	}
	return left
}

func (c *Cache) usedBytes() int64 { return int64(c.alloc.end-c.alloc.freeSteps) << c.shift }
