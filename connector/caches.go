package connector

import (
	"fmt"
	"strconv"

	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// Tensor is one KV tensor of an engine.
type Tensor struct {
	// DType is a torch name.
	DType string
	// Shape and Stride have one entry per axis, strides in elements. No Stride
	// means dense.
	Shape, Stride []int64
	// Storage that it lies in, and its first element there, in elements.
	Storage int
	Offset  int64
}

// Caches is what a worker registers: its KV tensors in layer order and how to
// read them.
type Caches struct {
	Memory  Memory
	Tensors []Tensor
	// Engine decides how shapes are understood. Default vllm.
	Engine wire.EngineType
	// Hints: KVLayout says whether tokens (NHD) or heads (HND) come first in a
	// block.
	Hints wire.LayoutHints
	// Groups of layers with block ids of their own; none means one group of
	// all layers.
	Groups []wire.EngineGroupInfo
}

// wrappers describe the tensors for a server that opens them.
func (c *Caches) wrappers() ([]wire.DeviceWrapper, error) {
	out := make([]wire.DeviceWrapper, len(c.Tensors))
	for i := range c.Tensors {
		t := &c.Tensors[i]
		d, ok := torchdtype.Lookup(t.DType)
		if !ok {
			return nil, fmt.Errorf("%w: tensor %d: unknown dtype %q", ErrConfig, i, t.DType)
		}
		src, err := c.Memory.Source(t.Storage)
		if err != nil {
			return nil, err
		}
		out[i] = wire.DeviceWrapper{Source: src, Metadata: wire.TensorMetadata{
			DType: d, Shape: t.Shape, Stride: t.strides(), StorageOffset: t.Offset, DeviceUUID: c.Memory.DeviceUUID(),
		}}
	}
	return out, nil
}

func (t *Tensor) strides() []int64 {
	if t.Stride != nil || len(t.Shape) == 0 {
		return t.Stride
	}
	out := make([]int64, len(t.Shape))
	step := int64(1)
	for i := len(t.Shape) - 1; i >= 0; i-- {
		out[i] = step
		step *= t.Shape[i]
	}
	return out
}

// layout works out where blocks lie. Tensors outside their storage, unknown
// shapes and block sizes that do not divide the chunk are errors.
func (c *Caches) layout(chunk int) (*kvlayout.Layout, error) {
	sizes := c.Memory.Sizes()
	in := kvlayout.Input{
		Engine: kvlayout.Engine(c.engine()), ChunkTokens: chunk, CPUEngine: c.Memory.Host() != nil,
		Hints: kvlayout.Hints{
			KVLayout: c.Hints.KVLayout, NumKVHeads: int64(c.Hints.NumKVHeads), TokensPerBlock: int64(c.Hints.TokensPerBlock),
			KVListLayout: c.Hints.KVListLayout, HeadDim: int64(c.Hints.HeadDim),
		},
	}
	for i := range c.Tensors {
		t := &c.Tensors[i]
		d, ok := torchdtype.Lookup(t.DType)
		if !ok {
			return nil, fmt.Errorf("%w: tensor %d: unknown dtype %q", ErrConfig, i, t.DType)
		}
		if t.Storage < 0 || t.Storage >= len(sizes) {
			return nil, fmt.Errorf("%w: tensor %d: there is no storage %d", ErrConfig, i, t.Storage)
		}
		in.Tensors = append(in.Tensors, kvlayout.Tensor{
			DType: d.Name, ElemBytes: d.Size, Shape: t.Shape, Stride: t.strides(), Offset: t.Offset,
			Storage: strconv.Itoa(t.Storage), StorageBytes: sizes[t.Storage],
		})
	}
	for _, g := range c.Groups {
		in.Groups = append(in.Groups, kvlayout.GroupInfo{
			EngineGroup: g.EngineGroupID, Layers: g.LayerIndices, TokensPerBlock: g.TokensPerBlock,
			WindowTokens: g.WindowTokens, ExtraTag: g.ExtraGroupTag, Recurrent: g.RecurrentState,
		})
	}
	l, err := kvlayout.New(in)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return l, nil
}

func (c *Caches) engine() wire.EngineType {
	if c.Engine == "" {
		return wire.EngineVLLM
	}
	return c.Engine
}

// storages are the bytes of l's storages, in its order.
func (c *Caches) storages(l *kvlayout.Layout) ([][]byte, error) {
	host := c.Memory.Host()
	out := make([][]byte, len(l.Storages))
	for i, s := range l.Storages {
		n, err := strconv.Atoi(s.Key)
		if err != nil || n >= len(host) {
			return nil, fmt.Errorf("%w: the processor cannot reach storage %s", ErrMode, s.Key)
		}
		out[i] = host[n]
	}
	return out, nil
}
