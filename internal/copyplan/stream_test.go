package copyplan

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

func TestStreamCopy(t *testing.T) {
	t.Parallel()
	if !canStream {
		t.Skip("this processor has no streaming stores that we use")
	}
	rng := rand.New(rand.NewPCG(7, 7))
	src := make([]byte, 3000)
	fill(rng, src)
	for size := range 1200 {
		from, to := rng.IntN(64), rng.IntN(64)
		got := make([]byte, 2000)
		fill(rng, got)
		want := bytes.Clone(got)
		copy(want[to:to+size], src[from:])
		streamCopy(got[to:to+size], src[from:from+size])
		storeFence()
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes from %d to %d", size, from, to)
		}
	}
}

// TestLargePlan copies enough to go past the caches, with every way of copying.
func TestLargePlan(t *testing.T) {
	t.Parallel()
	for _, hint := range []string{"NHD", "HND"} {
		in := kvlayout.Input{Engine: kvlayout.EngineVLLM, Hints: kvlayout.Hints{KVLayout: hint}, ChunkTokens: 256}
		const blocks, page = 16, 16 * 8 * 256 * 2
		for i := range int64(8) {
			w := kvlayout.Tensor{DType: "bfloat16", ElemBytes: 2, Shape: []int64{blocks, 16, 8, 256}, Stride: []int64{page / 2, 2048, 256, 1}, Storage: "s", StorageBytes: 8*blocks*page + 34, Offset: 17 + i*blocks*page/2}
			if hint == "HND" {
				w.Shape, w.Stride = []int64{blocks, 8, 16, 256}, []int64{page / 2, 4096, 256, 1}
			}
			in.Tensors = append(in.Tensors, w)
		}
		l, err := kvlayout.New(in)
		require.NoError(t, err)
		rng := rand.New(rand.NewPCG(8, 8))
		ids := make([]int64, blocks)
		for i, b := range rng.Perm(blocks) {
			ids[i] = int64(b)
		}
		own := l.Object[0].Form
		for _, form := range []*kvlayout.Form{own, own.AsTokenMajor()} {
			for _, o := range []Options{{}, {PatternsBelow: Always}} {
				var p Plan
				require.NoError(t, p.Add(&Request{Layout: l, BlockIDs: [][]int64{ids}, Chunks: 1}, []Object{{Offset: 5, Bytes: own.Bytes, Form: form}}, o))
				if p.Bytes < streamPlan {
					t.Fatalf("a plan of %d bytes is not large", p.Bytes)
				}
				mem := [][]byte{make([]byte, 8*blocks*page+34)}
				fill(rng, mem[0])
				pool := make([]byte, own.Bytes+11)
				run(t, &p, Store, mem, pool, 1<<20)
				// Undo the order of blocks by hand; convert undoes the rest.
				object := slices.Clone(pool[5 : 5+own.Bytes])
				require.NoError(t, Convert(object, own, pool[5:5+own.Bytes], form))
				for layer := range 8 {
					for j, id := range ids {
						row, at := (layer*blocks+j)*page, 34+(layer*blocks+int(id))*page
						if !bytes.Equal(object[row:row+page], mem[0][at:at+page]) {
							t.Fatalf("%s, %v, %v: layer %d block %d is wrong", hint, form, o, layer, id)
						}
					}
				}
				back := [][]byte{make([]byte, len(mem[0]))}
				copy(back[0][:34], mem[0])
				run(t, &p, Load, back, pool, 1<<20)
				if !bytes.Equal(back[0], mem[0]) {
					t.Fatalf("%s, %v, %v: what came back is not what was stored", hint, form, o)
				}
			}
		}
	}
}
