package copyplan

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

// llama8b is Llama-3-8B on one worker in vLLM 0.33: 32 layers, 16 blocks of
// 64 KiB a chunk and layer, 512 pieces a chunk.
func llama8b(t testing.TB, layout string, oneStorage bool) *kvlayout.Layout {
	t.Helper()
	const layers, blocks, heads, slots, width = 32, 1024, 8, 16, 256
	page := int64(heads * slots * width)
	in := kvlayout.Input{Engine: kvlayout.EngineVLLM, Hints: kvlayout.Hints{KVLayout: layout}, ChunkTokens: 256}
	for l := range int64(layers) {
		w := kvlayout.Tensor{
			DType: "bfloat16", ElemBytes: 2, Shape: []int64{blocks, slots, heads, width}, Stride: []int64{page, heads * width, width, 1},
			Storage: "pool", StorageBytes: layers * blocks * page * 2, Offset: l * blocks * page,
		}
		if layout == "HND" {
			w.Shape = []int64{blocks, heads, slots, width}
			w.Stride[1] = slots * width
		}
		if !oneStorage {
			w.Storage, w.StorageBytes, w.Offset = fmt.Sprint(l), blocks*page*2, 0
		}
		in.Tensors = append(in.Tensors, w)
	}
	l, err := kvlayout.New(in)
	require.NoError(t, err)
	return l
}

func planned(l *kvlayout.Layout, chunks int, random bool) (*Request, []Object) {
	ids := make([]int64, chunks*16)
	perm := rand.New(rand.NewPCG(1, 2)).Perm(1024)
	for i := range ids {
		ids[i] = int64(i)
		if random {
			ids[i] = int64(perm[i])
		}
	}
	size := l.Object[0].ObjectBytes()
	var objects []Object
	for c := range chunks {
		objects = append(objects, Object{Chunk: c, Offset: int64(c) * size, Bytes: size})
	}
	return &Request{Layout: l, BlockIDs: [][]int64{ids}, Chunks: chunks}, objects
}

// BenchmarkAdd plans 32 chunks of 512 pieces; the goal is 0.3 ms.
func BenchmarkAdd(b *testing.B) {
	for _, c := range []struct {
		name        string
		layout      string
		one, random bool
		o           Options
		tokenMajor  bool
	}{
		{"runs/random", "NHD", false, true, Options{}, false},
		{"runs/sequential", "NHD", false, false, Options{}, false},
		{"patterns/random", "NHD", true, true, Options{PatternsBelow: Always}, false},
		{"patterns/sequential", "NHD", true, false, Options{PatternsBelow: Always}, false},
		{"reorder/one storage", "HND", true, true, Options{}, true},
		{"reorder/storage each", "HND", false, true, Options{}, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := llama8b(b, c.layout, c.one)
			r, objects := planned(l, 32, c.random)
			if c.tokenMajor {
				form := l.Object[0].Form.AsTokenMajor()
				for i := range objects {
					objects[i].Form = form
				}
			}
			p := Acquire()
			b.ReportAllocs()
			for b.Loop() {
				p.Reset()
				if err := p.Add(r, objects, c.o); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(p.Runs)+len(p.Patterns)), "copies")
		})
	}
}

func TestPlanningDoesNotAllocate(t *testing.T) {
	for _, layout := range []string{"NHD", "HND"} {
		for _, one := range []bool{false, true} {
			l := llama8b(t, layout, one)
			r, objects := planned(l, 4, true)
			objects[1].Form = l.Object[0].Form.AsTokenMajor()
			sizes := storageBytes(l)
			pool := 4 * l.Object[0].ObjectBytes()
			p := Acquire()
			n := testing.AllocsPerRun(20, func() {
				p.Reset()
				if err := p.Add(r, objects, Options{PatternsBelow: Always}); err != nil {
					t.Error(err)
				}
				if err := p.Check(sizes, pool); err != nil {
					t.Error(err)
				}
			})
			if n != 0 {
				t.Errorf("%s, one storage %v: %v allocations", layout, one, n)
			}
		}
	}
}

// BenchmarkConvert reorders objects of one chunk.
func BenchmarkConvert(b *testing.B) {
	for _, width := range []int64{64, 128, 256} {
		for _, to := range []string{"token-major", "head-major", "memmove"} {
			b.Run(fmt.Sprintf("%s/head of %d bytes", to, 2*width), func(b *testing.B) {
				const layers, heads, slots = 32, 8, 16
				in := kvlayout.Input{Engine: kvlayout.EngineVLLM, Hints: kvlayout.Hints{KVLayout: "HND"}, ChunkTokens: 256}
				for i := range layers {
					in.Tensors = append(in.Tensors, kvlayout.Tensor{
						DType: "bfloat16", ElemBytes: 2, Shape: []int64{16, heads, slots, width}, Stride: []int64{heads * slots * width, slots * width, width, 1},
						Storage: fmt.Sprint(i), StorageBytes: 16 * heads * slots * width * 2,
					})
				}
				l, err := kvlayout.New(in)
				require.NoError(b, err)
				from := l.Object[0].Form
				form := from.AsTokenMajor()
				switch to {
				case "head-major":
					from, form = form, from
				case "memmove":
					from = form
				}
				src, dst := make([]byte, from.Bytes), make([]byte, from.Bytes)
				b.SetBytes(from.Bytes)
				b.ReportAllocs()
				for b.Loop() {
					if err := Convert(dst, form, src, from); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
