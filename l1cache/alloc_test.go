package l1cache

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizeClasses(t *testing.T) {
	// Every size lies in its class, and no block of the class above is too small.
	f := func(size uint64) {
		t.Helper()
		top, sub := class(size)
		if top >= topCount || sub < 0 || sub >= subCount {
			t.Fatalf("size %d: class %d.%d", size, top, sub)
		}
		upTop, upSub := classAbove(size)
		smallest := uint64(upSub)
		if upTop > 0 {
			smallest = uint64(subCount+upSub) << (upTop - 1)
		}
		if smallest < size {
			t.Fatalf("size %d: class above %d.%d holds blocks of %d", size, upTop, upSub, smallest)
		}
	}
	for size := range uint64(5000) {
		f(size + 1)
	}
	for shift := 5; shift < 62; shift++ {
		for _, d := range []int64{-1, 0, 1, 3} {
			f(uint64(int64(1)<<shift + d))
		}
	}
}

func TestAllocatorAgainstModel(t *testing.T) {
	const steps = 1024
	r := rand.New(rand.NewPCG(1, 2))
	a := &allocator{}
	a.grow(steps / 4)
	taken := map[uint32]bool{}
	owner := make([]uint32, steps) // by step; 0 is free
	for i := range 10000 {
		switch {
		case i%997 == 0 && a.end < steps:
			a.grow(min(steps, a.end+uint64(r.IntN(steps/4))))
		case r.IntN(2) == 0:
			size := uint64(1 + r.IntN(40))
			if r.IntN(10) == 0 {
				size = uint64(1 + r.IntN(200))
			}
			b := a.take(size, 1)
			run, longest := uint64(0), uint64(0)
			for s := range a.end {
				if owner[s] != 0 {
					run = 0
					continue
				}
				run++
				longest = max(longest, run)
			}
			if (b != nilSlot) != (longest >= size) {
				t.Fatalf("take %d: got block %d, the longest hole is %d", size, b, longest)
			}
			if b == nilSlot {
				continue
			}
			got := a.blocks.at(b)
			require.Equal(t, size, got.size)
			for s := got.start; s < got.start+size; s++ {
				if owner[s] != 0 {
					t.Fatalf("step %d was given twice", s)
				}
				owner[s] = b
			}
			taken[b] = true
		default:
			for b := range taken {
				got := a.blocks.at(b)
				for s := got.start; s < got.start+got.size; s++ {
					owner[s] = 0
				}
				a.give(b)
				delete(taken, b)
				break
			}
		}
		if i%50 == 0 {
			require.NoError(t, a.check())
		}
	}
	for b := range taken {
		a.give(b)
	}
	require.NoError(t, a.check())
	require.Equal(t, a.end, a.freeSteps)
	require.Equal(t, 1, a.blocks.live(), "all merged")
}

func TestAllocatorPrefersWarmPages(t *testing.T) {
	a := &allocator{}
	a.grow(1000)
	start := func(b uint32) uint64 { return a.blocks.at(b).start }
	x, y, z := a.take(10, 1), a.take(10, 1), a.take(10, 1)
	require.Equal(t, []uint64{0, 10, 20}, []uint64{start(x), start(y), start(z)}, "a fresh region is used from the low end")
	a.give(y)
	require.Equal(t, uint64(10), start(a.take(10, 1)), "a freed hole before fresh ground")
	a.give(x)
	v := a.take(8, 1)
	require.Equal(t, uint64(0), start(v), "also a larger one")
	a.give(z)
	require.Equal(t, uint64(20), start(a.take(100, 1)), "freed space at the frontier joins it")
	last := a.take(1000-120, 1)
	require.Equal(t, uint64(120), start(last))
	require.Equal(t, uint32(nilSlot), a.take(3, 1))
	a.give(last)
	a.grow(2000)
	require.NoError(t, a.check())
	require.Equal(t, uint64(120), start(a.take(1880, 1)), "growth merges with a free tail")
}
