package kvlayout

import (
	"math"
	"testing"
)

// source deals out small numbers from fuzz input; num now and then a huge or
// negative one.
type source struct{ data []byte }

func (s *source) pick(n int) int {
	if len(s.data) == 0 {
		return 0
	}
	b := int(s.data[0])
	s.data = s.data[1:]
	return b % n
}

func (s *source) num(n int) int64 {
	if len(s.data) > 0 && s.data[0] == 255 {
		s.data = s.data[1:]
		return [...]int64{-1, math.MaxInt64, math.MinInt64, 1 << 56, 1 << 40, 1 << 31}[s.pick(6)]
	}
	return int64(s.pick(n))
}

func (s *source) input() Input {
	in := Input{
		Engine: [...]Engine{EngineVLLM, EngineSGLang, EngineTRTLLM, EngineAtom, "x"}[s.pick(5)],
		Hints: Hints{
			KVLayout:     [...]string{"NHD", "HND", "", "BLHNC"}[s.pick(4)],
			KVListLayout: [...]string{"", "k_v", "unified"}[s.pick(3)], TokensPerBlock: s.num(20), NumKVHeads: s.num(4), HeadDim: s.num(8),
		},
		ChunkTokens:          16 * (1 + s.pick(9)),
		CPUEngine:            s.pick(2) == 1,
		SeparateObjectGroups: s.pick(2) == 1,
	}
	for range s.pick(6) {
		t := Tensor{
			DType: [...]string{"float16", "uint8"}[s.pick(2)], ElemBytes: 1 + s.pick(4), Storage: "x",
			StorageBytes: 1000 * s.num(250), Offset: s.num(100),
		}
		rank := 1 + s.pick(7)
		t.Shape, t.Stride = make([]int64, rank), make([]int64, rank)
		size := int64(1)
		for i := rank - 1; i >= 0; i-- {
			if t.Shape[i] = s.num(19); t.Shape[i] == 18 {
				t.Shape[i] = 132
			}
			t.Stride[i] = size + s.num(2)*s.num(50)
			size *= max(t.Shape[i], 1)
		}
		in.Tensors = append(in.Tensors, t)
	}
	for range s.pick(4) {
		g := GroupInfo{
			EngineGroup: s.pick(3), TokensPerBlock: int(s.num(33)), WindowTokens: int(s.num(200)), ExtraTag: s.pick(2), Recurrent: s.pick(2) == 1,
		}
		for range s.pick(5) {
			g.Layers = append(g.Layers, int(s.num(6)))
		}
		in.Groups = append(in.Groups, g)
	}
	return in
}

// FuzzNew checks that no registration makes New panic, and that what it
// accepts addresses nothing outside the storages.
func FuzzNew(f *testing.F) {
	f.Add([]byte{})
	// Dense tensors of vllm, innermost axis first, in one storage of 199000 bytes.
	tensor := func(shape ...byte) []byte {
		t := []byte{0, 1, 199, 0, byte(len(shape) - 1)}
		for _, d := range shape {
			t = append(t, d, 0, 0)
		}
		return t
	}
	vllm := func(layout byte, tensors ...[]byte) []byte {
		in := []byte{0, layout, 0, 0, 0, 0, 7, 0, 0, byte(len(tensors))}
		for _, t := range tensors {
			in = append(in, t...)
		}
		return in
	}
	f.Add(vllm(0, tensor(8, 2, 16, 4), tensor(8, 2, 16, 4)))
	f.Add(vllm(1, tensor(8, 16, 2, 4), tensor(8, 16, 2, 4), tensor(8, 16, 4)))
	f.Add(vllm(1, tensor(8, 16, 2, 4, 2)))
	f.Add(vllm(0, tensor(4, 2, 16, 2, 3, 4)))
	f.Add(append(vllm(0, tensor(8, 16, 4), tensor(8, 2, 16, 4)), 2, 0, 0, 0, 0, 0, 1, 0, 1, 16, 32, 0, 0, 1, 1))
	f.Add([]byte{2, 0, 0, 16, 2, 4, 7, 0, 0, 1, 0, 1, 199, 0, 3, 128, 0, 0, 2, 0, 0, 3, 0, 0, 4, 0, 0})
	f.Add([]byte{1, 0, 1, 16, 2, 4, 7, 0, 0, 2, 0, 1, 199, 0, 2, 4, 0, 0, 2, 0, 0, 16, 0, 0, 0, 1, 199, 0, 2, 4, 0, 0, 2, 0, 0, 16, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &source{data}
		l, err := New(s.input())
		if err != nil {
			return
		}
		seen := map[int]bool{}
		for o := range l.Object {
			form := l.Object[o].Form
			at := int64(0)
			for i, k := range l.Object[o].Kernel {
				g := &l.Kernel[k]
				if seen[k] || g.ObjectGroup != o {
					t.Fatalf("kernel group %d is in two object groups", k)
				}
				seen[k] = true
				r := &form.Regions[i]
				if g.RegionOffset != at || r.Offset != at || r.Bytes() != g.RegionBytes ||
					g.RegionBytes != int64(len(g.Bases)*g.KeptBlocks)*g.BlockBytes {
					t.Fatalf("region %+v of %+v starts at %d", r, g, at)
				}
				at += g.RegionBytes
				if g.KeptBlocks < 1 || g.KeptBlocks > g.BlocksPerChunk || int64(g.BlocksPerChunk)*g.TokensPerBlock != int64(l.ChunkTokens) {
					t.Fatalf("%d of %d blocks", g.KeptBlocks, g.BlocksPerChunk)
				}
				if g.BlockStride < g.BlockBytes && g.NumBlocks > 1 {
					t.Fatalf("blocks of %d bytes every %d", g.BlockBytes, g.BlockStride)
				}
				for _, b := range g.Bases {
					if end := b.Offset + (g.NumBlocks-1)*g.BlockStride + g.BlockBytes; b.Offset < 0 || end > l.Storages[b.Storage].Bytes {
						t.Fatalf("block ends at %d of %d", end, l.Storages[b.Storage].Bytes)
					}
				}
			}
			if at != form.Bytes {
				t.Fatalf("object of %d bytes, regions of %d", form.Bytes, at)
			}
		}
		if len(seen) != len(l.Kernel) {
			t.Fatalf("%d of %d kernel groups are stored", len(seen), len(l.Kernel))
		}
		l.Describe()
	})
}
