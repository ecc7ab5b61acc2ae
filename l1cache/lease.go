package l1cache

import (
	"fmt"
	"time"
)

// entry is the lease's share in one object.
type entry struct {
	slot, gen uint32 // gen tells an object from a later one in the same slot
	left      uint32 // holds neither taken nor freed yet
}

// Lease is the holds that one lookup took. While an object has a hold it is
// not evicted, and an unforced Clear passes it by. The lease ends when its last
// hold is taken or freed, with Release, at its deadline, or when it was allowed
// to yield and space is needed. Safe for concurrent use.
type Lease struct {
	c        *Cache
	hashes   []Hash
	groups   []Group
	ranks    []uint32
	deadline time.Time
	groupBuf [1]Group
	rankBuf  [8]uint32

	// entries by group, then rank, then chunk; of a windowed group only the
	// chunks in its window.
	entries []entry       // guarded by c.mu
	left    int           // guarded by c.mu; sum over entries
	yield   bool          // guarded by c.mu
	k       links[*Lease] // guarded by c.mu
}

func (l *Lease) links() *links[*Lease] { return &l.k }

// Hit returns how many chunks the lookup found.
func (l *Lease) Hit() int { return len(l.hashes) }

// Hash returns the hash of chunk i, 0 <= i < Hit.
func (l *Lease) Hash(i int) Hash { return l.hashes[i] }

// Scope returns the scope of a group of the lookup.
func (l *Lease) Scope(group int) Scope { return l.groups[group].Scope }

// Deadline returns when the remaining holds end by themselves.
func (l *Lease) Deadline() time.Time { return l.deadline }

// first returns the first chunk that a group holds.
func (l *Lease) first(g int) int {
	return firstChunk(l.groups[g].WindowChunks, len(l.hashes))
}

// entry returns the share in one object, nil for a chunk before the window.
// rank is an index into l.ranks.
func (l *Lease) entry(g, rank, chunk int) *entry {
	n := len(l.hashes)
	base := 0
	for i := range g {
		base += (n - l.first(i)) * len(l.ranks)
	}
	first := l.first(g)
	if chunk < first || chunk >= n {
		return nil
	}
	return &l.entries[base+rank*(n-first)+chunk-first]
}

// valid tells whether the object of e is still the published one.
func (l *Lease) valid(e *entry) bool {
	o := l.c.objects.at(e.slot)
	return o.gen == e.gen && o.state == published
}

// unhold drops up to n holds of one entry and returns how many holds of a
// living object that were. The lock is held.
func (l *Lease) unhold(e *entry, n int) int {
	n = min(n, int(e.left))
	if n <= 0 {
		return 0
	}
	e.left -= uint32(n)
	l.left -= n
	l.c.n.leaseHolds -= int64(n)
	if !l.valid(e) {
		return 0
	}
	y := 0
	if l.yield {
		y = n
	}
	l.c.hold(e.slot, -n, -y)
	return n
}

// finish takes a lease without holds out of the cache's list. The lock is held.
func (l *Lease) finish() {
	if l.left == 0 {
		l.c.leases.remove(l)
	}
}

// Take moves one hold of each object of the chunks [from, to) to a transfer;
// of a windowed group, those in its window. When any of them has no hold left,
// the result is [ErrNotHeld] and each of the others loses one hold all the
// same, as after a read that failed. [ErrRange] changes nothing.
func (l *Lease) Take(group int, rank uint32, from, to int) (*Transfer, error) {
	var fx effects
	t, err := l.takeLocked(group, rank, from, to, &fx)
	l.c.flush(&fx)
	return t, err
}

func (l *Lease) takeLocked(group int, rank uint32, from, to int, fx *effects) (*Transfer, error) {
	r := l.rank(rank)
	if group < 0 || group >= len(l.groups) || r < 0 || from < 0 || from >= to {
		return nil, fmt.Errorf("%w: group %d, rank %d, chunks [%d, %d) of %d", ErrRange, group, rank, from, to, len(l.hashes))
	}
	c := l.c
	c.mu.Lock()
	defer c.unlock()
	if err := c.usable(); err != nil {
		return nil, err
	}
	c.expireReads(c.o.Now(), fx)
	lo, hi := max(from, l.first(group)), min(to, len(l.hashes))
	lacking := max(0, to-max(from, len(l.hashes)))
	for i := lo; i < hi; i++ {
		if e := l.entry(group, r, i); e.left == 0 || !l.valid(e) {
			lacking++
		}
	}
	if lacking > 0 {
		n := 0
		for i := lo; i < hi; i++ {
			n += l.unhold(l.entry(group, r, i), 1)
		}
		l.finish()
		if n > 0 {
			fx.release(l.groups[group].Scope, n)
		}
		return nil, fmt.Errorf("%w: %d of chunks [%d, %d), rank %d, hit of %d", ErrNotHeld, lacking, from, to, rank, len(l.hashes))
	}
	t := &Transfer{c: c, scope: l.groups[group].Scope}
	if lo < hi {
		t.ids = make([]uint32, 0, hi-lo)
		t.objects = make([]Object, 0, hi-lo)
	}
	for i := lo; i < hi; i++ {
		e := l.entry(group, r, i)
		o := c.objects.at(e.slot)
		o.transfers++
		l.unhold(e, 1)
		t.ids = append(t.ids, e.slot)
		t.objects = append(t.objects, Object{Chunk: i, Offset: c.offsetOf(o), Length: o.sizeBytes, Form: o.form})
	}
	c.n.transferObjects += int64(len(t.ids))
	l.finish()
	return t, nil
}

func (l *Lease) rank(rank uint32) int {
	for i, r := range l.ranks {
		if r == rank {
			return i
		}
	}
	return -1
}

// Free drops n holds (at most [MaxReaders]) of each object of the chunks
// [from, to), cut to the hit, of these ranks (nil: all) and all groups. It
// returns how many holds that were.
func (l *Lease) Free(ranks []uint32, from, to, n int) int {
	var fx effects
	freed := l.freeLocked(ranks, from, to, n, &fx)
	l.c.flush(&fx)
	return freed
}

func (l *Lease) freeLocked(ranks []uint32, from, to, n int, fx *effects) int {
	l.c.mu.Lock()
	defer l.c.unlock()
	n = min(n, MaxReaders)
	if ranks == nil {
		ranks = l.ranks
	}
	freed := 0
	for g := range l.groups {
		inGroup := 0
		for _, rank := range ranks {
			r := l.rank(rank)
			if r < 0 {
				continue
			}
			for i := max(from, l.first(g)); i < min(to, len(l.hashes)); i++ {
				inGroup += l.unhold(l.entry(g, r, i), n)
			}
		}
		if inGroup > 0 {
			fx.release(l.groups[g].Scope, inGroup)
		}
		freed += inGroup
	}
	l.finish()
	return freed
}

// Outstanding returns how many holds are left.
func (l *Lease) Outstanding() int {
	l.c.mu.Lock()
	defer l.c.unlock()
	return l.left
}

// Release drops all holds that are left. Transfers go on.
func (l *Lease) Release() {
	var fx effects
	l.releaseLocked(&fx)
	l.c.flush(&fx)
}

func (l *Lease) releaseLocked(fx *effects) {
	l.c.mu.Lock()
	defer l.c.unlock()
	l.end(fx)
}

// end drops all holds. The lock is held.
func (l *Lease) end(fx *effects) {
	if l.left > 0 {
		at := 0
		for g := range l.groups {
			n := 0
			for range (len(l.hashes) - l.first(g)) * len(l.ranks) {
				n += l.unhold(&l.entries[at], MaxReaders)
				at++
			}
			if n > 0 {
				fx.release(l.groups[g].Scope, n)
			}
		}
	}
	l.finish()
}

// SetYield says whether the holds may be revoked when a reservation would fail
// otherwise: for the leases of a session that has ended, which wait for a
// retrieve that may have been overtaken.
func (l *Lease) SetYield(yield bool) {
	l.c.mu.Lock()
	defer l.c.unlock()
	if l.yield == yield {
		return
	}
	l.yield = yield
	for i := range l.entries {
		e := &l.entries[i]
		if e.left == 0 || !l.valid(e) {
			continue
		}
		y := int(e.left)
		if !yield {
			y = -y
		}
		o := l.c.objects.at(e.slot)
		o.yields = uint32(int(o.yields) + y)
	}
}

// expireReads ends the leases whose deadline has passed. The lock is held.
func (c *Cache) expireReads(now time.Time, fx *effects) {
	for c.leases.len > 0 && !now.Before(c.leases.front.deadline) {
		l := c.leases.front
		fx.expiredReads += l.left
		c.n.expiredHolds += uint64(l.left)
		l.end(fx)
	}
}
