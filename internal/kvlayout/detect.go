package kvlayout

import "fmt"

// Engine is the serving engine of a registration (EngineType, lmcache 0.5.6,
// lmcache/utils.py).
type Engine string

// The engines whose tensors can be told. "mock" exists on the wire and has no
// detector in the reference either.
const (
	EngineVLLM   Engine = "vllm"
	EngineAtom   Engine = "atom"
	EngineSGLang Engine = "sglang"
	EngineTRTLLM Engine = "trtllm"
)

// Hints are the layout_hints of a registration; the zero value means none.
type Hints struct {
	// KVLayout is "NHD", "HND", "BLNHC" or "BLHNC" (vllm), "" when not sent.
	KVLayout string
	// NumKVHeads, TokensPerBlock and HeadDim fold out the pool of trtllm;
	// TokensPerBlock also the tensors of sglang. 0 when not sent.
	NumKVHeads, TokensPerBlock, HeadDim int64
	// KVListLayout is "k_v" or "unified" (sglang), "" when not sent.
	KVListLayout string
}

// Base is where the block with id 0 of one plane of one layer starts.
type Base struct {
	// Storage indexes [Layout.Storages].
	Storage int
	// Offset in bytes from the start of the storage.
	Offset int64
}

// layer is what one transformer layer needs for addressing: the block with id
// b of plane k is at planes[k] + b*stride and has slots*heads*headSize*elem
// bytes, all of them side by side.
type layer struct {
	format                         Format
	dtype                          string
	elem                           int64
	heads, headSize, slots, blocks int64
	stride                         int64 // bytes
	planes                         [2]Base
}

func (l *layer) blockBytes() int64 { return l.slots * l.heads * l.headSize * l.elem }

// headsFirst resolves the kv_layout hint of vllm. A registration without one
// comes from before the hints: HND where the engine ran on a CPU, NHD elsewhere.
func (in *Input) headsFirst() (bool, error) {
	layout := in.Hints.KVLayout
	if layout == "" {
		return in.CPUEngine, nil
	}
	switch layout {
	case "HND", "BLHNC":
		return true, nil
	case "NHD", "BLNHC":
		return false, nil
	}
	return false, fmt.Errorf("%w: kv_layout %q is not one of NHD, HND, BLHNC, BLNHC; set VLLM_KV_CACHE_LAYOUT to one of them", ErrFormat, layout)
}

// whole tells registrations in which a tensor is not a layer: one tensor with
// all layers, or a list of K and a list of V. found is false for the others.
func (in *Input) whole(store []int) (layers []layer, found bool, err error) {
	first := &in.Tensors[0]
	switch in.Engine {
	case EngineVLLM:
		if len(in.Tensors) != 1 || len(first.Shape) != 6 {
			return nil, false, nil
		}
		v, err := first.normalise()
		if err != nil {
			return nil, false, err
		}
		if v.shape[2] != 2 || (v.shape[0] == 2 && v.shape[3] == 1) {
			return nil, false, nil
		}
		format := FormatCrossLayer
		if hnd, err := in.headsFirst(); err != nil {
			return nil, false, err
		} else if hnd && in.Hints.KVLayout != "" {
			// The reference takes the axes of any such tensor as tokens
			// before heads. Here the order matters beyond one engine.
			format = FormatCrossLayerHND
		}
		layers, err = crossLayer(format, v, store[0])
		return layers, true, err

	case EngineTRTLLM:
		if len(in.Tensors) != 1 || len(first.Shape) != 4 {
			return nil, false, fmt.Errorf("%w: trtllm registers one pool of rank 4, not %d tensors of rank %d", ErrFormat, len(in.Tensors), len(first.Shape))
		}
		v, err := first.normalise()
		if err != nil {
			return nil, false, err
		}
		h := in.Hints
		if h.NumKVHeads <= 0 || h.TokensPerBlock <= 0 || h.HeadDim <= 0 {
			return nil, false, fmt.Errorf("%w: trtllm needs the layout hints num_kv_heads, tokens_per_block and head_dim, got %d, %d and %d", ErrFormat, h.NumKVHeads, h.TokensPerBlock, h.HeadDim)
		}
		if v.shape[1] > maxTensors || v.shape[2] != 2 || !isProduct(v.shape[3], h.NumKVHeads, h.TokensPerBlock, h.HeadDim) {
			return nil, false, fmt.Errorf("%w: trtllm pool of shape %v is not [blocks, layers, 2, %d heads * %d tokens * %d]", ErrFormat, v.shape, h.NumKVHeads, h.TokensPerBlock, h.HeadDim)
		}
		if v.padded() {
			return nil, false, errPadded(FormatCrossLayerHND, &v)
		}
		v.shape = []int64{v.shape[0], v.shape[1], 2, h.NumKVHeads, h.TokensPerBlock, h.HeadDim}
		layers, err = crossLayer(FormatCrossLayerHND, v, store[0])
		return layers, true, err

	case EngineSGLang:
		h := in.Hints
		if h.KVListLayout != "k_v" || h.TokensPerBlock <= 0 || len(in.Tensors)%2 != 0 || len(first.Shape) != 3 {
			return nil, false, nil
		}
		layers, err = in.kvList(store)
		return layers, true, err
	default:
		return nil, false, nil
	}
}

// crossLayer describes [NB, NL, 2, …block…]; the stride of blocks spans all layers.
func crossLayer(f Format, v view, store int) ([]layer, error) {
	if v.padded() {
		return nil, errPadded(f, &v)
	}
	slots, heads := v.shape[3], v.shape[4]
	if f.HeadsFirst() {
		slots, heads = heads, slots
	}
	if v.shape[1] > maxTensors {
		return nil, fmt.Errorf("%w: %d layers, at most %d", ErrFormat, v.shape[1], maxTensors)
	}
	layers := make([]layer, v.shape[1])
	for i := range layers {
		l := layer{format: f, dtype: v.dtype, elem: v.elem, blocks: v.shape[0], slots: slots, heads: heads, headSize: v.shape[5]}
		bb := l.blockBytes()
		l.stride = int64(len(layers)) * 2 * bb
		for k := range l.planes {
			l.planes[k] = Base{store, v.base + (int64(i)*2+int64(k))*bb}
		}
		layers[i] = l
	}
	return layers, nil
}

// kvList describes the two halves of sglang: K of all layers, then V, each
// [NB*BS, NH, HS].
func (in *Input) kvList(store []int) ([]layer, error) {
	n := len(in.Tensors) / 2
	layers := make([]layer, n)
	for i := range in.Tensors {
		v, err := in.Tensors[i].normalise()
		if err != nil {
			return nil, fmt.Errorf("tensor %d: %w", i, err)
		}
		if v.rank() != 3 {
			return nil, fmt.Errorf("tensor %d: %w", i, errUnknown(in.Engine, &v))
		}
		l, err := unfold(FormatList, &v, v.shape[1], in.Hints.TokensPerBlock, store[i])
		if err != nil {
			return nil, fmt.Errorf("tensor %d: %w", i, err)
		}
		if i < n {
			layers[i] = l
			continue
		}
		k := &layers[i-n]
		k.planes[1] = l.planes[0]
		l.planes = k.planes
		l.blocks = min(l.blocks, k.blocks)
		k.blocks = l.blocks
		if l != *k {
			return nil, fmt.Errorf("%w: tensors %d and %d are K and V of one layer and differ in shape or dtype", ErrFormat, i-n, i)
		}
	}
	return layers, nil
}

// unfold splits the first axis of sglang's [NB*BS, NH, HS] into blocks.
func unfold(f Format, v *view, heads, tokens int64, store int) (layer, error) {
	if v.padded() {
		return layer{}, errPadded(f, v)
	}
	if v.shape[0]%tokens != 0 {
		return layer{}, fmt.Errorf("%w: sglang buffer of %d tokens is not a multiple of its %d tokens per block", ErrFormat, v.shape[0], tokens)
	}
	l := layer{format: f, dtype: v.dtype, elem: v.elem, blocks: v.shape[0] / tokens, slots: tokens, heads: heads, headSize: v.shape[2]}
	l.stride = l.blockBytes()
	l.planes[0] = Base{store, v.base}
	return l, nil
}

// perLayer tells the format of a tensor that is one layer.
func (in *Input) perLayer(t *Tensor, store int) (layer, error) {
	v, err := t.normalise()
	if err != nil {
		return layer{}, err
	}
	var f Format
	switch in.Engine {
	case EngineVLLM:
		f, err = in.vllm(&v)
	case EngineSGLang:
		return in.sglang(&v, store)
	case EngineAtom:
		if f = FormatLatent; v.rank() != 3 {
			err = errUnknown(in.Engine, &v)
		}
	default:
		err = fmt.Errorf("%w: engine type %q is not one of vllm, sglang, trtllm, atom", ErrFormat, in.Engine)
	}
	if err != nil {
		return layer{}, err
	}
	return fromAxes(f, &v, store)
}

func (in *Input) vllm(v *view) (Format, error) {
	hnd, err := in.headsFirst()
	if err != nil {
		return 0, err
	}
	pick := func(hndFormat, nhdFormat Format) (Format, error) {
		if hnd {
			return hndFormat, nil
		}
		return nhdFormat, nil
	}
	s := v.shape
	// Rows of 128 fp8 values and one scale of a sparse attention indexer.
	indexer := v.dtype == "uint8" && s[len(s)-1] == 132
	switch {
	case v.rank() == 3 && indexer:
		return FormatIndexer, nil
	case v.rank() == 3:
		return FormatLatent, nil
	case v.rank() == 4:
		head := 2
		if hnd {
			head = 1
		}
		if indexer && s[head] == 1 {
			v.squeeze(head)
			return FormatIndexer, nil
		}
		return pick(FormatPackedHND, FormatPacked)
	case v.rank() == 5 && s[0] == 2:
		return pick(FormatPlaneFirstHND, FormatPlaneFirst)
	case v.rank() == 5 && s[1] == 2:
		return pick(FormatBlockPlanesHND, FormatBlockPlanes)
	case v.rank() == 6 && s[0] == 2 && s[3] == 1:
		return FormatPlaneFirstOneHND, nil
	}
	return 0, errUnknown(in.Engine, v)
}

func (in *Input) sglang(v *view, store int) (layer, error) {
	switch {
	case in.Hints.KVListLayout == "unified" && v.rank() == 3:
		return fromAxes(FormatLatent, v, store)
	case in.Hints.KVListLayout == "unified" && v.rank() == 4:
		return fromAxes(FormatComponents, v, store)
	case in.Hints.KVListLayout == "unified":
		return layer{}, errUnknown(in.Engine, v)
	case in.Hints.TokensPerBlock <= 0:
		return layer{}, fmt.Errorf("%w: sglang must send the layout hint tokens_per_block: its buffers do not show where blocks end", ErrFormat)
	case v.rank() == 3 && v.shape[1] == 1:
		return unfold(FormatLatent, v, 1, in.Hints.TokensPerBlock, store)
	case v.rank() == 3 && in.Hints.KVListLayout == "":
		return fromAxes(FormatLatent, v, store)
	}
	return layer{}, errUnknown(in.Engine, v)
}

func (v *view) squeeze(axis int) {
	v.shape = append(v.shape[:axis:axis], v.shape[axis+1:]...)
	v.stride = append(v.stride[:axis:axis], v.stride[axis+1:]...)
}

// fromAxes reads sizes and addresses off the axes of a format with one tensor
// per layer.
func fromAxes(f Format, v *view, store int) (layer, error) {
	s := v.shape
	l := layer{format: f, dtype: v.dtype, elem: v.elem, heads: 1, headSize: s[len(s)-1]}
	blockAxis := 0
	switch f {
	case FormatLatent, FormatIndexer:
		l.blocks, l.slots = s[0], s[1]
	case FormatPacked, FormatComponents:
		l.blocks, l.slots, l.heads = s[0], s[1], s[2]
	case FormatPackedHND:
		l.blocks, l.heads, l.slots = s[0], s[1], s[2]
	case FormatPlaneFirst, FormatBlockPlanes:
		l.slots, l.heads = s[2], s[3]
	case FormatPlaneFirstHND, FormatBlockPlanesHND:
		l.heads, l.slots = s[2], s[3]
	case FormatPlaneFirstOneHND:
		l.heads, l.slots = s[2], s[4]
	default:
		panic("kvlayout: " + f.String() + " is not a tensor per layer")
	}
	bb := l.blockBytes()
	plane := int64(0)
	switch f {
	case FormatPlaneFirst, FormatPlaneFirstHND, FormatPlaneFirstOneHND:
		blockAxis = 1
		l.blocks, l.stride, plane = s[1], bb, s[1]*bb
	case FormatBlockPlanes, FormatBlockPlanesHND:
		l.blocks, l.stride, plane = s[0], 2*bb, bb
	default: // one plane, blocks outermost: a gap between blocks is fine
		l.stride = bb
		if s[0] > 1 {
			l.stride = v.stride[0] * v.elem
		}
	}
	if v.padded() && (blockAxis != 0 || f.Planes() != 1) {
		return layer{}, errPadded(f, v)
	}
	l.planes[0] = Base{store, v.base}
	if f.Planes() == 2 {
		l.planes[1] = Base{store, v.base + plane}
	}
	return l, nil
}

func errPadded(f Format, v *view) error {
	return fmt.Errorf("%w: shape %v with strides %v has a gap in its outermost axis, which %v cannot have", ErrTensor, v.shape, v.stride, f)
}

func errUnknown(e Engine, v *view) error {
	return fmt.Errorf("%w: %s tensor of shape %v (memory order), strides %v and dtype %s", ErrFormat, e, v.shape, v.stride, v.dtype)
}

func isProduct(n int64, factors ...int64) bool {
	p := int64(1)
	for _, f := range factors {
		var ok bool
		if p, ok = mul(p, f); !ok {
			return false
		}
	}
	return p == n
}
