package l1cache

import (
	"fmt"
	"math/bits"
)

// The allocator is a two-level segregated fit (Masmano et al., TLSF): free
// blocks hang in lists by size class, 32 classes to each power of two, and two
// levels of bitmaps find the first class that is surely large enough. Take,
// give back and merge are O(1). Two things differ from the book:
//
//   - The metadata lies outside the region, so that a client that maps the
//     region cannot damage it, and pages nobody wrote to stay cold.
//   - Before going up a class it looks at a few blocks of the request's own
//     class, where the book would skip a block of exactly the right size. Lists
//     are last in, first out: a cache of equal objects thus reuses the block
//     freed last, whose pages are mapped and warm, before it breaks new ground.
//
// Sizes and addresses are counted in steps of the alignment.
const (
	subBits  = 5
	subCount = 1 << subBits
	topCount = 64 - subBits + 1
	// ownClassProbes is how many blocks of the request's own class are looked at first.
	ownClassProbes = 8
)

// block is a span of the region: free, or the memory of one object.
type block struct {
	start, size        uint64 // steps
	prev, next         uint32 // neighbours by address
	prevFree, nextFree uint32 // neighbours in the free list
	owner              uint32 // slot of the object, nilSlot when free
	_                  uint32
}

type allocator struct {
	blocks      slab[block]
	first, last uint32 // lowest and highest block by address
	end         uint64 // steps under management
	freeSteps   uint64
	topMap      uint64
	subMap      [topCount]uint32
	heads       [topCount][subCount]uint32
}

// class maps a size to its list.
func class(size uint64) (top, sub int) {
	if size < subCount {
		return 0, int(size)
	}
	log := bits.Len64(size) - 1
	return log - subBits + 1, int(size>>(log-subBits)) - subCount
}

// classAbove maps a size to the first list all of whose blocks hold it.
func classAbove(size uint64) (top, sub int) {
	if size >= subCount {
		size += 1<<(bits.Len64(size)-1-subBits) - 1
	}
	return class(size)
}

func (a *allocator) link(b uint32) {
	r := a.blocks.at(b)
	top, sub := class(r.size)
	head := a.heads[top][sub]
	r.prevFree, r.nextFree = nilSlot, head
	if head != nilSlot {
		a.blocks.at(head).prevFree = b
	}
	a.heads[top][sub] = b
	a.subMap[top] |= 1 << sub
	a.topMap |= 1 << top
}

func (a *allocator) unlink(b uint32) {
	r := a.blocks.at(b)
	if r.nextFree != nilSlot {
		a.blocks.at(r.nextFree).prevFree = r.prevFree
	}
	if r.prevFree != nilSlot {
		a.blocks.at(r.prevFree).nextFree = r.nextFree
		return
	}
	top, sub := class(r.size)
	a.heads[top][sub] = r.nextFree
	if r.nextFree == nilSlot {
		a.subMap[top] &^= 1 << sub
		if a.subMap[top] == 0 {
			a.topMap &^= 1 << top
		}
	}
}

// find returns a free block of at least size steps, or nilSlot when there is none.
func (a *allocator) find(size uint64) uint32 {
	top, sub := class(size)
	b := a.heads[top][sub]
	for i := 0; b != nilSlot && i < ownClassProbes; i++ {
		if a.blocks.at(b).size >= size {
			return b
		}
		b = a.blocks.at(b).nextFree
	}
	if up := a.findAbove(size); up != nilSlot {
		return up
	}
	// Nothing in the classes above: what is left is the rest of the own one.
	for ; b != nilSlot; b = a.blocks.at(b).nextFree {
		if a.blocks.at(b).size >= size {
			return b
		}
	}
	return nilSlot
}

func (a *allocator) findAbove(size uint64) uint32 {
	top, sub := classAbove(size)
	if top >= topCount {
		return nilSlot
	}
	if m := a.subMap[top] >> sub << sub; m != 0 {
		return a.heads[top][bits.TrailingZeros32(m)]
	}
	m := a.topMap >> (top + 1) << (top + 1)
	if m == 0 {
		return nilSlot
	}
	top = bits.TrailingZeros64(m)
	return a.heads[top][bits.TrailingZeros32(a.subMap[top])]
}

// take returns a block of exactly size steps for owner, or nilSlot. The low
// end of a larger block is used.
func (a *allocator) take(size uint64, owner uint32) uint32 {
	b := a.find(size)
	if b == nilSlot {
		return nilSlot
	}
	a.unlink(b)
	r := a.blocks.at(b)
	if rest := r.size - size; rest > 0 {
		n := a.blocks.get()
		nr := a.blocks.at(n)
		*nr = block{start: r.start + size, size: rest, prev: b, next: r.next}
		if r.next != nilSlot {
			a.blocks.at(r.next).prev = n
		} else {
			a.last = n
		}
		r.next, r.size = n, size
		a.link(n)
	}
	r.owner = owner
	a.freeSteps -= size
	return b
}

// give returns a block and merges it with free neighbours.
func (a *allocator) give(b uint32) {
	r := a.blocks.at(b)
	a.freeSteps += r.size
	r.owner = nilSlot
	if p := r.prev; p != nilSlot && a.blocks.at(p).owner == nilSlot {
		a.unlink(p)
		a.absorb(p, b)
		b, r = p, a.blocks.at(p)
	}
	if n := r.next; n != nilSlot && a.blocks.at(n).owner == nilSlot {
		a.unlink(n)
		a.absorb(b, n)
	}
	a.link(b)
}

// absorb appends the block behind b to it.
func (a *allocator) absorb(b, behind uint32) {
	r, n := a.blocks.at(b), a.blocks.at(behind)
	r.size += n.size
	r.next = n.next
	if n.next != nilSlot {
		a.blocks.at(n.next).prev = b
	} else {
		a.last = b
	}
	a.blocks.put(behind)
}

// grow puts [end, newEnd) under management; it merges with a free tail.
func (a *allocator) grow(newEnd uint64) {
	if newEnd <= a.end {
		return
	}
	more := newEnd - a.end
	b := a.blocks.get()
	*a.blocks.at(b) = block{start: a.end, size: more, prev: a.last, owner: noOwner}
	if a.last != nilSlot {
		a.blocks.at(a.last).next = b
	} else {
		a.first = b
	}
	a.last = b
	a.end = newEnd
	a.give(b)
}

// noOwner marks a block in transition; it is no object's slot.
const noOwner = ^uint32(0)

// check walks all blocks and lists and reports what is wrong.
func (a *allocator) check() error {
	var at, free uint64
	nFree, prev := 0, uint32(nilSlot)
	for b := a.first; b != nilSlot; b = a.blocks.at(b).next {
		r := a.blocks.at(b)
		switch {
		case r.start != at:
			return fmt.Errorf("block %d starts at step %d, its neighbour ends at %d", b, r.start, at)
		case r.prev != prev:
			return fmt.Errorf("block %d has %d as its lower neighbour, want %d", b, r.prev, prev)
		case r.size == 0:
			return fmt.Errorf("block %d is empty", b)
		}
		if r.owner == nilSlot {
			if prev != nilSlot && a.blocks.at(prev).owner == nilSlot {
				return fmt.Errorf("free blocks %d and %d are neighbours", prev, b)
			}
			free += r.size
			nFree++
		}
		at += r.size
		prev = b
	}
	if at != a.end || prev != a.last {
		return fmt.Errorf("blocks end at step %d (block %d), want %d (block %d)", at, prev, a.end, a.last)
	}
	if free != a.freeSteps {
		return fmt.Errorf("free steps add up to %d, counted %d", free, a.freeSteps)
	}
	for top := range topCount {
		if got, want := a.topMap>>top&1 == 1, a.subMap[top] != 0; got != want {
			return fmt.Errorf("top bitmap of class %d is %v, want %v", top, got, want)
		}
		for sub := range subCount {
			head := a.heads[top][sub]
			if got, want := a.subMap[top]>>sub&1 == 1, head != nilSlot; got != want {
				return fmt.Errorf("bitmap of class %d.%d is %v, want %v", top, sub, got, want)
			}
			before := uint32(nilSlot)
			for b := head; b != nilSlot; b = a.blocks.at(b).nextFree {
				r := a.blocks.at(b)
				if t, s := class(r.size); t != top || s != sub || r.owner != nilSlot || r.prevFree != before {
					return fmt.Errorf("block %d of %d steps does not belong in free list %d.%d", b, r.size, top, sub)
				}
				before = b
				nFree--
			}
		}
	}
	if nFree != 0 {
		return fmt.Errorf("%d free blocks are in no list", nFree)
	}
	return nil
}
