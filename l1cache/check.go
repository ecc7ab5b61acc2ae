package l1cache

import "fmt"

// Check walks everything and reports the first broken invariant. It is for
// tests and checking builds: it takes the lock for as long as that takes.
func (c *Cache) Check() error {
	c.mu.Lock()
	defer c.unlock()
	return c.check()
}

func (c *Cache) check() error {
	if err := c.alloc.check(); err != nil {
		return fmt.Errorf("allocator: %w", err)
	}
	n, owned, err := c.checkObjects()
	if err != nil {
		return err
	}
	if err := c.checkRecency(owned); err != nil {
		return err
	}
	if err := c.checkHolders(owned); err != nil {
		return err
	}
	for s := range n.objects {
		if n.objects[s] != c.n.objects[s] || n.bytes[s] != c.n.bytes[s] {
			return fmt.Errorf("state %d: %d objects of %d bytes, counted %d of %d", s, n.objects[s], n.bytes[s], c.n.objects[s], c.n.bytes[s])
		}
	}
	if n.heldObjects != c.n.heldObjects || n.heldBytes != c.n.heldBytes {
		return fmt.Errorf("%d objects of %d bytes are held, counted %d of %d", n.heldObjects, n.heldBytes, c.n.heldObjects, c.n.heldBytes)
	}
	if n.transferObjects != c.n.transferObjects {
		return fmt.Errorf("%d reads in progress, counted %d", n.transferObjects, c.n.transferObjects)
	}
	return nil
}

// checkObjects compares blocks, objects, index and scopes, and counts afresh.
func (c *Cache) checkObjects() (n counters, owned map[uint32]bool, err error) {
	owned = map[uint32]bool{}
	indexed := 0
	refs := map[uint32]int{}
	resident := map[uint32]int64{}
	for b := c.alloc.first; b != nilSlot; b = c.alloc.blocks.at(b).next {
		i := c.alloc.blocks.at(b).owner
		if i == nilSlot {
			continue
		}
		o := c.objects.at(i)
		if owned[i] || o.block != b {
			return n, nil, fmt.Errorf("block %d belongs to object %d, which has block %d", b, i, o.block)
		}
		owned[i] = true
		refs[o.scope]++
		bytes := c.bytesOf(o)
		if has := int64(c.alloc.blocks.at(b).size) << c.shift; o.sizeBytes <= 0 || has != bytes {
			return n, nil, fmt.Errorf("object %d of %d bytes has %d", i, o.sizeBytes, has)
		}
		n.objects[o.state]++
		n.bytes[o.state] += bytes
		n.transferObjects += int64(o.transfers)
		at, in := c.index[o.key]
		in = in && at == i
		switch o.state {
		case reserved, filling, published:
			if !in {
				return n, nil, fmt.Errorf("object %d in state %d is not in the index", i, o.state)
			}
			indexed++
		case quarantined, orphaned:
			if in {
				return n, nil, fmt.Errorf("object %d in state %d is in the index", i, o.state)
			}
		default:
			return n, nil, fmt.Errorf("object %d has memory in state %d", i, o.state)
		}
		if o.state != published && (o.holds != 0 || o.yields != 0 || o.linked) ||
			(o.transfers != 0) != (o.state == orphaned) && o.state != published || o.yields > o.holds {
			return n, nil, fmt.Errorf("object %d in state %d has %d holds, %d yielding, %d transfers, linked %v", i, o.state, o.holds, o.yields, o.transfers, o.linked)
		}
		if o.state == published {
			resident[o.scope] += bytes
			if !o.evictable() {
				n.heldObjects++
				n.heldBytes += bytes
			}
		}
	}
	if indexed != len(c.index) || len(owned) != c.objects.live() {
		return n, nil, fmt.Errorf("index has %d entries for %d objects, slab %d for %d", len(c.index), indexed, c.objects.live(), len(owned))
	}
	for id, want := range refs {
		if s := c.scopes.list[id]; s.refs != want || c.scopes.ids[s.scope] != id {
			return n, nil, fmt.Errorf("scope %d has %d references, want %d", id, s.refs, want)
		} else if s.bytes != resident[id] {
			return n, nil, fmt.Errorf("scope %d has %d bytes, counted %d", id, resident[id], s.bytes)
		}
	}
	if len(refs) != len(c.scopes.ids) {
		return n, nil, fmt.Errorf("%d scopes are interned, %d in use", len(c.scopes.ids), len(refs))
	}
	return n, owned, nil
}

// checkRecency walks the lists: published objects only, and every evictable one.
func (c *Cache) checkRecency(owned map[uint32]bool) error {
	linked := 0
	for l := range c.lists {
		n, err := c.checkList(uint32(l), owned)
		if err != nil {
			return err
		}
		linked += n
	}
	belong := make([]recency, len(c.lists))
	for i := range owned {
		o := c.objects.at(i)
		if o.linked {
			linked--
		} else if o.evictable() {
			return fmt.Errorf("evictable object %d is not in the recency list", i)
		}
		if o.state == published {
			belong[o.list].n++
			belong[o.list].bytes += c.bytesOf(o)
		}
	}
	if linked != 0 {
		return fmt.Errorf("%d objects say they are in the recency list and are not", -linked)
	}
	for l := range c.lists {
		if c.lists[l].n != belong[l].n || c.lists[l].bytes != belong[l].bytes {
			return fmt.Errorf("list %d has %d objects of %d bytes, counted %d of %d", l, belong[l].n, belong[l].bytes, c.lists[l].n, c.lists[l].bytes)
		}
	}
	return nil
}

func (c *Cache) checkList(list uint32, owned map[uint32]bool) (n int, err error) {
	younger, l := uint32(nilSlot), &c.lists[list]
	for i := l.young; i != nilSlot; i = c.objects.at(i).next {
		o := c.objects.at(i)
		if !owned[i] || o.state != published || !o.linked || o.prev != younger || o.list != list {
			return 0, fmt.Errorf("object %d in state %d does not belong in recency list %d", i, o.state, list)
		}
		younger = i
		if n++; n > len(owned) {
			return 0, fmt.Errorf("recency list %d has a loop", list)
		}
	}
	if younger != l.old || n != l.linked {
		return 0, fmt.Errorf("recency list %d of %d ends at %d, want %d ending at %d", list, n, younger, l.linked, l.old)
	}
	return n, nil
}

// checkHolders adds up what leases and reservations have.
func (c *Cache) checkHolders(owned map[uint32]bool) error {
	holds, yields := map[uint32]uint32{}, map[uint32]uint32{}
	var total int64
	for l := c.leases.front; l != nil; l = l.k.next {
		left := 0
		for j := range l.entries {
			e := &l.entries[j]
			left += int(e.left)
			if e.left > 0 && l.valid(e) {
				holds[e.slot] += e.left
				if l.yield {
					yields[e.slot] += e.left
				}
			}
		}
		if left != l.left || left == 0 {
			return fmt.Errorf("a lease has %d holds, counted %d", left, l.left)
		}
		total += int64(left)
	}
	if total != c.n.leaseHolds {
		return fmt.Errorf("leases have %d holds, counted %d", total, c.n.leaseHolds)
	}
	for i := range owned {
		if o := c.objects.at(i); o.holds != holds[i] || o.yields != yields[i] {
			return fmt.Errorf("object %d has %d holds, %d yielding; leases have %d, %d", i, o.holds, o.yields, holds[i], yields[i])
		}
	}
	staged := int64(0)
	for r := c.writes.front; r != nil; r = r.k.next {
		for _, id := range r.ids {
			if s := c.objects.at(id).state; s != reserved && s != filling || r.stage != open {
				return fmt.Errorf("object %d of a reservation in stage %d is in state %d", id, r.stage, s)
			}
			staged++
		}
	}
	if want := c.n.objects[reserved] + c.n.objects[filling]; staged != want {
		return fmt.Errorf("reservations have %d objects, counted %d", staged, want)
	}
	for i := range c.waiters {
		if !owned[i] || c.objects.at(i).state != filling {
			return fmt.Errorf("a lookup waits for object %d, which is not being filled", i)
		}
	}
	return nil
}
