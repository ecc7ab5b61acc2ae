package l1cache

import (
	"context"
	"fmt"
)

// ReserveRequest asks for memory for the objects of one scope and rank.
type ReserveRequest struct {
	Scope Scope
	Rank  uint32
	// Hashes of the chunks, in the order of the prompt. It is not kept.
	Hashes []Hash
	// SizeBytes of each object.
	SizeBytes int64
	// Form of the objects, kept beside them.
	Form Form
	// NoWait answers [ErrGrowing] instead of waiting for a piece of the arena.
	NoWait bool
}

// isNew marks, in the scratch of a reservation, an object that it made.
const isNew = 1 << 31

// Reserve makes room for the objects that do not exist yet: for all of them or
// none. Chunks that are resident or reserved by somebody else are skipped and
// counted; resident ones become the most recently used, so that making room
// does not evict the prefix of what is about to be stored. While the arena
// grows, a reservation that finds no room waits for it (until ctx ends) rather
// than evicting.
//
// Errors: [ErrTooLarge], [ErrNoSpace], [ErrGrowing], [ErrClosed], [ErrBroken];
// then nothing was reserved, and nothing evicted.
func (c *Cache) Reserve(ctx context.Context, r ReserveRequest) (*Reservation, error) {
	if r.SizeBytes <= 0 {
		return nil, fmt.Errorf("l1cache: object size must be positive, got %d", r.SizeBytes)
	}
	for {
		var fx effects
		res, grow, err := c.tryReserve(&r, &fx)
		c.flush(&fx)
		switch {
		case grow == nil:
			return res, err
		case r.NoWait:
			return nil, fmt.Errorf("%w: %d objects of %d bytes find no room yet", ErrGrowing, len(r.Hashes), r.SizeBytes)
		}
		select {
		case <-grow:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: waited for room for %d objects of %d bytes: %w", ErrGrowing, len(r.Hashes), r.SizeBytes, ctx.Err())
		}
	}
}

// tryReserve is one attempt. A channel means: try again when it is closed.
func (c *Cache) tryReserve(r *ReserveRequest, fx *effects) (*Reservation, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.unlock()
	if err := c.usable(); err != nil {
		return nil, nil, err
	}
	now := c.o.Now()
	c.expireWrites(now, fx)

	res := &Reservation{c: c, scope: r.Scope, deadline: now.Add(c.o.WriteTTL)}
	marks := c.scratch[:0]
	fresh := 0
	for i := range r.Hashes {
		id, isFresh := c.claim(r, i)
		switch {
		case isFresh:
			fresh++
			id |= isNew
		case c.objects.at(id).state == published:
			res.resident++
		default:
			res.busy++
		}
		marks = append(marks, id)
	}
	c.scratch = marks
	for i := len(marks) - 1; i >= 0; i-- {
		if id := marks[i]; id&isNew == 0 && c.objects.at(id).state == published {
			c.touch(id)
		}
	}
	if fresh == 0 {
		res.stage = ended
		return res, nil, nil
	}
	res.ids = make([]uint32, 0, fresh)
	res.slots = make([]Slot, 0, fresh)
	for i, id := range marks {
		if id&isNew != 0 {
			res.ids = append(res.ids, id&^isNew)
			res.slots = append(res.slots, Slot{Chunk: i, Length: r.SizeBytes})
		}
	}
	c.makeRoomInQuota(r.Scope.Salt, int64(fresh)*((r.SizeBytes+int64(c.o.AlignBytes)-1)&^int64(c.o.AlignBytes-1)), fx)
	steps := (uint64(r.SizeBytes) + uint64(c.o.AlignBytes) - 1) >> c.shift
	if grow, err := c.makeRoom(res.ids, steps, fx); grow != nil || err != nil {
		for _, id := range res.ids {
			delete(c.index, c.objects.at(id).key)
			c.drop(id)
		}
		return nil, grow, err
	}
	for i, id := range res.ids {
		o := c.objects.at(id)
		o.state = reserved
		c.count(o, 1)
		res.slots[i].Offset = c.offsetOf(o)
	}
	c.writes.push(res)
	return res, nil, nil
}

// claim finds the object of a chunk or makes one without memory.
func (c *Cache) claim(r *ReserveRequest, i int) (id uint32, fresh bool) {
	scope, known := c.scopes.lookup(r.Scope)
	if known {
		if id, ok := c.index[key{r.Hashes[i], scope, r.Rank}]; ok {
			return id, false
		}
	}
	scope = c.scopes.ref(r.Scope)
	id = c.objects.get()
	o := c.objects.at(id)
	*o = object{
		key:       key{r.Hashes[i], scope, r.Rank},
		sizeBytes: r.SizeBytes, gen: o.gen, form: r.Form, state: absent,
	}
	c.index[o.key] = id
	return id, true
}
