package copyplan

import (
	"fmt"

	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

// piece is a part of one row's slots whose heads and slots have constant
// distances on both sides: in one block of either where that is head-major.
type piece struct {
	engine, object int64 // bytes from the start of the row
	width          int64
	heads, slots   Dim
}

// side is the order of heads and slots in one place.
type side struct {
	block     int64 // slots per block, 0 for token-major
	row, head int64 // bytes of a slot with all heads, and of one head's part
}

func (s *side) at(slot int64) int64 {
	if s.block == 0 {
		return slot * s.row
	}
	return slot/s.block*s.block*s.row + slot%s.block*s.head
}

// left is how many slots from this one on are in the same block.
func (s *side) left(slot, most int64) int64 {
	if s.block == 0 {
		return most
	}
	return min(most, s.block-slot%s.block)
}

func (s *side) steps() (head, slot int64) {
	if s.block == 0 {
		return s.head, s.row
	}
	return s.block * s.head, s.head
}

// sides are the two orders of a conversion. One of them has heads.
func sides(engine, object *kvlayout.Region) (e, o side, heads int64) {
	heads = max(engine.Heads, object.Heads)
	head := engine.RowBytes / heads
	return side{engine.BlockSlots, engine.RowBytes, head}, side{object.BlockSlots, object.RowBytes, head}, heads
}

// cut is the piece that starts at a slot and takes at most so many.
func cut(e, o *side, heads, slot, most int64) (piece, int64) {
	n := o.left(slot, e.left(slot, most))
	eh, es := e.steps()
	oh, os := o.steps()
	p := piece{
		engine: e.at(slot), object: o.at(slot), width: e.head,
		heads: Dim{heads, eh, oh}, slots: Dim{n, es, os},
	}
	if es == p.width && os == p.width { // both head-major: slots of a head lie side by side
		p.width, p.slots = n*e.head, Dim{N: 1}
	}
	return p, n
}

// reorder plans blocks whose heads and slots change places on the way.
func (p *Plan) reorder(g *kvlayout.KernelGroup, ids []int64, first, object int64, own, form *kvlayout.Region) {
	e, o, heads := sides(own, form)
	rows, sets := layerAxis(g)
	pitch := int64(len(ids)) * g.BlockBytes
	step := g.LayerStep
	if g.RowStep > 0 {
		step = g.RowStep
	}
	for j := first; j < int64(len(ids)); j++ {
		start := j * g.SlotsPerBlock
		for s := start; s < start+g.SlotsPerBlock; {
			q, n := cut(&e, &o, heads, s, start+g.SlotsPerBlock-s)
			// The engine's side counts from its block, wherever that lies.
			engine := ids[j]*g.BlockStride + q.engine - j*g.BlockBytes
			for k := range sets {
				base := g.Bases[k*rows]
				p.add(Pattern{
					Storage: base.Storage, Engine: base.Offset + engine, Object: object + int64(k*rows)*pitch + q.object,
					Width: q.width, Rows: Dim{int64(rows), step, pitch}, Heads: q.heads, Slots: q.slots,
				})
			}
			s += n
		}
	}
}

func (p *Plan) add(q Pattern) {
	if q.Reorders() {
		p.Reorders++
	}
	p.Patterns = append(p.Patterns, q)
}

// AddConversion plans the rewriting of an object from one form to another.
// The source is at src of storage 0, which the plan's device must be given for
// the engine's memory; the result goes to dst of the pool. It is a store.
func (p *Plan) AddConversion(dst int64, to *kvlayout.Form, src int64, from *kvlayout.Form) error {
	if !from.Convertible(to) {
		return fmt.Errorf("%w: it is %v and cannot be read as %v", ErrObject, from, to)
	}
	p.Bytes += from.Bytes
	for i := range from.Regions {
		a, b := &from.Regions[i], &to.Regions[i]
		if a.BlockSlots == b.BlockSlots {
			p.Runs = append(p.Runs, Run{0, src + a.Offset, dst + b.Offset, a.Bytes()})
			continue
		}
		e, o, heads := sides(a, b)
		// What happens to the slots up to a common block border happens again
		// from there on, through all rows.
		period := lcm(max(e.block, 1), max(o.block, 1))
		pitch := period * a.RowBytes
		for s := int64(0); s < period; {
			q, n := cut(&e, &o, heads, s, period-s)
			p.add(Pattern{
				Engine: src + a.Offset + q.engine, Object: dst + b.Offset + q.object, Width: q.width,
				Rows: Dim{a.Bytes() / pitch, pitch, pitch}, Heads: q.heads, Slots: q.slots,
			})
			s += n
		}
	}
	return nil
}

func lcm(a, b int64) int64 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// Convert rewrites an object: src in one form becomes dst in the other. Both
// have exactly the form's size and must not overlap. It allocates nothing.
func Convert(dst []byte, to *kvlayout.Form, src []byte, from *kvlayout.Form) error {
	if int64(len(dst)) != to.Bytes || int64(len(src)) != from.Bytes {
		return fmt.Errorf("%w: %d and %d bytes for forms of %d and %d", ErrObject, len(src), len(dst), from.Bytes, to.Bytes)
	}
	p := Acquire()
	defer p.Release()
	if err := p.AddConversion(0, to, 0, from); err != nil {
		return err
	}
	storage := [1][]byte{src}
	p.Copy(Store, storage[:], dst, Pos{}, p.End())
	return nil
}
