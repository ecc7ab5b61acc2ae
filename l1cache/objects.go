package l1cache

// ObjectKey names an object from outside, in whatever layout it was stored.
type ObjectKey struct {
	Model, Salt string
	Group       int
	Rank        uint32
	Hash        Hash
}

// Delete removes the published objects of these keys that nobody holds or
// reads, and returns how many it removed. Objects that are held, read or being
// written are skipped and counted; a key without an object counts nowhere.
//
// Forced, it removes those, too, as [Cache.Clear] does: leases find nothing,
// memory that a transfer reads goes when it is done, and a reservation that has
// one of the keys goes to quarantine as a whole.
func (c *Cache) Delete(keys []ObjectKey, force bool) (deleted, skipped int) {
	var fx effects
	deleted, skipped = c.deleteLocked(keys, force, &fx)
	c.flush(&fx)
	return deleted, skipped
}

// scopeName is a scope without its layout.
type scopeName struct {
	model, salt string
	group       int
}

func (c *Cache) deleteLocked(keys []ObjectKey, force bool, fx *effects) (deleted, skipped int) {
	c.mu.Lock()
	defer c.unlock()
	if c.usable() != nil {
		return 0, 0
	}
	now := c.o.Now()
	c.expireWrites(now, fx)
	c.expireReads(now, fx)
	byName := map[scopeName][]uint32{}
	for sc, id := range c.scopes.ids {
		n := scopeName{sc.Model, sc.Salt, sc.Group}
		byName[n] = append(byName[n], id)
	}
	written := map[uint32]bool{} // reserved or filling, to be taken away
	for i := range keys {
		k := &keys[i]
		for _, scope := range byName[scopeName{k.Model, k.Salt, k.Group}] {
			id, ok := c.index[key{k.Hash, scope, k.Rank}]
			if !ok {
				continue
			}
			o := c.objects.at(id)
			switch {
			case o.evictable():
				c.evict(id, EvictDelete, fx)
				deleted++
			case !force:
				skipped++
			case o.state == published:
				c.remove(id, EvictDelete, fx)
				deleted++
			case !written[id]:
				written[id] = true
				deleted++
			}
		}
	}
	if len(written) > 0 {
		c.detachWritten(written, fx)
	}
	return deleted, skipped
}

// detachWritten puts the reservations of these objects into quarantine.
func (c *Cache) detachWritten(ids map[uint32]bool, fx *effects) {
	for r := c.writes.front; r != nil; {
		next := r.k.next
		for _, id := range r.ids {
			if ids[id] {
				r.detach(fx)
				break
			}
		}
		r = next
	}
}

// remove takes a published object out of the index although it is held or
// read. The lock is held.
func (c *Cache) remove(i uint32, reason EvictReason, fx *effects) {
	o := c.objects.at(i)
	if o.transfers == 0 {
		if !o.evictable() {
			c.hold(i, -int(o.holds), -int(o.yields))
		}
		c.evict(i, reason, fx)
		return
	}
	c.n.evictedObjects[reason]++
	c.n.evictedBytes[reason] += uint64(c.bytesOf(o))
	fx.evict(c.scopes.of(o.scope), reason)
	c.sample(o, ObjectGone, fx)
	c.forget(i, fx)
	c.count(o, -1)
	o.holds, o.yields, o.state = 0, 0, orphaned
	c.count(o, 1)
}

// Entry describes one published object.
type Entry struct {
	Scope Scope
	Rank  uint32
	Hash  Hash
	// SizeBytes as it was stored, not rounded.
	SizeBytes int64
}

// pageScan bounds how many records one call of Page looks at under the lock.
const pageScan = 1 << 14

// Page lists published objects, those of one model or, with "", of all. after
// is 0 for the first page and then what the last call returned as next; next is
// 0 when there are no more. A page may be shorter than limit, even empty, before
// the last one. Objects that come and go meanwhile may be missed; none is listed
// twice unless it was stored again.
func (c *Cache) Page(model string, after uint32, limit int) (entries []Entry, next uint32) {
	c.mu.Lock()
	defer c.unlock()
	if c.usable() != nil {
		return nil, 0
	}
	seen := 0
	for i := uint64(after) + 1; i < uint64(c.objects.next); i++ {
		if len(entries) >= limit || seen >= pageScan {
			return entries, uint32(i - 1)
		}
		seen++
		o := c.objects.at(uint32(i))
		if o.state != published {
			continue
		}
		if sc := c.scopes.of(o.scope); model == "" || sc.Model == model {
			entries = append(entries, Entry{sc, o.rank, o.hash, o.sizeBytes})
		}
	}
	return entries, 0
}

// BytesBySalt is the space that published objects take, by salt. It walks the
// scopes, of which there are few, and no objects.
func (c *Cache) BytesBySalt() map[string]int64 {
	c.mu.Lock()
	defer c.unlock()
	out := map[string]int64{}
	for sc, id := range c.scopes.ids {
		if n := c.scopes.list[id].bytes; n > 0 {
			out[sc.Salt] += n
		}
	}
	return out
}
