package kvlayout

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// dense builds n dense tensors in one storage each.
func dense(n int, dtype string, elem int, shape ...int64) []Tensor {
	var ts []Tensor
	for i := range n {
		stride := make([]int64, len(shape))
		size := int64(1)
		for a := len(shape) - 1; a >= 0; a-- {
			stride[a] = size
			size *= shape[a]
		}
		ts = append(ts, Tensor{
			DType: dtype, ElemBytes: elem, Shape: shape, Stride: stride,
			Storage: fmt.Sprint("s", i), StorageBytes: size * int64(elem),
		})
	}
	return ts
}

// vllm033 are the tensors of vLLM 0.33 for one layout: n layers in one
// storage, logical axes [B, H, N, C].
func vllm033(layout string, n int, blocks, heads, slots, width int64) []Tensor {
	page := heads * slots * width
	var blockStride, layerStride, headStride, slotStride int64
	switch layout {
	case "LBNHC", "LBHNC":
		blockStride, layerStride = page, page*blocks
	case "BLNHC", "BLHNC":
		blockStride, layerStride = page*int64(n), page
	}
	if strings.HasSuffix(layout, "NHC") {
		headStride, slotStride = width, heads*width
	} else {
		headStride, slotStride = slots*width, width
	}
	var ts []Tensor
	for l := range n {
		ts = append(ts, Tensor{
			DType: "bfloat16", ElemBytes: 2, Shape: []int64{blocks, heads, slots, width},
			Stride: []int64{blockStride, headStride, slotStride, 1}, Offset: int64(l) * layerStride,
			Storage: "pool", StorageBytes: page * blocks * int64(n) * 2,
		})
	}
	return ts
}

func vllmInput(ts []Tensor, layout string) Input {
	return Input{Tensors: ts, Engine: EngineVLLM, Hints: Hints{KVLayout: layout}, ChunkTokens: 256}
}

func TestVLLM033Layouts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		vllm, hint  string
		format      Format
		headMajor   bool
		blockStride int64
		rowStep     int64
	}{
		{"LBNHC", "NHD", FormatPacked, false, 8192, 2048 * 8192},
		{"LBHNC", "HND", FormatPackedHND, true, 8192, 2048 * 8192},
		{"BLNHC", "BLNHC", FormatPacked, false, 4 * 8192, 8192},
		{"BLHNC", "BLHNC", FormatPackedHND, true, 4 * 8192, 8192},
	} {
		t.Run(c.vllm, func(t *testing.T) {
			l, err := New(vllmInput(vllm033(c.vllm, 4, 2048, 4, 16, 64), c.hint))
			require.NoError(t, err)
			require.Len(t, l.Kernel, 1)
			require.Len(t, l.Storages, 1)
			g := &l.Kernel[0]
			if g.Format != c.format || g.HeadMajor != c.headMajor || g.BlockStride != c.blockStride || g.RowStep != c.rowStep {
				t.Errorf("got %v, head-major %v, block stride %d, row step %d", g.Format, g.HeadMajor, g.BlockStride, g.RowStep)
			}
			if g.Heads != 4 || g.SlotsPerBlock != 16 || g.HeadSize != 64 || g.NumBlocks != 2048 || g.BlockBytes != 8192 {
				t.Errorf("got %d heads, %d slots, %d wide, %d blocks of %d bytes", g.Heads, g.SlotsPerBlock, g.HeadSize, g.NumBlocks, g.BlockBytes)
			}
			if g.BlocksPerChunk != 16 || g.KeptBlocks != 16 || l.Object[0].ObjectBytes() != 4*16*8192 {
				t.Errorf("got %d and %d blocks, object of %d bytes", g.BlocksPerChunk, g.KeptBlocks, l.Object[0].ObjectBytes())
			}
			shapes, dtypes := l.MemoryLayout(0)
			if !reflect.DeepEqual(shapes, [][]int64{{1, 4, 256, 256}}) || !reflect.DeepEqual(dtypes, []string{"bfloat16"}) {
				t.Errorf("memory layout %v %v", shapes, dtypes)
			}
		})
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	// The KV axes of each case: 2 planes or 1, 8 blocks, 4 slots, 3 heads, 5 wide.
	f := func(name string, in Input, format Format, layers int) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			in.ChunkTokens = 16
			l, err := New(in)
			require.NoError(t, err)
			require.Len(t, l.Kernel, 1)
			g := &l.Kernel[0]
			heads := int64(3)
			if format.MLA() {
				heads = 1
			}
			if g.Format != format || len(g.Layers) != layers || g.Heads != heads || g.SlotsPerBlock != 4 || g.NumBlocks != 8 {
				t.Errorf("got %v, %d layers, %d heads, %d slots, %d blocks", g.Format, len(g.Layers), g.Heads, g.SlotsPerBlock, g.NumBlocks)
			}
			if g.Planes != format.Planes() || len(g.Bases) != g.Planes*layers {
				t.Errorf("got %d planes, %d bases", g.Planes, len(g.Bases))
			}
			if g.HeadMajor != format.HeadsFirst() {
				t.Errorf("head-major %v", g.HeadMajor)
			}
		})
	}
	vllm := func(layout string, ts []Tensor) Input { return vllmInput(ts, layout) }
	f("0", vllm("NHD", dense(1, "float16", 2, 8, 6, 2, 4, 3, 5)), FormatCrossLayer, 6)
	f("0 without hint on a CPU", Input{Tensors: dense(1, "float16", 2, 8, 6, 2, 4, 3, 5), Engine: EngineVLLM, CPUEngine: true}, FormatCrossLayer, 6)
	f("8 of vllm", vllm("HND", dense(1, "float16", 2, 8, 6, 2, 3, 4, 5)), FormatCrossLayerHND, 6)
	f("1", vllm("NHD", dense(2, "float16", 2, 2, 8, 4, 3, 5)), FormatPlaneFirst, 2)
	f("2", vllm("NHD", dense(2, "float16", 2, 8, 2, 4, 3, 5)), FormatBlockPlanes, 2)
	f("3", vllm("NHD", dense(2, "float16", 2, 8, 4, 5)), FormatLatent, 2)
	f("3 HND", vllm("HND", dense(2, "float16", 2, 8, 4, 5)), FormatLatent, 2)
	f("6", vllm("HND", dense(2, "float16", 2, 2, 8, 3, 4, 5)), FormatPlaneFirstHND, 2)
	f("6 by default on a CPU", Input{Tensors: dense(2, "float16", 2, 2, 8, 3, 4, 5), Engine: EngineVLLM, CPUEngine: true}, FormatPlaneFirstHND, 2)
	f("1 by default elsewhere", vllm("", dense(2, "float16", 2, 2, 8, 4, 3, 5)), FormatPlaneFirst, 2)
	f("7", vllm("HND", dense(2, "float16", 2, 8, 2, 3, 4, 5)), FormatBlockPlanesHND, 2)
	f("8", Input{
		Tensors: dense(1, "float16", 2, 8, 6, 2, 60), Engine: EngineTRTLLM,
		Hints: Hints{NumKVHeads: 3, TokensPerBlock: 4, HeadDim: 5},
	}, FormatCrossLayerHND, 6)
	f("9", Input{
		Tensors: dense(4, "float16", 2, 32, 3, 5), Engine: EngineSGLang,
		Hints: Hints{KVListLayout: "k_v", TokensPerBlock: 4},
	}, FormatList, 2)
	f("12", vllm("HND", dense(2, "float16", 2, 8, 3, 4, 5)), FormatPackedHND, 2)
	f("13", vllm("NHD", dense(2, "float16", 2, 8, 4, 3, 5)), FormatPacked, 2)
	f("14 of rank 3", vllm("NHD", dense(2, "uint8", 1, 8, 4, 132)), FormatIndexer, 2)
	f("14 of rank 4", vllm("NHD", dense(2, "uint8", 1, 8, 4, 1, 132)), FormatIndexer, 2)
	f("14 of rank 4 HND", vllm("HND", dense(2, "uint8", 1, 8, 1, 4, 132)), FormatIndexer, 2)
	f("15", vllm("NHD", dense(2, "float16", 2, 2, 8, 3, 1, 4, 5)), FormatPlaneFirstOneHND, 2)
	f("3 of sglang", Input{
		Tensors: dense(2, "float16", 2, 32, 1, 5), Engine: EngineSGLang, Hints: Hints{TokensPerBlock: 4},
	}, FormatLatent, 2)
	f("3 of sglang unified", Input{
		Tensors: dense(2, "float16", 2, 8, 4, 5), Engine: EngineSGLang, Hints: Hints{KVListLayout: "unified"},
	}, FormatLatent, 2)
	f("18", Input{
		Tensors: dense(2, "float16", 2, 8, 4, 3, 5), Engine: EngineSGLang, Hints: Hints{KVListLayout: "unified"},
	}, FormatComponents, 2)
	f("3 of atom", Input{Tensors: dense(2, "float16", 2, 8, 4, 5), Engine: EngineAtom}, FormatLatent, 2)
	// A permuted view: logical [2, NB, BS, NH, HS] over memory of [2, NB, NH, BS, HS].
	permuted := dense(2, "float16", 2, 2, 8, 3, 4, 5)
	for i := range permuted {
		permuted[i].Shape = []int64{2, 8, 4, 3, 5}
		permuted[i].Stride = []int64{480, 60, 5, 20, 1}
	}
	f("6 permuted", vllm("HND", permuted), FormatPlaneFirstHND, 2)
}

func TestOneHeadIsTokenMajor(t *testing.T) {
	t.Parallel()
	for _, layout := range []string{"LBNHC", "LBHNC", "BLHNC", "BLNHC"} {
		hint := map[string]string{"LBNHC": "NHD", "LBHNC": "HND"}[layout]
		if hint == "" {
			hint = layout
		}
		l, err := New(vllmInput(vllm033(layout, 3, 10, 1, 16, 576), hint))
		require.NoError(t, err, layout)
		g := &l.Kernel[0]
		if g.HeadMajor || g.Heads != 1 || g.SlotsPerBlock != 16 || !l.Object[0].Form.TokenMajor() {
			t.Errorf("%s: head-major %v, %d heads, %d slots", layout, g.HeadMajor, g.Heads, g.SlotsPerBlock)
		}
	}
}

func TestRejected(t *testing.T) {
	t.Parallel()
	f := func(name string, in Input, want error, texts ...string) {
		t.Helper()
		if in.ChunkTokens == 0 {
			in.ChunkTokens = 256
		}
		_, err := New(in)
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", name, err, want)
			return
		}
		for _, s := range texts {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q does not say %q", name, err, s)
			}
		}
	}
	with := func(ts []Tensor, change func(t *Tensor)) Input {
		change(&ts[0])
		return vllmInput(ts, "NHD")
	}
	ok := func() []Tensor { return dense(2, "float16", 2, 8, 16, 3, 5) }
	f("none", Input{Engine: EngineVLLM}, ErrTensor)
	f("chunk size", Input{Tensors: ok(), Engine: EngineVLLM, ChunkTokens: -1}, ErrChunkSize)
	f("elem", with(ok(), func(t *Tensor) { t.ElemBytes = 0 }), ErrTensor)
	f("ranks", with(ok(), func(t *Tensor) { t.Stride = t.Stride[1:] }), ErrTensor)
	f("rank 0", with(ok(), func(t *Tensor) { t.Shape, t.Stride = nil, nil }), ErrTensor)
	f("negative stride", with(ok(), func(t *Tensor) { t.Stride = []int64{240, 15, -5, 1} }), ErrTensor)
	f("beyond", with(ok(), func(t *Tensor) { t.Offset = 1 }), ErrTensor, "ends beyond its storage of 3840 bytes")
	f("huge", with(ok(), func(t *Tensor) { t.Shape, t.Stride = []int64{1 << 50, 1 << 50, 1}, []int64{1 << 50, 1, 1} }), ErrTensor)
	f("huge stride", with(ok(), func(t *Tensor) { t.Stride = []int64{1 << 62, 15, 5, 1} }), ErrTensor)
	f("empty", with(ok(), func(t *Tensor) { t.Shape = []int64{0, 16, 3, 5} }), ErrTensor)
	f("inner gap", with(ok(), func(t *Tensor) { t.Shape = []int64{8, 15, 3, 5}; t.Stride = []int64{240, 16, 5, 1} }), ErrTensor, "only the outermost axis")
	f("last stride", with(ok(), func(t *Tensor) { t.Shape, t.Stride = []int64{8, 16, 3, 2}, []int64{240, 15, 5, 2} }), ErrTensor)
	f("broadcast", with(ok(), func(t *Tensor) { t.Stride = []int64{0, 15, 5, 1} }), ErrTensor)
	f("overlap", with(ok(), func(t *Tensor) { t.Stride = []int64{239, 15, 5, 1} }), ErrTensor)
	gap := func(shape ...int64) []Tensor {
		ts := dense(1, "float16", 2, shape...)
		ts[0].Stride[0] += 8
		ts[0].StorageBytes *= 4
		return ts
	}
	for _, shape := range [][]int64{{2, 8, 16, 3, 5}, {8, 2, 16, 3, 5}, {8, 4, 2, 16, 3, 5}} {
		f("gap", vllmInput(gap(shape...), "NHD"), ErrTensor, "gap in its outermost axis")
	}
	f("gap of sglang", Input{Tensors: gap(32, 1, 5), Engine: EngineSGLang, Hints: Hints{TokensPerBlock: 4}}, ErrTensor)
	f("gap of trtllm", Input{Tensors: gap(8, 4, 2, 60), Engine: EngineTRTLLM, Hints: Hints{NumKVHeads: 3, TokensPerBlock: 4, HeadDim: 5}}, ErrTensor)

	f("layout", vllmInput(ok(), "LHBNC"), ErrFormat, "VLLM_KV_CACHE_LAYOUT")
	f("rank 2", vllmInput(dense(1, "float16", 2, 4, 8), "NHD"), ErrFormat, "[4 8]")
	f("rank 5 without planes", vllmInput(dense(1, "float16", 2, 8, 3, 16, 3, 5), "NHD"), ErrFormat)
	f("engine", Input{Tensors: ok(), Engine: "mock"}, ErrFormat, `"mock"`)
	f("sglang without hint", Input{Tensors: dense(2, "float16", 2, 32, 1, 5), Engine: EngineSGLang}, ErrFormat, "tokens_per_block")
	f("sglang odd", Input{Tensors: dense(2, "float16", 2, 33, 1, 5), Engine: EngineSGLang, Hints: Hints{TokensPerBlock: 4}}, ErrFormat)
	f("sglang k_v halves", Input{
		Tensors: append(dense(1, "float16", 2, 32, 3, 5), dense(1, "bfloat16", 2, 32, 3, 5)...), Engine: EngineSGLang,
		Hints: Hints{KVListLayout: "k_v", TokensPerBlock: 4},
	}, ErrFormat, "K and V of one layer")
	f("sglang k_v ranks", Input{
		Tensors: append(dense(1, "float16", 2, 32, 3, 5), dense(1, "float16", 2, 32)...), Engine: EngineSGLang,
		Hints: Hints{KVListLayout: "k_v", TokensPerBlock: 4},
	}, ErrFormat, "tensor 1")
	f("trtllm without hints", Input{Tensors: dense(1, "float16", 2, 8, 4, 2, 60), Engine: EngineTRTLLM}, ErrFormat, "num_kv_heads")
	f("trtllm hints", Input{
		Tensors: dense(1, "float16", 2, 8, 4, 2, 60), Engine: EngineTRTLLM, Hints: Hints{NumKVHeads: 3, TokensPerBlock: 4, HeadDim: 6},
	}, ErrFormat)
	f("trtllm list", Input{Tensors: dense(2, "float16", 2, 8, 4, 2, 60), Engine: EngineTRTLLM}, ErrFormat)
	f("atom", Input{Tensors: ok(), Engine: EngineAtom}, ErrFormat)

	groups := func(ts []Tensor, g ...GroupInfo) Input {
		in := vllmInput(ts, "NHD")
		in.Groups = g
		return in
	}
	both := GroupInfo{Layers: []int{0, 1}}
	f("outside", groups(ok(), GroupInfo{Layers: []int{0, 2}}), ErrGroups, "layer 2, of 2")
	f("twice", groups(ok(), both, GroupInfo{Layers: []int{1}}), ErrGroups, "twice")
	f("order", groups(ok(), GroupInfo{Layers: []int{1, 0}}), ErrGroups)
	f("no layers", groups(ok(), both, GroupInfo{}), ErrGroups)
	f("negative id", groups(ok(), GroupInfo{EngineGroup: -1, Layers: []int{0}}), ErrGroups)
	f("too many", groups(ok(), GroupInfo{Layers: []int{0}}, GroupInfo{Layers: []int{1}}), ErrGroups, "2 groups for tensors that make 1")
	mixed := append(ok()[:1], dense(1, "float16", 2, 8, 16, 5)...)
	f("too few", groups(mixed, both), ErrGroups)
	f("wrong order", groups(mixed, GroupInfo{Layers: []int{1}}, GroupInfo{Layers: []int{0}}), ErrGroups, "group 0 covers layers")
	strides := append(vllm033("LBNHC", 1, 8, 4, 16, 64), vllm033("BLNHC", 2, 8, 4, 16, 64)...)
	f("strides", vllmInput(strides, "NHD"), ErrGroups, "bytes apart")
	f("blocks without groups", vllmInput(append(ok()[:1], dense(1, "float16", 2, 8, 32, 3, 5)...), "NHD"), ErrGroups, "16 and 32")
}

func TestChunkAgainstBlocks(t *testing.T) {
	t.Parallel()
	in := vllmInput(append(dense(2, "float16", 2, 8, 16, 3, 5), dense(2, "float16", 2, 8, 4, 7)...), "NHD")
	in.Groups = []GroupInfo{
		{EngineGroup: 0, Layers: []int{0, 1}, TokensPerBlock: 48},
		{EngineGroup: 1, Layers: []int{2, 3}, TokensPerBlock: 32},
	}
	_, err := New(in)
	var ce *ChunkSizeError
	require.ErrorAs(t, err, &ce)
	require.ErrorIs(t, err, ErrChunkSize)
	if ce.Group != 0 || ce.ChunkTokens != 256 || ce.BlockTokens != 48 || ce.Step != 96 || !reflect.DeepEqual(ce.Valid, []int{192, 288, 384}) {
		t.Errorf("got %+v", ce)
	}
	for _, s := range []string{"256", "48", "kernel group 0 (2 layers of 0 to 1)", "--chunk-size", "96", "192, 288, 384"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
	in.ChunkTokens = 288
	l, err := New(in)
	require.NoError(t, err)
	if l.Kernel[0].BlocksPerChunk != 6 || l.Kernel[1].BlocksPerChunk != 9 {
		t.Errorf("got %d and %d blocks per chunk", l.Kernel[0].BlocksPerChunk, l.Kernel[1].BlocksPerChunk)
	}
	// 16 slots stand for 48 tokens: the object keeps slots.
	shapes, _ := l.MemoryLayout(0)
	if want := [][]int64{{1, 2, 96, 15}, {1, 2, 36, 7}}; !reflect.DeepEqual(shapes, want) {
		t.Errorf("got %v, want %v", shapes, want)
	}

	in.Groups[0].TokensPerBlock = 24
	_, err = New(in)
	require.ErrorIs(t, err, ErrChunkSize)
	require.ErrorContains(t, err, "24 tokens per block")
	require.ErrorContains(t, err, "16 slots per block")

	in.Groups[0].TokensPerBlock = 48
	in.Groups[1].WindowTokens = 40
	_, err = New(in)
	require.ErrorIs(t, err, ErrChunkSize)
	require.ErrorContains(t, err, "window of 40 tokens")

	for step, want := range map[int][]int{256: {256, 512, 768}, 1000: {1000, 2000, 3000}, 96: {192, 288, 384}} {
		if got := multiplesAround(step, 256); !reflect.DeepEqual(got, want) {
			t.Errorf("multiples of %d: got %v, want %v", step, got, want)
		}
	}
}

// hybrid has two full attention layers, two with a window of 64 tokens, two
// with one of 600, a recurrent one, and an extra pool; one layer in no group.
func hybrid() Input {
	in := vllmInput(dense(9, "float16", 2, 8, 16, 2, 4), "NHD")
	in.Groups = []GroupInfo{
		{EngineGroup: 3, Layers: []int{0}, ExtraTag: 1},
		{EngineGroup: 0, Layers: []int{1, 2}, WindowTokens: -1},
		{EngineGroup: 1, Layers: []int{3, 4}, WindowTokens: 64},
		{EngineGroup: 2, Layers: []int{5, 6}, WindowTokens: 600},
		{EngineGroup: 4, Layers: []int{7}, WindowTokens: 64, Recurrent: true},
	}
	in.Tensors[8] = dense(1, "float16", 2, 3, 3)[0] // never looked at
	return in
}

func TestObjectGroups(t *testing.T) {
	t.Parallel()
	in := hybrid()
	l, err := New(in)
	require.NoError(t, err)
	row := int64(16 * 16) // 16 slots of 2 heads of 4 halves
	require.Len(t, l.Object, 1)
	if o := l.Object[0]; o.WindowChunks != 0 || o.Recurrent || o.Aux || o.ObjectBytes() != row*(16+2*16+2*4+2*16+4) {
		t.Errorf("one group: %+v of %d bytes", o, o.ObjectBytes())
	}
	if l.Lists != 5 || l.NumLayers != 9 || l.Kernel[2].KeptBlocks != 4 || l.Kernel[2].RegionOffset != row*(16+2*16) {
		t.Errorf("got %d lists, %d layers, %+v", l.Lists, l.NumLayers, l.Kernel[2])
	}

	in.SeparateObjectGroups = true
	l, err = New(in)
	require.NoError(t, err)
	type group struct {
		kernel         []int
		window         int
		recurrent, aux bool
		bytes          int64
	}
	want := []group{
		{[]int{1}, 0, false, false, row * 32},
		{[]int{2}, 1, false, false, row * 8},
		{[]int{3}, 3, false, false, row * 32},
		{[]int{4}, 1, true, false, row * 4},
		{[]int{0}, 0, false, true, row * 16},
	}
	var got []group
	for i, o := range l.Object {
		got = append(got, group{o.Kernel, o.WindowChunks, o.Recurrent, o.Aux, o.ObjectBytes()})
		for _, k := range o.Kernel {
			if l.Kernel[k].ObjectGroup != i {
				t.Errorf("kernel group %d says object group %d", k, l.Kernel[k].ObjectGroup)
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}

	f := func(group, chunks, skip, from, to int) {
		t.Helper()
		if a, b := l.RetrieveChunks(group, chunks, skip); a != from || b != to {
			t.Errorf("group %d, %d chunks, skip %d: got [%d,%d), want [%d,%d)", group, chunks, skip, a, b, from, to)
		}
	}
	f(0, 5, 0, 0, 5)
	f(0, 5, 255, 0, 5)
	f(0, 5, 512, 2, 5)
	f(0, 5, 99999, 5, 5)
	f(1, 5, 0, 4, 5)
	f(1, 5, 512, 4, 5)
	f(2, 5, 0, 2, 5)
	f(2, 2, 0, 0, 2)
	f(2, 5, 1030, 4, 5)
	f(4, 5, 0, 0, 0)
	f(0, 0, 0, 0, 0)
}

func TestNoGroups(t *testing.T) {
	t.Parallel()
	// Two shapes and no infos: two kernel groups, one list of block ids.
	l, err := New(vllmInput(append(dense(2, "float16", 2, 8, 16, 3, 5), dense(1, "float16", 2, 9, 16, 7)...), "NHD"))
	require.NoError(t, err)
	if len(l.Kernel) != 2 || l.Lists != 1 || l.Kernel[1].List != 0 || len(l.Storages) != 3 {
		t.Errorf("got %d groups, %d lists, list %d, %d storages", len(l.Kernel), l.Lists, l.Kernel[1].List, len(l.Storages))
	}
	if l.Kernel[0].NumBlocks != 8 || l.Kernel[1].NumBlocks != 9 {
		t.Errorf("got %d and %d blocks", l.Kernel[0].NumBlocks, l.Kernel[1].NumBlocks)
	}
}

func TestShortestLayerBoundsIDs(t *testing.T) {
	t.Parallel()
	l, err := New(vllmInput(append(dense(1, "float16", 2, 8, 16, 3, 5), dense(1, "float16", 2, 6, 16, 3, 5)...), "NHD"))
	require.NoError(t, err)
	if n := l.Kernel[0].NumBlocks; n != 6 {
		t.Errorf("got %d blocks, want those that every layer has", n)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	in := Input{
		Tensors: dense(4, "bfloat16", 2, 2, 256, 2, 16, 32), Engine: EngineVLLM, CPUEngine: true, ChunkTokens: 256,
		Groups: []GroupInfo{{Layers: []int{0, 1, 2, 3}, TokensPerBlock: 16}},
	}
	l, err := New(in)
	require.NoError(t, err)
	got, err := json.Marshal(l.Describe())
	require.NoError(t, err)
	want, err := os.ReadFile("testdata/status_kv_cache_layout.json")
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(got))

	for f := range numFormats {
		if strings.Contains(f.Shape(), "_") || f.AttentionBackend() == "" {
			t.Errorf("%v: shape %q, backend %q", f, f.Shape(), f.AttentionBackend())
		}
	}
	if s := FormatListFlat.Shape(); s != "2 x NL x [PBS, NH, HS]" {
		t.Errorf("got %q", s)
	}
	l, err = New(vllmInput(dense(2, "uint8", 1, 8, 64, 132), "NHD"))
	require.NoError(t, err)
	if s := l.Describe().KernelGroups[0].ConcreteShape; s != "2 x [8, 64x128, 64x4]" {
		t.Errorf("got %q", s)
	}
}

func TestGatherOrder(t *testing.T) {
	t.Parallel()
	f := func(in Input, layer int, ids []int64, want ...int64) {
		t.Helper()
		in.ChunkTokens = 16
		l, err := New(in)
		require.NoError(t, err)
		_, pieces, err := l.GatherOrder(layer, ids)
		require.NoError(t, err)
		var got []int64
		for p := range pieces {
			got = append(got, p.Offset/p.Bytes)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	f(vllmInput(dense(2, "float16", 2, 2, 8, 4, 3, 5), "NHD"), 1, []int64{3, 1}, 3, 1, 11, 9)
	f(vllmInput(dense(2, "float16", 2, 8, 2, 4, 3, 5), "NHD"), 0, []int64{3, 1}, 6, 7, 2, 3)
	f(vllmInput(dense(2, "float16", 2, 8, 4, 5), "NHD"), 0, []int64{3, 1}, 3, 1)
	f(vllmInput(dense(2, "float16", 2, 8, 4, 5), "NHD"), 0, nil)

	l, err := New(hybrid())
	require.NoError(t, err)
	_, _, err = l.GatherOrder(8, []int64{1})
	require.ErrorIs(t, err, ErrGroups)
	_, _, err = l.GatherOrder(0, []int64{8})
	require.ErrorIs(t, err, ErrGroups)
	_, _, err = l.GatherOrder(0, []int64{-1})
	require.ErrorIs(t, err, ErrGroups)
}
