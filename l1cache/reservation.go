package l1cache

import "time"

// Slot is the memory of one reserved object.
type Slot struct {
	// Chunk is the index into the request's hashes.
	Chunk int
	// Offset and Length in bytes, from the start of the arena. Length is the
	// size asked for.
	Offset, Length int64
}

// stage of a reservation.
type stage uint8

const (
	open     stage = iota // its objects are reserved or filling
	detached              // its objects are quarantined
	ended                 // it has no objects
)

// Reservation is the right to fill some objects that do not exist yet. It ends
// with one of Publish, Abort and Release; until then its memory is nobody
// else's. All methods may be called from any goroutine, in any order, and
// again.
type Reservation struct {
	c              *Cache
	scope          Scope
	slots          []Slot
	resident, busy int
	deadline       time.Time

	ids     []uint32            // guarded by c.mu; one per slot
	stage   stage               // guarded by c.mu
	expired bool                // guarded by c.mu
	k       links[*Reservation] // guarded by c.mu
}

func (r *Reservation) links() *links[*Reservation] { return &r.k }

// Slots returns the memory to fill, in chunk order; empty when every chunk was
// skipped. Do not modify it.
func (r *Reservation) Slots() []Slot { return r.slots }

// Skipped returns how many chunks were already published, and how many another
// reservation is about to provide (a chunk named twice counts here too).
func (r *Reservation) Skipped() (resident, busy int) { return r.resident, r.busy }

// BeginFill says that the copy is on its way: lookups that meet these objects
// may wait for them from now on.
func (r *Reservation) BeginFill() {
	r.c.mu.Lock()
	defer r.c.unlock()
	if r.stage != open {
		return
	}
	for _, id := range r.ids {
		if r.c.objects.at(id).state == reserved {
			r.c.setState(id, filling)
		}
	}
}

// Publish makes the objects whose slot keep names readable, all of them when
// keep is nil, and gives the memory of the others back. It returns how many
// were published: 0 after the write TTL, after Quarantine, and after
// Clear(force), when the memory is given back. Calling it says that nobody
// writes to the slots any more.
func (r *Reservation) Publish(keep []bool) int {
	var fx effects
	n := r.publishLocked(keep, &fx)
	r.c.flush(&fx)
	return n
}

func (r *Reservation) publishLocked(keep []bool, fx *effects) int {
	c := r.c
	c.mu.Lock()
	defer c.unlock()
	c.expireWrites(c.o.Now(), fx)
	if r.stage != open || c.closed {
		r.end(fx)
		return 0
	}
	n := 0
	// In reverse: within a request the last chunk is to be evicted first.
	for i := len(r.ids) - 1; i >= 0; i-- {
		id := r.ids[i]
		if keep != nil && (i >= len(keep) || !keep[i]) {
			c.forget(id, fx)
			c.free(id)
			continue
		}
		c.enlist(c.objects.at(id))
		c.setState(id, published)
		c.touch(id)
		c.settle(id, fx)
		c.sample(c.objects.at(id), ObjectStored, fx)
		n++
	}
	r.ids, r.stage = nil, ended
	c.writes.remove(r)
	c.n.published += uint64(n)
	fx.published, fx.publishedIn = n, r.scope
	return n
}

// Abort gives the memory back at once. Only when nobody can still write there.
func (r *Reservation) Abort() { r.Release() }

// Quarantine frees the keys for others at once and keeps the memory until
// Release: for slots in the hands of a client that may still write to them.
func (r *Reservation) Quarantine() {
	var fx effects
	r.quarantineLocked(&fx)
	r.c.flush(&fx)
}

func (r *Reservation) quarantineLocked(fx *effects) {
	r.c.mu.Lock()
	defer r.c.unlock()
	r.detach(fx)
}

// Release ends a quarantine, or a reservation in any other stage.
func (r *Reservation) Release() {
	var fx effects
	r.releaseLocked(&fx)
	r.c.flush(&fx)
}

func (r *Reservation) releaseLocked(fx *effects) {
	r.c.mu.Lock()
	defer r.c.unlock()
	r.end(fx)
}

// Expired tells whether the write TTL ended the reservation, or has passed.
func (r *Reservation) Expired() bool {
	r.c.mu.Lock()
	defer r.c.unlock()
	return r.expired || r.stage == open && !r.c.o.Now().Before(r.deadline)
}

// detach takes the objects out of the index. The lock is held.
func (r *Reservation) detach(fx *effects) {
	if r.stage != open {
		return
	}
	for _, id := range r.ids {
		r.c.forget(id, fx)
		r.c.setState(id, quarantined)
	}
	r.stage = detached
	r.c.writes.remove(r)
}

// end frees whatever the reservation still has. The lock is held.
func (r *Reservation) end(fx *effects) {
	if r.stage == ended {
		return
	}
	for _, id := range r.ids {
		if r.stage == open {
			r.c.forget(id, fx)
		}
		r.c.free(id)
	}
	r.ids, r.stage = nil, ended
	r.c.writes.remove(r)
}

// expireWrites detaches the reservations whose write TTL has passed. The lock
// is held.
func (c *Cache) expireWrites(now time.Time, fx *effects) {
	for c.writes.len > 0 && !now.Before(c.writes.front.deadline) {
		r := c.writes.front
		r.expired = true
		fx.expiredWrites += len(r.ids)
		c.n.expiredWrites += uint64(len(r.ids))
		r.detach(fx)
	}
}
