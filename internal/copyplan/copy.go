package copyplan

// Direction of a copy.
type Direction uint8

const (
	// Store copies from the engine's blocks to objects.
	Store Direction = iota
	// Load copies from objects to the engine's blocks.
	Load
)

// String is the word for logs.
func (d Direction) String() string {
	if d == Store {
		return "store"
	}
	return "load"
}

// Pos is a place in a plan: runs first, then patterns; Sub counts bytes inside
// a run and rows inside a pattern. The zero value is the start.
type Pos struct {
	Op  int
	Sub int64
}

// End is the place behind the last copy.
func (p *Plan) End() Pos { return Pos{Op: len(p.Runs) + len(p.Patterns)} }

// Stores that bypass the caches spare reading what is overwritten, a third of
// the traffic. They pay where more is copied than the caches hold: for plans
// from streamPlan bytes on, in pieces from streamMin bytes on.
const (
	streamPlan = 4 << 20
	streamMin  = 256
)

// maxPart bounds the number of copies in a part, so that cutting one is quick.
const maxPart = 512

// Cut finds the end of the part that starts at from and copies about so many
// bytes. Parts of one plan may be copied at the same time. A part of small
// pieces ends early.
func (p *Plan) Cut(from Pos, bytes int64) Pos {
	at := from
	for left, n := bytes, 0; left > 0 && at.Op < len(p.Runs)+len(p.Patterns); n++ {
		if n == maxPart {
			break
		}
		if at.Op < len(p.Runs) {
			rest := p.Runs[at.Op].Bytes - at.Sub
			// No crumbs: a rest of a quarter part goes along.
			if rest > left+bytes/4 {
				return Pos{at.Op, at.Sub + left}
			}
			left -= rest
			at = Pos{Op: at.Op + 1}
			continue
		}
		q := &p.Patterns[at.Op-len(p.Runs)]
		row := q.Width * q.Heads.N * q.Slots.N
		rows := (left + row - 1) / row
		if at.Sub+rows < q.Rows.N {
			return Pos{at.Op, at.Sub + rows}
		}
		left -= (q.Rows.N - at.Sub) * row
		at = Pos{Op: at.Op + 1}
	}
	return at
}

// Copy moves the bytes of a part. The plan must have been checked against the
// lengths of the slices. A large plan is copied past the processor's caches.
func (p *Plan) Copy(d Direction, storages [][]byte, pool []byte, from, to Pos) {
	move := func(dst, src []byte) { copy(dst, src) }
	if canStream && p.Bytes >= streamPlan {
		move = streamCopy
		defer storeFence()
	}
	for at := from; at.Op < to.Op || (at.Op == to.Op && at.Sub < to.Sub); at = (Pos{Op: at.Op + 1}) {
		if at.Op < len(p.Runs) {
			r := &p.Runs[at.Op]
			end := r.Bytes
			if at.Op == to.Op {
				end = to.Sub
			}
			e := storages[r.Storage][r.Engine+at.Sub : r.Engine+end]
			o := pool[r.Object+at.Sub : r.Object+end]
			if d == Store {
				move(o, e)
			} else {
				move(e, o)
			}
			continue
		}
		q := &p.Patterns[at.Op-len(p.Runs)]
		end := q.Rows.N
		if at.Op == to.Op {
			end = to.Sub
		}
		if d == Store {
			t := tile{move, q.Width, axis{q.Heads.N, q.Heads.Object, q.Heads.Engine}, axis{q.Slots.N, q.Slots.Object, q.Slots.Engine}}
			t.copyRows(pool[q.Object:], storages[q.Storage][q.Engine:], axis{q.Rows.N, q.Rows.Object, q.Rows.Engine}, at.Sub, end)
		} else {
			t := tile{move, q.Width, axis{q.Heads.N, q.Heads.Engine, q.Heads.Object}, axis{q.Slots.N, q.Slots.Engine, q.Slots.Object}}
			t.copyRows(storages[q.Storage][q.Engine:], pool[q.Object:], axis{q.Rows.N, q.Rows.Engine, q.Rows.Object}, at.Sub, end)
		}
	}
}

// axis is a Dim seen from where a copy goes.
type axis struct{ n, dst, src int64 }

// tile is one row of a pattern: heads and slots of one block.
type tile struct {
	move         func(dst, src []byte)
	width        int64
	outer, inner axis
}

// copyRows copies the tile at rows from..to.
func (t *tile) copyRows(dst, src []byte, rows axis, from, to int64) {
	if t.outer.n == 1 && t.inner.n == 1 {
		for r := from; r < to; r++ {
			t.move(dst[r*rows.dst:r*rows.dst+t.width], src[r*rows.src:r*rows.src+t.width])
		}
		return
	}
	// Read in the order of addresses: the processor fetches ahead there, and
	// the scattered writes of one block stay in its cache. The other way round
	// was a third slower.
	if t.inner.n == 1 || (t.outer.n > 1 && t.outer.src < t.inner.src) {
		t.outer, t.inner = t.inner, t.outer
	}
	for r := from; r < to; r++ {
		t.copy(dst[r*rows.dst:], src[r*rows.src:])
	}
}

// copy moves one tile.
func (t *tile) copy(dst, src []byte) {
	w := t.width
	for o := range t.outer.n {
		d, s := o*t.outer.dst, o*t.outer.src
		for range t.inner.n {
			t.move(dst[d:d+w], src[s:s+w])
			d += t.inner.dst
			s += t.inner.src
		}
	}
}
