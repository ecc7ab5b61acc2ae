package copyplan

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

// hybridLayout has two lists of ids: one of 4 blocks a chunk, one of 2.
func hybridLayout(t testing.TB) *kvlayout.Layout {
	t.Helper()
	c := &shapes[slices.IndexFunc(shapes, func(s shape) bool { return s.name == "12" })]
	return c.make(t, rand.New(rand.NewPCG(5, 5)), layerFirst, func(in *kvlayout.Input) {
		in.SeparateObjectGroups = true
		in.Groups = []kvlayout.GroupInfo{
			{EngineGroup: 0, Layers: []int{0, 1}},
			{EngineGroup: 1, Layers: []int{2}, TokensPerBlock: 2 * nSlots, WindowTokens: 2 * nSlots},
		}
	}).layout
}

// storageBytes is what Check needs to know of a layout.
func storageBytes(l *kvlayout.Layout) (sizes []int64) {
	for _, s := range l.Storages {
		sizes = append(sizes, s.Bytes)
	}
	return sizes
}

func TestRefused(t *testing.T) {
	t.Parallel()
	l := hybridLayout(t)
	size := l.Object[0].ObjectBytes()
	ids := func(a, b int) [][]int64 {
		return [][]int64{slices.Repeat([]int64{1}, a), slices.Repeat([]int64{2}, b)}
	}
	bad := func(list, at int, id int64) [][]int64 {
		m := ids(8, 4)
		m[list][at] = id
		return m
	}
	split, err := kvlayout.NewTokenMajor("float16", 2, 2, 4*nSlots, nHeads*nWidth)
	require.NoError(t, err)
	ok := []Object{{Chunk: 1, Offset: 5, Bytes: size}}
	f := func(name string, want error, r Request, objects []Object) {
		t.Helper()
		r.Layout = l
		p := Acquire()
		defer p.Release()
		first := Request{Layout: l, BlockIDs: ids(8, 4), Chunks: 2}
		require.NoError(t, p.Add(&first, ok, Options{}))
		before := Plan{Runs: slices.Clone(p.Runs), Patterns: slices.Clone(p.Patterns), Bytes: p.Bytes, Reorders: p.Reorders}
		if err := p.Add(&r, objects, Options{PatternsBelow: Always}); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
		if after := (Plan{Runs: p.Runs, Patterns: slices.Clone(p.Patterns), Bytes: p.Bytes, Reorders: p.Reorders}); want != nil && !reflect.DeepEqual(before, after) {
			t.Errorf("%s: the plan changed", name)
		}
	}
	f("fine", nil, Request{BlockIDs: ids(8, 4), Chunks: 2}, ok)
	f("longer lists", nil, Request{BlockIDs: ids(9, 7), Chunks: 2}, ok)
	f("nothing", nil, Request{BlockIDs: ids(0, 0)}, nil)
	f("no lists", ErrLists, Request{Chunks: 0}, nil)
	f("one list", ErrLists, Request{BlockIDs: ids(8, 4)[:1], Chunks: 2}, ok)
	f("three lists", ErrLists, Request{BlockIDs: append(ids(8, 4), nil), Chunks: 2}, ok)
	f("short", ErrShort, Request{BlockIDs: ids(7, 4), Chunks: 2}, ok)
	f("short list of the other group", ErrShort, Request{BlockIDs: ids(8, 3), Chunks: 2}, ok)
	f("negative chunks", ErrShort, Request{BlockIDs: ids(8, 4), Chunks: -1}, nil)
	f("many chunks", ErrShort, Request{BlockIDs: ids(8, 4), Chunks: math.MaxInt}, nil)
	f("negative id", ErrBlockID, Request{BlockIDs: bad(0, 7, -1), Chunks: 2}, ok)
	f("id of another chunk", ErrBlockID, Request{BlockIDs: bad(0, 0, nBlocks), Chunks: 2}, ok)
	f("id outside the window", ErrBlockID, Request{BlockIDs: bad(1, 0, nBlocks), Chunks: 2}, ok)
	f("huge id", ErrBlockID, Request{BlockIDs: bad(0, 5, math.MaxInt64), Chunks: 2}, ok)
	f("most negative id", ErrBlockID, Request{BlockIDs: bad(0, 5, math.MinInt64), Chunks: 2}, ok)
	f("ids behind the request", nil, Request{BlockIDs: bad(0, 7, -1), Chunks: 1}, []Object{{Bytes: size}})
	f("group", ErrObject, Request{BlockIDs: ids(8, 4), Chunks: 2, Group: 2}, ok)
	f("negative group", ErrObject, Request{BlockIDs: ids(8, 4), Chunks: 2, Group: -1}, ok)
	f("chunk", ErrObject, Request{BlockIDs: ids(8, 4), Chunks: 2}, []Object{ok[0], {Chunk: 2, Bytes: size}})
	f("negative chunk", ErrObject, Request{BlockIDs: ids(8, 4), Chunks: 2}, []Object{{Chunk: -1, Bytes: size}})
	f("size", ErrObject, Request{BlockIDs: ids(8, 4), Chunks: 2}, []Object{{Bytes: size + 1}})
	f("size of the other group", ErrObject, Request{BlockIDs: ids(8, 4), Chunks: 2, Group: 1}, ok)
	f("offset", ErrObject, Request{BlockIDs: ids(8, 4), Chunks: 2}, []Object{{Offset: -1, Bytes: size}})
	f("huge offset", ErrObject, Request{BlockIDs: ids(8, 4), Chunks: 2}, []Object{{Offset: math.MaxInt64 - 1, Bytes: size}})
	f("form", ErrObject, Request{BlockIDs: ids(8, 4), Chunks: 2}, []Object{{Bytes: size, Form: split}})
	f("negative skip", nil, Request{BlockIDs: ids(8, 4), Chunks: 2, SkipTokens: math.MinInt}, ok)
	f("huge skip", nil, Request{BlockIDs: ids(8, 4), Chunks: 2, SkipTokens: math.MaxInt}, ok)
}

func TestNullChunks(t *testing.T) {
	l := hybridLayout(t)
	ids := [][]int64{{0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5}, {0, 0, 0, 0, 0, 9}}
	var buf []bool
	f := func(group int, null int64, want ...bool) {
		t.Helper()
		if buf = NullChunks(l, group, ids, 3, null, buf); !slices.Equal(buf, want) {
			t.Errorf("group %d: got %v, want %v", group, buf, want)
		}
	}
	f(0, 0, true, false, false)
	f(1, 0, true, true, false)
	f(1, -1, false, false, false)
	if n := testing.AllocsPerRun(10, func() { buf = NullChunks(l, 0, ids, 3, 0, buf) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	// Both groups in one object: a chunk is null only where both are.
	c := &shapes[slices.IndexFunc(shapes, func(s shape) bool { return s.name == "12" })]
	l = c.make(t, rand.New(rand.NewPCG(5, 5)), layerFirst, func(in *kvlayout.Input) {
		in.Groups = []kvlayout.GroupInfo{{Layers: []int{0, 1}}, {EngineGroup: 1, Layers: []int{2}, TokensPerBlock: 2 * nSlots}}
	}).layout
	f(0, 0, true, false, false)
	ids[0][7], ids[1][1] = 0, 4
	f(0, 0, false, true, false)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	one := Dim{N: 1}
	f := func(want bool, p Plan) {
		t.Helper()
		err := p.Check([]int64{100, 50}, 80)
		if (err == nil) != want || (err != nil && !errors.Is(err, ErrBounds)) {
			t.Errorf("%+v: got %v", p, err)
		}
	}
	run := func(r Run) Plan { return Plan{Runs: []Run{{0, 0, 0, 1}, r}} }
	pat := func(q Pattern) Plan { return Plan{Patterns: []Pattern{q}} }
	f(true, Plan{})
	f(true, run(Run{0, 20, 0, 80}))
	f(true, run(Run{1, 50, 80, 0}))
	f(false, run(Run{0, 21, 0, 80}))
	f(false, run(Run{0, 20, 1, 80}))
	f(false, run(Run{2, 0, 0, 1}))
	f(false, run(Run{-1, 0, 0, 1}))
	f(false, run(Run{0, -1, 0, 1}))
	f(false, run(Run{0, 0, -1, 1}))
	f(false, run(Run{0, 0, 0, -1}))
	f(false, run(Run{0, math.MaxInt64, 0, 1}))
	f(false, run(Run{0, 0, math.MaxInt64, 1}))
	f(true, pat(Pattern{0, 0, 0, 10, Dim{8, 12, 10}, one, one}))
	f(false, pat(Pattern{0, 7, 0, 10, Dim{8, 12, 10}, one, one}))
	f(false, pat(Pattern{0, 0, 1, 10, Dim{8, 12, 10}, one, one}))
	f(false, pat(Pattern{2, 0, 0, 10, one, one, one}))
	f(false, pat(Pattern{0, 0, 0, 10, Dim{N: 0}, one, one}))
	f(false, pat(Pattern{0, 0, 0, 10, Dim{2, -1, 1}, one, one}))
	f(false, pat(Pattern{0, 0, 0, 10, Dim{2, 1, -1}, one, one}))
	f(false, pat(Pattern{0, 0, 0, 10, Dim{math.MaxInt64, math.MaxInt64, 1}, one, one}))
	f(false, pat(Pattern{0, 0, 0, 10, Dim{1 << 33, 1 << 33, 0}, one, one}))
	f(true, pat(Pattern{0, 0, 0, 2, Dim{2, 40, 40}, Dim{3, 10, 12}, Dim{4, 2, 3}}))
	f(false, pat(Pattern{0, 0, 0, 3, Dim{2, 40, 40}, Dim{3, 10, 15}, Dim{4, 2, 3}}))
	f(false, pat(Pattern{0, 0, -1, 3, one, one, one}))
	f(false, pat(Pattern{0, 0, 0, -1, one, one, one}))
}

// FuzzAdd checks that whatever a request says, a plan that Add makes stays in
// bounds and is refused or has the bytes that were asked for.
func FuzzAdd(f *testing.F) {
	l := hybridLayout(f)
	sizes := storageBytes(l)
	f.Add(0, 2, 0, int64(0), int64(1), int64(7), 3)
	f.Add(1, 3, 17, int64(19), int64(2), int64(11), 1)
	f.Add(0, 2, 99, int64(20), int64(-1), int64(3), 0)
	f.Add(0, 1, -5, int64(math.MaxInt64), int64(math.MaxInt64), int64(1), 2)
	f.Fuzz(func(t *testing.T, group, chunks, skip int, first, step, pitch int64, options int) {
		chunks %= 6
		ids := make([][]int64, 2)
		for i := range ids {
			for j := range chunks * (4 >> i) {
				ids[i] = append(ids[i], first+int64(j)*step)
			}
		}
		r := Request{Layout: l, Group: group, BlockIDs: ids, Chunks: chunks, SkipTokens: skip}
		if group < 0 || group >= len(l.Object) {
			group = 0
		}
		form := l.Object[group].Form
		if options&4 != 0 {
			form = form.AsTokenMajor()
		}
		var objects []Object
		for c := range chunks {
			objects = append(objects, Object{Chunk: c, Offset: int64(c) * (form.Bytes + 64), Bytes: form.Bytes, Form: form})
		}
		p := Acquire()
		defer p.Release()
		if err := p.Add(&r, objects, Options{PatternsBelow: int64(options%4) * 200, MaxPitch: pitch}); err != nil {
			if p.Bytes != 0 || p.End() != (Pos{}) {
				t.Fatalf("refused (%v), but planned %d bytes", err, p.Bytes)
			}
			return
		}
		if err := p.Check(sizes, int64(chunks)*(form.Bytes+64)); err != nil {
			t.Fatal(err)
		}
		n := int64(0)
		for i := range p.Runs {
			n += p.Runs[i].Bytes
		}
		for i := range p.Patterns {
			q := &p.Patterns[i]
			n += q.Width * q.Rows.N * q.Heads.N * q.Slots.N
		}
		if n != p.Bytes || (skip <= 0 && n != int64(chunks)*form.Bytes) {
			t.Fatalf("%d bytes of copies, plan says %d, objects have %d", n, p.Bytes, int64(chunks)*form.Bytes)
		}
	})
}
