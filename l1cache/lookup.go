package l1cache

// Group is one object group of a lookup.
type Group struct {
	Scope Scope
	// WindowChunks is how many chunks at the end of the hit this group needs:
	// its attention does not look further back. 0: all of them.
	WindowChunks int
}

// LookupRequest asks for the longest prefix that can be served.
type LookupRequest struct {
	// Groups and Ranks that must all have a chunk for it to count. Copied.
	Groups []Group
	Ranks  []uint32
	// Hashes of the prompt's chunks. The lease keeps the slice: do not modify
	// its elements afterwards.
	Hashes []Hash
	// Readers is how many times each object will be taken; clamped to
	// 1..[MaxReaders].
	Readers int
}

// MaxReaders is the largest number of holds one call takes or frees on an
// object (lmcache 0.5.6, v1/distributed/l1_manager.py, MAX_READ_LOCK_COUNT).
const MaxReaders = 128

// Lookup finds the largest n such that, for every group and rank, the chunks
// [max(0, n-window), n) are published, takes Readers holds on each of these
// objects and none beyond, and makes them the most recently used, the first
// chunk the most of all. The lease is nil when n is 0.
//
// When n would be larger if objects that are being filled were published, and
// onSettled is not nil, Lookup holds nothing and returns pending: onSettled is
// called once, by any goroutine, when one of these objects was published or
// given up; then look up again. It may be called before Lookup returns. With
// onSettled nil they are a miss.
func (c *Cache) Lookup(r LookupRequest, onSettled func()) (lease *Lease, pending bool) {
	if len(r.Groups) == 0 || len(r.Ranks) == 0 || len(r.Hashes) == 0 {
		return nil, false
	}
	c.mu.Lock()
	defer c.unlock()
	if c.usable() != nil {
		return nil, false
	}
	w := walk{c: c, r: r}
	if !w.resolve() {
		return nil, false // a group without any object
	}
	if need := len(r.Groups) * len(r.Ranks) * len(r.Hashes); cap(c.scratch) < need {
		c.scratch = make([]uint32, need)
	}
	w.found = c.scratch[:cap(c.scratch)]
	n := w.longest()
	if w.metFilling && onSettled != nil {
		w.optimistic = true
		if most := w.longest(); most > n {
			blocker := w.firstFilling(most)
			c.waiters[blocker] = append(c.waiters[blocker], onSettled)
			return nil, true
		}
	}
	if n == 0 {
		return nil, false
	}
	return c.lease(&w, n), false
}

// walk is the search of one lookup.
type walk struct {
	c          *Cache
	r          LookupRequest
	optimistic bool // take what is being filled for published
	metFilling bool
	scopes     [4]uint32
	more       []uint32 // scopes of groups beyond the fourth
	found      []uint32 // by group, chunk and rank: the objects met
}

// resolve finds the groups' scopes, without making them.
func (w *walk) resolve() bool {
	for g := range w.r.Groups {
		id, ok := w.c.scopes.lookup(w.r.Groups[g].Scope)
		if !ok {
			return false
		}
		if g < len(w.scopes) {
			w.scopes[g] = id
		} else {
			w.more = append(w.more, id)
		}
	}
	return true
}

func (w *walk) scope(g int) uint32 {
	if g < len(w.scopes) {
		return w.scopes[g]
	}
	return w.more[g-len(w.scopes)]
}

// has tells whether chunk i of a group is published for all ranks.
func (w *walk) has(g, i int) bool {
	c := w.c
	k := key{hash: w.r.Hashes[i], scope: w.scope(g)}
	found := w.foundAt(g, i)
	for j, rank := range w.r.Ranks {
		k.rank = rank
		id, ok := c.index[k]
		if !ok {
			return false
		}
		switch c.objects.at(id).state {
		case published:
		case filling:
			w.metFilling = true
			if !w.optimistic {
				return false
			}
		default:
			return false
		}
		found[j] = id
	}
	return true
}

// foundAt is the part of found for one chunk of one group.
func (w *walk) foundAt(g, i int) []uint32 {
	at := (g*len(w.r.Hashes) + i) * len(w.r.Ranks)
	return w.found[at : at+len(w.r.Ranks)]
}

// longest returns the number of chunks that can be served.
func (w *walk) longest() int {
	// Groups of full attention bound the prefix, from the front.
	n := len(w.r.Hashes)
	for g := range w.r.Groups {
		if w.r.Groups[g].WindowChunks > 0 {
			continue
		}
		for i := range n {
			if !w.has(g, i) {
				n = i
				break
			}
		}
	}
	// Windowed groups need the end of it only: from the back. A gap at chunk i
	// leaves no candidate between i and the present n.
	for g := 0; g < len(w.r.Groups); {
		window := w.r.Groups[g].WindowChunks
		if window <= 0 {
			g++
			continue
		}
		gap := -1
		for i := n - 1; i >= firstChunk(window, n); i-- {
			if !w.has(g, i) {
				gap = i
				break
			}
		}
		if gap >= 0 {
			n, g = gap, 0 // shorter: the windows of all groups move
		} else {
			g++
		}
	}
	return n
}

// firstFilling returns an object that a hit of n chunks waits for. The walk was
// optimistic.
func (w *walk) firstFilling(n int) uint32 {
	for g := range w.r.Groups {
		for i := firstChunk(w.r.Groups[g].WindowChunks, n); i < n; i++ {
			for _, id := range w.foundAt(g, i) {
				if w.c.objects.at(id).state == filling {
					return id
				}
			}
		}
	}
	panic("l1cache: a lookup waits for no object")
}

// firstChunk is where the window of a hit of n chunks begins.
func firstChunk(windowChunks, n int) int {
	if windowChunks <= 0 {
		return 0
	}
	return max(0, n-windowChunks)
}

// lease takes the holds of a hit of n chunks, all of which the walk has found.
func (c *Cache) lease(w *walk, n int) *Lease {
	readers := min(max(w.r.Readers, 1), MaxReaders)
	l := &Lease{c: c, hashes: w.r.Hashes[:n:n], deadline: c.o.Now().Add(c.o.ReadTTL)}
	l.groups = append(l.groupBuf[:0], w.r.Groups...)
	l.ranks = append(l.rankBuf[:0], w.r.Ranks...)
	entries := 0
	for g := range l.groups {
		entries += (n - l.first(g)) * len(l.ranks)
	}
	l.entries = make([]entry, entries)
	// The last chunk first, all its groups and ranks together: it becomes the
	// oldest of them.
	for i := n - 1; i >= 0; i-- {
		for g := range l.groups {
			if i < l.first(g) {
				continue
			}
			for rank, id := range w.foundAt(g, i) {
				c.hold(id, readers, 0)
				c.use(id)
				*l.entry(g, rank, i) = entry{slot: id, gen: c.objects.at(id).gen, left: uint32(readers)}
			}
		}
	}
	l.left = entries * readers
	c.leases.push(l)
	c.n.leaseHolds += int64(l.left)
	return l
}

// Touch makes the published objects among the named ones the most recently
// used, the first chunk the most of all. Others are ignored.
func (c *Cache) Touch(scope Scope, ranks []uint32, hashes []Hash) {
	c.mu.Lock()
	defer c.unlock()
	id, ok := c.scopes.lookup(scope)
	if !ok || c.usable() != nil {
		return
	}
	for i := len(hashes) - 1; i >= 0; i-- {
		for _, rank := range ranks {
			if o, ok := c.index[key{hashes[i], id, rank}]; ok && c.objects.at(o).state == published {
				c.touch(o)
			}
		}
	}
}
