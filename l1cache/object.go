package l1cache

import "unsafe"

// state of an object. Its memory is its own in every state but absent.
type state uint8

const (
	absent state = iota
	// reserved: in the index, memory in a writer's hands, says nothing to readers.
	reserved
	// filling: as reserved, but done soon: a lookup may wait for it.
	filling
	// published: readable; the only state in the recency list.
	published
	// quarantined: not in the index; a writer may still touch the memory.
	quarantined
	// orphaned: cleared while transfers read it; not in the index, gone with the last of them.
	orphaned
	numStates
)

// object is the record of one object: no pointers, and what a lookup changes on
// one cache line, the key, which only leaving the cache needs, on another.
type object struct {
	stamp      uint64 // recency: larger is younger; 0 while never published
	sizeBytes  int64  // as asked for, not rounded
	prev, next uint32 // recency list: prev is younger
	holds      uint32 // of leases
	yields     uint32 // of those, how many may be revoked
	transfers  uint32 // reads in progress
	gen        uint32 // counts the users of this slot, so that a stale lease entry is known
	block      uint32 // its memory
	marked     uint32 // by the search of this number
	list       uint32 // of recency: see Policy
	state      state
	form       Form
	linked     bool // in the recency list
	_          [9]byte

	key
	_ [24]byte
}

// Compile-time check: two cache lines, so that records in a slab do not straddle.
const _ uint = 128 - uint(unsafe.Sizeof(object{}))

// evictable tells whether nobody holds or reads the object.
func (o *object) evictable() bool {
	return o.state == published && o.holds == 0 && o.transfers == 0
}

// yieldable tells whether the object would be evictable if all holds that may
// be revoked were.
func (o *object) yieldable() bool {
	return o.state == published && o.holds == o.yields && o.transfers == 0
}

// recency is a list through the objects, youngest first; with some policies there
// are several. An object that a
// lease holds keeps its place, which the lookup has just made the first, so
// that taking and dropping a hold costs nothing here. When a search for
// victims meets it, it leaves the list, and it comes back to the old end when
// the last hold is dropped: everything older was evicted meanwhile. So no search
// walks over the same held object twice, and the order stays that of use,
// whenever leases end.
type recency struct {
	young, old uint32
	linked     int
	n, bytes   int64 // published objects that belong here, linked or not
}

func (c *Cache) unlink(i uint32) {
	o := c.objects.at(i)
	if !o.linked {
		return
	}
	l := &c.lists[o.list]
	if o.prev != nilSlot {
		c.objects.at(o.prev).next = o.next
	} else {
		l.young = o.next
	}
	if o.next != nilSlot {
		c.objects.at(o.next).prev = o.prev
	} else {
		l.old = o.prev
	}
	o.prev, o.next, o.linked = nilSlot, nilSlot, false
	l.linked--
}

// touch makes the object the youngest.
func (c *Cache) touch(i uint32) {
	o := c.objects.at(i)
	l := &c.lists[o.list]
	c.clock++
	o.stamp = c.clock
	if l.young == i {
		return
	}
	c.unlink(i)
	o.prev, o.next = nilSlot, l.young
	if o.next != nilSlot {
		c.objects.at(o.next).prev = i
	} else {
		l.old = i
	}
	l.young = i
	o.linked = true
	l.linked++
}

// relinkProbes bounds the search for the place of a returning object.
const relinkProbes = 64

// relink puts a returning object back near the old end, by its stamp.
func (c *Cache) relink(i uint32) {
	o := c.objects.at(i)
	if o.linked {
		return
	}
	l := &c.lists[o.list]
	after := l.old // the object that will be the next younger one
	for range relinkProbes {
		if after == nilSlot || c.objects.at(after).stamp > o.stamp {
			break
		}
		after = c.objects.at(after).prev
	}
	o.prev = after
	if after != nilSlot {
		o.next = c.objects.at(after).next
		c.objects.at(after).next = i
	} else {
		o.next = l.young
		l.young = i
	}
	if o.next != nilSlot {
		c.objects.at(o.next).prev = i
	} else {
		l.old = i
	}
	o.linked = true
	l.linked++
}

// oldestOf returns the oldest object of a list that may be evicted, or nilSlot.
// Held ones on the way leave the list.
func (c *Cache) oldestOf(list uint32) uint32 {
	for {
		i := c.lists[list].old
		if i == nilSlot || c.objects.at(i).evictable() {
			return i
		}
		c.unlink(i)
	}
}
