package copyplan

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"

	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

// Run is a copy of Bytes that lie side by side in both places.
type Run struct {
	// Storage indexes the storages of the layout.
	Storage int
	// Engine is the offset in the storage, Object the one in the pool.
	Engine, Object int64
	Bytes          int64
}

// Dim is one axis of a [Pattern]: N entries, so many bytes apart.
type Dim struct {
	N              int64
	Engine, Object int64
}

// Pattern is a copy of many pieces of Width bytes at regular distances. With
// Heads.N and Slots.N of 1 it is a 2-D copy. Otherwise it changes the order of
// heads and slots on the way, which copy engines cannot do.
type Pattern struct {
	Storage        int
	Engine, Object int64
	Width          int64
	// Rows is the outermost axis: the same piece in many layers.
	Rows Dim
	// Heads and Slots are the axes inside a block that is reordered.
	Heads, Slots Dim
}

// Reorders says whether the pattern is more than a 2-D copy.
func (p *Pattern) Reorders() bool { return p.Heads.N > 1 || p.Slots.N > 1 }

// Plan is what one request copies, in no particular order. A Plan belongs to
// one goroutine until it is submitted; from then on nobody writes to it until
// the copy is done. Its buffers are kept for the next request.
type Plan struct {
	Runs     []Run
	Patterns []Pattern
	// Bytes is the sum of both.
	Bytes int64
	// Reorders counts the patterns that change the order of heads and slots.
	Reorders int

	segs []segment
}

var plans = sync.Pool{New: func() any { return new(Plan) }}

// Acquire returns an empty plan with buffers from earlier ones.
func Acquire() *Plan { return plans.Get().(*Plan) }

// Release gives the plan's buffers back. The plan must not be used after.
func (p *Plan) Release() {
	// A plan of scattered small blocks is some megabytes; keep no more.
	const keep = 1 << 16
	if cap(p.Runs) <= keep && cap(p.Patterns) <= keep {
		p.Reset()
		plans.Put(p)
	}
}

// Reset empties the plan.
func (p *Plan) Reset() {
	*p = Plan{Runs: p.Runs[:0], Patterns: p.Patterns[:0], segs: p.segs[:0]}
}

// Options is what a device is good at.
type Options struct {
	// PatternsBelow: use 2-D copies where plain runs would be shorter on
	// average than this many bytes. 0 uses none.
	PatternsBelow int64
	// MaxPitch bounds the distance between the rows of a 2-D copy; 0 for no bound.
	MaxPitch int64
}

// Always is a value of PatternsBelow: 2-D copies wherever they fit.
const Always = math.MaxInt64

// Request is one transfer of one object group.
type Request struct {
	Layout *kvlayout.Layout
	// Group is the object group.
	Group int
	// BlockIDs has one list per list of the layout, covering all Chunks.
	BlockIDs [][]int64
	// Chunks of the request.
	Chunks int
	// SkipTokens at the start of the request are left alone: whole blocks
	// inside them are not copied. 0 for a store.
	SkipTokens int
}

// Object is one chunk's place in the pool.
type Object struct {
	// Chunk counts from the start of the request.
	Chunk int
	// Offset in the pool and Bytes of the object.
	Offset, Bytes int64
	// Form of the object; nil for the one that the layout itself has.
	Form *kvlayout.Form
}

// segment is a part of a chunk's kept blocks that lies side by side in both
// places: its offsets from the start of a row, in bytes.
type segment struct{ engine, object, bytes int64 }

// Add plans the copy between the engine's blocks and objects. On an error,
// which wraps one of this package's, the plan is unchanged. It allocates only
// while the plan's buffers grow.
func (p *Plan) Add(r *Request, objects []Object, o Options) error {
	l := r.Layout
	if r.Group < 0 || r.Group >= len(l.Object) {
		return fmt.Errorf("%w: object group %d of %d", ErrObject, r.Group, len(l.Object))
	}
	if err := CheckBlocks(l, r.BlockIDs, r.Chunks); err != nil {
		return err
	}
	own := l.Object[r.Group].Form
	for i := range objects {
		ob := &objects[i]
		if ob.Chunk < 0 || ob.Chunk >= r.Chunks {
			return fmt.Errorf("%w: chunk %d of %d", ErrObject, ob.Chunk, r.Chunks)
		}
		if ob.Bytes != own.Bytes || ob.Offset < 0 || ob.Offset > math.MaxInt64-own.Bytes {
			return fmt.Errorf("%w: %d bytes at %d, objects of group %d have %d", ErrObject, ob.Bytes, ob.Offset, r.Group, own.Bytes)
		}
		if ob.Form != nil && ob.Form != own && !ob.Form.Convertible(own) {
			return fmt.Errorf("%w: it is %v, the engine's are %v, and neither can be read as the other", ErrObject, ob.Form, own)
		}
	}
	for i := range objects {
		ob := &objects[i]
		form := ob.Form
		if form == nil {
			form = own
		}
		skip := int64(r.SkipTokens) - int64(ob.Chunk)*int64(l.ChunkTokens)
		for at, k := range l.Object[r.Group].Kernel {
			g := &l.Kernel[k]
			first := max(skip, 0)/g.TokensPerBlock - int64(g.BlocksPerChunk-g.KeptBlocks)
			ids := r.BlockIDs[g.List][(ob.Chunk+1)*g.BlocksPerChunk-g.KeptBlocks : (ob.Chunk+1)*g.BlocksPerChunk]
			p.group(g, ids, max(first, 0), ob.Offset, &own.Regions[at], &form.Regions[at], o)
		}
	}
	return nil
}

// AddRun adds a copy that no request describes, such as one of engine blocks
// into a buffer that is to be hashed.
func (p *Plan) AddRun(r Run) {
	p.Runs = append(p.Runs, r)
	p.Bytes += r.Bytes
}

// group plans one kernel group's blocks of one object, from block first of the
// kept ones on.
func (p *Plan) group(g *kvlayout.KernelGroup, ids []int64, first, object int64, own, form *kvlayout.Region, o Options) {
	kept := int64(len(ids))
	if first >= kept {
		return
	}
	object += g.RegionOffset
	p.Bytes += (kept - first) * g.BlockBytes * int64(len(g.Bases))
	if own.BlockSlots != form.BlockSlots {
		p.reorder(g, ids, first, object, own, form)
		return
	}
	p.split(g, ids, first)
	if step := p.step(g, kept-first, o); step > 0 {
		p.patterns(g, object, kept, step)
		return
	}
	p.runs(g, object, kept)
}

// split finds the blocks that lie side by side in the engine as they do in the
// object: consecutive ids without a gap between blocks.
func (p *Plan) split(g *kvlayout.KernelGroup, ids []int64, first int64) {
	segs := p.segs[:0]
	bb := g.BlockBytes
	cur := segment{ids[first] * g.BlockStride, first * bb, bb}
	next := int64(-1) // the id that would continue cur
	if g.BlockStride == bb {
		next = ids[first] + 1
	}
	for j := first + 1; j < int64(len(ids)); j++ {
		id := ids[j]
		if id == next {
			cur.bytes += bb
			next++
			continue
		}
		segs = append(segs, cur)
		cur = segment{id * g.BlockStride, j * bb, bb}
		if next >= 0 {
			next = id + 1
		}
	}
	p.segs = append(segs, cur)
}

// runs emits the segments of every row. The last of a row and the first of the
// next may be one run.
func (p *Plan) runs(g *kvlayout.KernelGroup, object, kept int64) {
	runs := slices.Grow(p.Runs, len(g.Bases)*len(p.segs))
	for i := range g.Bases {
		base := &g.Bases[i]
		segs := p.segs
		if len(runs) > 0 {
			last, first := &runs[len(runs)-1], &segs[0]
			if last.Object+last.Bytes == object+first.object && last.Engine+last.Bytes == base.Offset+first.engine && last.Storage == base.Storage {
				last.Bytes += first.bytes
				segs = segs[1:]
			}
		}
		for s := range segs {
			seg := &segs[s]
			runs = append(runs, Run{base.Storage, base.Offset + seg.engine, object + seg.object, seg.bytes})
		}
		object += kept * g.BlockBytes
	}
	p.Runs = runs
}

// step is the distance between the rows of a 2-D copy if such copies are the
// better way for the current segments, else 0.
func (p *Plan) step(g *kvlayout.KernelGroup, blocks int64, o Options) int64 {
	step := g.LayerStep
	rows := len(g.Layers)
	if g.RowStep > 0 {
		step, rows = g.RowStep, len(g.Bases)
	}
	mean := blocks * g.BlockBytes / int64(len(p.segs))
	if step == 0 || rows < 2 || mean >= o.PatternsBelow || (o.MaxPitch > 0 && step > o.MaxPitch) {
		return 0
	}
	for i := range p.segs {
		// Overlapping rows are no 2-D copy; rows side by side are one run.
		if width := p.segs[i].bytes; width > step || (width == step && len(p.segs) == 1) {
			return 0
		}
	}
	return step
}

// patterns emits each segment once for all rows, or once per plane where K and
// V are not as far apart as layers are.
func (p *Plan) patterns(g *kvlayout.KernelGroup, object, kept, step int64) {
	rows, planes := layerAxis(g)
	pitch := kept * g.BlockBytes
	for k := range planes {
		i := k * rows
		base := g.Bases[i]
		for s := range p.segs {
			seg := &p.segs[s]
			p.Patterns = append(p.Patterns, Pattern{
				Storage: base.Storage, Engine: base.Offset + seg.engine,
				Object: object + int64(i)*pitch + seg.object, Width: seg.bytes,
				Rows: Dim{int64(rows), step, pitch}, Heads: Dim{N: 1}, Slots: Dim{N: 1},
			})
		}
	}
}

// layerAxis says how many rows have one distance, and how many such sets there
// are.
func layerAxis(g *kvlayout.KernelGroup) (rows, sets int) {
	switch {
	case g.RowStep > 0:
		return len(g.Bases), 1
	case g.LayerStep > 0:
		return len(g.Layers), g.Planes
	}
	return 1, len(g.Bases)
}

// Check says whether all copies stay inside the storages and the pool. Devices
// call it before the first byte moves; a plan made for other memory fails here.
func (p *Plan) Check(storages []int64, poolBytes int64) error {
	for i := range p.Runs {
		r := &p.Runs[i]
		if uint(r.Storage) >= uint(len(storages)) || r.Bytes < 0 ||
			r.Engine < 0 || r.Engine > storages[r.Storage]-r.Bytes || r.Object < 0 || r.Object > poolBytes-r.Bytes {
			return fmt.Errorf("%w: run %+v, %d storages, pool of %d bytes", ErrBounds, *r, len(storages), poolBytes)
		}
	}
	for i := range p.Patterns {
		q := &p.Patterns[i]
		if uint(q.Storage) >= uint(len(storages)) ||
			!fits(q.Engine, q.Width, storages[q.Storage], [3]Dim{q.Rows, q.Heads, q.Slots}, func(d Dim) int64 { return d.Engine }) ||
			!fits(q.Object, q.Width, poolBytes, [3]Dim{q.Rows, q.Heads, q.Slots}, func(d Dim) int64 { return d.Object }) {
			return fmt.Errorf("%w: pattern %+v, %d storages, pool of %d bytes", ErrBounds, *q, len(storages), poolBytes)
		}
	}
	return nil
}

// fits says whether a pattern that starts there ends within size bytes.
func fits(start, width, size int64, dims [3]Dim, step func(Dim) int64) bool {
	if start < 0 || width < 0 || start > size-width {
		return false
	}
	left := size - width - start
	for _, d := range dims {
		if d.N < 1 || step(d) < 0 {
			return false
		}
		hi, lo := bits.Mul64(uint64(d.N-1), uint64(step(d)))
		if hi != 0 || lo > uint64(left) {
			return false
		}
		left -= int64(lo)
	}
	return true
}
