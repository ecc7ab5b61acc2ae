package copyplan

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

// forms are the orders in which objects of an engine may be found: its own,
// tokens first, and heads first in blocks of other sizes.
func forms(f *kvlayout.Form) map[string]*kvlayout.Form {
	m := map[string]*kvlayout.Form{"own": f}
	if f.Regions[0].RowBytes/nHeads%nWidth != 0 {
		return m
	}
	m["tokens first"] = f.AsTokenMajor()
	for _, block := range []int64{2, 4, 8, 3} {
		if slices.ContainsFunc(f.Regions, func(r kvlayout.Region) bool { return r.Slots%block != 0 }) {
			continue
		}
		h := *f
		h.Regions = slices.Clone(f.Regions)
		for i := range h.Regions {
			h.Regions[i].Heads, h.Regions[i].BlockSlots = nHeads, block
		}
		m[fmt.Sprint("heads first by ", block)] = &h
	}
	return m
}

var allOptions = []Options{{}, {PatternsBelow: Always}, {PatternsBelow: 300}, {PatternsBelow: Always, MaxPitch: 200}}

// run executes a plan part by part, as a device does.
func run(t *testing.T, p *Plan, d Direction, storages [][]byte, pool []byte, part int64) {
	t.Helper()
	sizes := make([]int64, len(storages))
	for i := range storages {
		sizes[i] = int64(len(storages[i]))
	}
	require.NoError(t, p.Check(sizes, int64(len(pool))))
	moved := Pos{}
	for moved != p.End() {
		next := p.Cut(moved, part)
		if next == moved {
			t.Fatalf("no progress at %+v", moved)
		}
		p.Copy(d, storages, pool, moved, next)
		moved = next
	}
}

func clone(m [][]byte) [][]byte {
	c := make([][]byte, len(m))
	for i := range m {
		c[i] = bytes.Clone(m[i])
	}
	return c
}

// idsOf makes block ids for some chunks: distinct ones, at random or in runs.
func idsOf(rng *rand.Rand, l *kvlayout.Layout, chunks int, sequential bool) [][]int64 {
	ids := make([][]int64, l.Lists)
	for k := range l.Kernel {
		g := &l.Kernel[k]
		n := chunks * g.BlocksPerChunk
		perm := rng.Perm(int(g.NumBlocks))
		if sequential {
			slices.Sort(perm)
			perm = perm[int(g.NumBlocks)-n-1:]
			perm[2], perm[3] = perm[3], perm[2]
		}
		list := make([]int64, n)
		for i := range list {
			list[i] = int64(perm[i])
		}
		ids[g.List] = list
	}
	return ids
}

// transfer checks a store and a load of every chunk but one against the
// element by element reference.
func transfer(t *testing.T, rng *rand.Rand, e *engine, form *kvlayout.Form, o Options, skip int, sequential bool) {
	t.Helper()
	const chunks, left = 4, 2 // chunk 2 has no object
	l := e.layout
	ids := idsOf(rng, l, chunks, sequential)
	size := l.Object[0].ObjectBytes()
	pool := make([]byte, 10+chunks*(size+13))
	fill(rng, pool)
	var objects []Object
	for c := range chunks {
		if c != left {
			objects = append(objects, Object{Chunk: c, Offset: 10 + int64(chunks-1-c)*(size+13), Bytes: size, Form: form})
		}
	}
	expect := func(skip int, f func(storage int, engine, object int64)) {
		for _, ob := range objects {
			for i, k := range l.Object[0].Kernel {
				g := &l.Kernel[k]
				e.each(g, &form.Regions[i], ids[g.List], int64(ob.Chunk), int64(skip), func(s int, engine, object int64) {
					f(s, engine, ob.Offset+object)
				})
			}
		}
	}
	part := int64(1 + rng.IntN(900))

	wantPool := bytes.Clone(pool)
	before := clone(e.mem)
	n := int64(0)
	expect(0, func(s int, engine, object int64) {
		copy(wantPool[object:object+e.elem], e.mem[s][engine:engine+e.elem])
		n += e.elem
	})
	p := Acquire()
	defer p.Release()
	require.NoError(t, p.Add(&Request{Layout: l, BlockIDs: ids, Chunks: chunks}, objects, o))
	if p.Bytes != n || n != size*int64(len(objects)) {
		t.Fatalf("store: plan of %d bytes, reference of %d, objects of %d", p.Bytes, n, size)
	}
	run(t, p, Store, e.mem, pool, part)
	if !bytes.Equal(pool, wantPool) {
		t.Fatalf("store: wrong bytes in the pool")
	}
	for i := range before {
		if !bytes.Equal(before[i], e.mem[i]) {
			t.Fatalf("store: the engine's memory changed")
		}
	}

	fill(rng, pool)
	wantPool = bytes.Clone(pool)
	want := clone(e.mem)
	n = 0
	expect(skip, func(s int, engine, object int64) {
		copy(want[s][engine:engine+e.elem], pool[object:object+e.elem])
		n += e.elem
	})
	p.Reset()
	require.NoError(t, p.Add(&Request{Layout: l, BlockIDs: ids, Chunks: chunks, SkipTokens: skip}, objects, o))
	if p.Bytes != n {
		t.Fatalf("load: plan of %d bytes, reference of %d", p.Bytes, n)
	}
	run(t, p, Load, e.mem, pool, part)
	for i := range want {
		if !bytes.Equal(want[i], e.mem[i]) {
			t.Fatalf("load: wrong bytes in storage %d", i)
		}
	}
	if !bytes.Equal(pool, wantPool) {
		t.Fatalf("load: the pool changed")
	}
}

// TestFormats is every format served in every packing, with every option,
// object form, order of ids and several skips, against the reference.
func TestFormats(t *testing.T) {
	t.Parallel()
	for i := range shapes {
		c := &shapes[i]
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for _, pack := range c.packings {
				e := c.make(t, rng, pack, nil)
				skips := []int{0, nSlots - 1, nSlots, 4*nSlots + 3*nSlots, 999}
				for name, form := range forms(e.layout.Object[0].Form) {
					for i, o := range allOptions {
						for j, sequential := range []bool{false, true} {
							skip := skips[(i+j+len(name))%len(skips)]
							t.Log(pack, name, o, sequential, skip) // printed when it fails
							transfer(t, rng, e, form, o, skip, sequential)
						}
					}
				}
			}
		})
	}
}

// TestWindowsAndGroups has three kernel groups in one object: full attention
// with compressed blocks, a window below a chunk, and one above.
func TestWindowsAndGroups(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"12", "13", "3", "1", "7"} {
		i := slices.IndexFunc(shapes, func(s shape) bool { return s.name == name })
		c := &shapes[i]
		rng := rand.New(rand.NewPCG(2, uint64(i)))
		for _, pack := range c.packings {
			e := c.make(t, rng, pack, func(in *kvlayout.Input) {
				in.Groups = []kvlayout.GroupInfo{
					{EngineGroup: 0, Layers: []int{0}, TokensPerBlock: 2 * nSlots},
					{EngineGroup: 1, Layers: []int{1}, WindowTokens: 3 * nSlots},
					{EngineGroup: 2, Layers: []int{2}, WindowTokens: 6 * nSlots},
				}
			})
			g := e.layout.Kernel
			require.Equal(t, [6]int{2, 2, 4, 3, 4, 4}, [6]int{g[0].BlocksPerChunk, g[0].KeptBlocks, g[1].BlocksPerChunk, g[1].KeptBlocks, g[2].BlocksPerChunk, g[2].KeptBlocks})
			for _, form := range forms(e.layout.Object[0].Form) {
				for _, o := range allOptions {
					for skip := 0; skip < 5*nSlots; skip += 5 {
						transfer(t, rng, e, form, o, skip, skip%2 == 0)
					}
				}
			}
		}
	}
}

// TestBetweenEngines stores with one engine and loads with another: equal
// tokens must come out, whatever the layouts.
func TestBetweenEngines(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 3))
	packed := []string{"12", "12 permuted", "13", "18"}
	split := []string{"0", "1", "2", "6", "7", "8", "9", "15"}
	for _, family := range [][]string{packed, split} {
		for _, a := range family {
			for _, b := range family {
				ca, cb := &shapes[slices.IndexFunc(shapes, func(s shape) bool { return s.name == a })], &shapes[slices.IndexFunc(shapes, func(s shape) bool { return s.name == b })]
				ea, eb := ca.make(t, rng, ca.packings[0], nil), cb.make(t, rng, cb.packings[0], nil)
				fa, fb := ea.layout.Object[0].Form, eb.layout.Object[0].Form
				if !fa.Convertible(fb) {
					t.Fatalf("%s and %s: not convertible", a, b)
				}
				const chunks = 2
				pool := make([]byte, chunks*fa.Bytes)
				objects := []Object{{Chunk: 0, Offset: 0, Bytes: fa.Bytes, Form: fa}, {Chunk: 1, Offset: fa.Bytes, Bytes: fa.Bytes, Form: fa}}
				idsA, idsB := idsOf(rng, ea.layout, chunks, false), idsOf(rng, eb.layout, chunks, true)
				var p Plan
				require.NoError(t, p.Add(&Request{Layout: ea.layout, BlockIDs: idsA, Chunks: chunks}, objects, Options{}))
				run(t, &p, Store, ea.mem, pool, 100)
				p.Reset()
				require.NoError(t, p.Add(&Request{Layout: eb.layout, BlockIDs: idsB, Chunks: chunks}, objects, Options{}))
				if (p.Reorders > 0) != !fa.Equal(fb) {
					t.Errorf("%s to %s: %d reordering copies", a, b, p.Reorders)
				}
				run(t, &p, Load, eb.mem, pool, 100)
				for plane := range ea.planes {
					for layer := range int64(nLayers) {
						for token := range int64(chunks * ea.layout.ChunkTokens) {
							for head := range int64(nHeads) {
								for elem := range int64(nWidth) {
									sa, oa := ea.at(plane, layer, idsA[0][token/nSlots], token%nSlots, head, elem)
									sb, ob := eb.at(plane, layer, idsB[0][token/nSlots], token%nSlots, head, elem)
									if !bytes.Equal(ea.mem[sa][oa:oa+2], eb.mem[sb][ob:ob+2]) {
										t.Fatalf("%s to %s: plane %d layer %d token %d head %d differ", a, b, plane, layer, token, head)
									}
								}
							}
						}
					}
				}
			}
		}
	}
}

// TestOverlappingLayers: rows of a 2-D copy must not overlap, which drivers
// refuse; segments wider than the distance of layers stay runs.
func TestOverlappingLayers(t *testing.T) {
	t.Parallel()
	in := kvlayout.Input{Engine: kvlayout.EngineAtom, ChunkTokens: 16}
	for i := range int64(3) {
		in.Tensors = append(in.Tensors, kvlayout.Tensor{
			DType: "uint8", ElemBytes: 1, Shape: []int64{8, 4, 10}, Stride: []int64{40, 10, 1}, Offset: i * 80, Storage: "s", StorageBytes: 1000,
		})
	}
	l, err := kvlayout.New(in)
	require.NoError(t, err)
	f := func(patterns, runs int, ids ...int64) {
		t.Helper()
		var p Plan
		require.NoError(t, p.Add(&Request{Layout: l, BlockIDs: [][]int64{ids}, Chunks: 1}, []Object{{Bytes: 480}}, Options{PatternsBelow: Always}))
		if len(p.Patterns) != patterns || len(p.Runs) != runs {
			t.Errorf("ids %v: %d patterns, %d runs", ids, len(p.Patterns), len(p.Runs))
		}
	}
	f(4, 0, 0, 2, 4, 6)
	f(2, 0, 0, 1, 4, 5)
	f(0, 6, 0, 1, 2, 5)
	f(0, 3, 0, 1, 2, 3)
}

// TestGather reads blocks in the order of the engine's tensor.
func TestGather(t *testing.T) {
	t.Parallel()
	c := &shapes[slices.IndexFunc(shapes, func(s shape) bool { return s.name == "2" })]
	e := c.make(t, rand.New(rand.NewPCG(6, 6)), layerFirst, nil)
	_, pieces, err := e.layout.GatherOrder(1, []int64{5, 2})
	require.NoError(t, err)
	var p Plan
	for q := range pieces {
		p.AddRun(Run{q.Storage, q.Offset, p.Bytes, q.Bytes})
	}
	buf := make([]byte, p.Bytes)
	run(t, &p, Store, e.mem, buf, 7)
	i := 0
	for _, block := range []int64{5, 2} {
		for plane := range int64(2) {
			for slot := range int64(nSlots) {
				for head := range int64(nHeads) {
					s, at := e.at(plane, 1, block, slot, head, 0)
					if !bytes.Equal(buf[i:i+2*nWidth], e.mem[s][at:at+2*nWidth]) {
						t.Fatalf("block %d plane %d slot %d head %d is not next", block, plane, slot, head)
					}
					i += 2 * nWidth
				}
			}
		}
	}
	if i != len(buf) {
		t.Errorf("%d of %d bytes", i, len(buf))
	}
}

func TestConvert(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(4, 4))
	c := &shapes[slices.IndexFunc(shapes, func(s shape) bool { return s.name == "6" })]
	e := c.make(t, rng, own, func(in *kvlayout.Input) {
		in.ChunkTokens = 6 * nSlots
		in.Groups = []kvlayout.GroupInfo{{EngineGroup: 0, Layers: []int{0, 1}}, {EngineGroup: 1, Layers: []int{2}, WindowTokens: 3 * nSlots}}
	})
	all := forms(e.layout.Object[0].Form)
	if len(all) < 5 {
		t.Fatalf("only %d forms", len(all))
	}
	// Every element's place in each form, by the reference.
	ids := make([]int64, 6)
	place := map[string][]int64{}
	for name, f := range all {
		for i, k := range e.layout.Object[0].Kernel {
			e.each(&e.layout.Kernel[k], &f.Regions[i], ids, 0, 0, func(_ int, _, object int64) {
				place[name] = append(place[name], object)
			})
		}
	}
	for from, a := range all {
		src := make([]byte, a.Bytes)
		fill(rng, src)
		for to, b := range all {
			dst := make([]byte, b.Bytes)
			require.NoError(t, Convert(dst, b, src, a))
			for i := range place[from] {
				x, y := place[from][i], place[to][i]
				if !bytes.Equal(src[x:x+2], dst[y:y+2]) {
					t.Fatalf("%s to %s: element %d is wrong", from, to, i)
				}
			}
		}
	}
	f := all["own"]
	require.ErrorIs(t, Convert(make([]byte, f.Bytes), f, make([]byte, f.Bytes-1), f), ErrObject)
	require.ErrorIs(t, Convert(make([]byte, f.Bytes-1), f, make([]byte, f.Bytes), f), ErrObject)
	other, err := kvlayout.NewTokenMajor("float16", 1, 1, f.Bytes/2, 2)
	require.NoError(t, err)
	require.ErrorIs(t, Convert(make([]byte, f.Bytes), f, make([]byte, f.Bytes), other), ErrObject)
}
