package l1cache

// Object is the memory of one published object.
type Object struct {
	// Chunk is its place in the lookup.
	Chunk int
	// Offset and Length in bytes, from the start of the arena.
	Offset, Length int64
	Form           Form
}

// Transfer is a read in progress. Until Done, the bytes of its objects stay
// where and what they are, whatever becomes of the objects.
type Transfer struct {
	c       *Cache
	scope   Scope
	objects []Object
	ids     []uint32 // guarded by c.mu; nil after Done
}

// Objects returns the memory to read, in chunk order. Do not modify it, nor the
// bytes.
func (t *Transfer) Objects() []Object { return t.objects }

// Done ends the read. Further calls do nothing.
func (t *Transfer) Done() {
	var fx effects
	t.doneLocked(&fx)
	t.c.flush(&fx)
}

func (t *Transfer) doneLocked(fx *effects) {
	c := t.c
	c.mu.Lock()
	defer c.unlock()
	if len(t.ids) == 0 {
		return
	}
	for _, id := range t.ids {
		o := c.objects.at(id)
		o.transfers--
		if c.sampler != nil && o.state == published {
			c.sample(o, ObjectRead, fx)
		}
		switch {
		case o.state == published:
			c.unheld(id)
		case o.transfers == 0:
			c.free(id) // cleared meanwhile
		}
	}
	c.n.transferObjects -= int64(len(t.ids))
	fx.release(t.scope, len(t.ids))
	t.ids = nil
}
