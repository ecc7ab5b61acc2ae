package kvlayout

import (
	"fmt"
	"slices"
)

// Input is one registration, taken apart by whoever decoded it. New keeps none
// of its slices but for the strings.
type Input struct {
	// Tensors in registration order: the layer indices of Groups count them.
	Tensors []Tensor
	Engine  Engine
	Hints   Hints
	// CPUEngine says that the engine's tensors are in host memory and it runs
	// without an accelerator. It decides the order of heads and tokens where
	// kv_layout was not sent.
	CPUEngine bool
	// Groups has one entry per kernel group and per block id list of a
	// transfer; empty means one group of all layers.
	Groups []GroupInfo
	// ChunkTokens is the server's chunk size.
	ChunkTokens int
	// SeparateObjectGroups gives each kind of attention its own objects
	// (--separate-object-groups).
	SeparateObjectGroups bool
}

// GroupInfo is the EngineGroupInfo of the wire.
type GroupInfo struct {
	// EngineGroup is the engine's address space of block ids.
	EngineGroup int
	// Layers are indices into Input.Tensors, or layers of a cross-layer tensor.
	Layers []int
	// TokensPerBlock is what one block id stands for; 0 means as many tokens
	// as the tensors have slots.
	TokensPerBlock int
	// WindowTokens of a sliding window, or what a recurrent state covers; none
	// when not positive.
	WindowTokens int
	// ExtraTag above 0 keeps the group out of ordinary retrieves.
	ExtraTag int
	// Recurrent: pages are snapshots of a state and not rows of tokens.
	Recurrent bool
}

// Storage is a piece of engine memory that holds one or more tensors.
type Storage struct {
	// Key and Bytes as in the tensors.
	Key   string
	Bytes int64
}

// Layout is what a registered worker's KV cache looks like and how its chunks
// become objects. It is immutable and safe for concurrent use; nothing in it
// may be changed by a reader.
type Layout struct {
	// ChunkTokens is the chunk size that it was made for.
	ChunkTokens int
	// NumLayers counts registered layers, those of no group included.
	NumLayers int
	// Storages holds each distinct one once, in order of first use, those of
	// tensors that are never transferred included.
	Storages []Storage
	// Kernel groups in the order of the engine's groups.
	Kernel []KernelGroup
	// Object groups; every kernel group is in exactly one.
	Object []ObjectGroup
	// Lists is the number of block id lists that a transfer must carry.
	Lists int
}

// KernelGroup is a set of layers with the same shape, format and block ids.
//
// The block with id b of plane k of the group's layer i has BlockBytes bytes
// at Bases[k*len(Layers)+i].Offset + b*BlockStride of its storage.
type KernelGroup struct {
	// Index in Layout.Kernel, EngineGroup of the registration, ObjectGroup
	// index in Layout.Object, List index of its block ids in a transfer.
	Index, EngineGroup, ObjectGroup, List int

	Format Format
	// Layers are the registration's layer indices, rising.
	Layers []int
	// DType is the torch name, ElemBytes its size.
	DType     string
	ElemBytes int64
	// Planes is 2 for K and V apart, else 1.
	Planes int
	// Heads and HeadSize (elements); a packed format counts K and V in HeadSize.
	Heads, HeadSize int64
	// NumBlocks bounds block ids: 0 <= id < NumBlocks.
	NumBlocks int64
	// SlotsPerBlock is the rows of a block, TokensPerBlock what they stand for.
	SlotsPerBlock, TokensPerBlock int64
	// WindowTokens of a sliding window, 0 for none.
	WindowTokens int64
	ExtraTag     int
	Recurrent    bool

	// HeadMajor: inside a block all slots of the first head come first. False
	// where both orders are the same bytes.
	HeadMajor bool
	// BlockBytes of one block of one plane of one layer.
	BlockBytes int64
	// BlockStride from a block to the next id, in bytes; at least BlockBytes.
	BlockStride int64
	// Bases of block 0, plane-major.
	Bases []Base
	// RowStep is the constant distance in bytes from each entry of Bases to
	// the next, 0 if there is none. LayerStep is the same within each plane.
	RowStep, LayerStep int64

	// BlocksPerChunk block ids stand for one chunk in a transfer; the last
	// KeptBlocks of them are in the object (fewer for a window below a chunk).
	BlocksPerChunk, KeptBlocks int
	// RegionOffset and RegionBytes say where in the object: row r = k*layers+i
	// has KeptBlocks blocks at RegionOffset + r*KeptBlocks*BlockBytes.
	RegionOffset, RegionBytes int64
}

// ObjectGroup is a set of kernel groups that share objects.
type ObjectGroup struct {
	// Kernel groups in the order of their regions.
	Kernel []int
	// WindowChunks is how many of the last chunks of a prefix are needed, 0
	// for all (full attention).
	WindowChunks int
	// Recurrent: all of its kernel groups are.
	Recurrent bool
	// Aux groups belong to a connector's extra pools: stored, never retrieved.
	Aux bool
	// Form of the objects that this engine writes.
	Form *Form
}

// ObjectBytes is the exact size of an object of the group.
func (g *ObjectGroup) ObjectBytes() int64 { return g.Form.Bytes }

// New checks a registration and works out its layout. The error wraps one of
// ErrTensor, ErrFormat, ErrGroups, ErrChunkSize and says what to change.
func New(in Input) (*Layout, error) {
	if in.ChunkTokens < 1 {
		return nil, fmt.Errorf("%w: chunk size %d must be positive", ErrChunkSize, in.ChunkTokens)
	}
	if n := len(in.Tensors); n == 0 || n > maxTensors {
		return nil, fmt.Errorf("%w: %d tensors, expected 1 to %d", ErrTensor, n, maxTensors)
	}
	l := &Layout{ChunkTokens: in.ChunkTokens, Lists: max(len(in.Groups), 1)}
	store := make([]int, len(in.Tensors))
	index := map[Storage]int{}
	for i := range in.Tensors {
		t := &in.Tensors[i]
		if err := t.check(); err != nil {
			return nil, fmt.Errorf("tensor %d: %w", i, err)
		}
		s := Storage{t.Storage, t.StorageBytes}
		if s.Bytes == 0 {
			store[i] = -1 // nothing to map; refused below if a group needs it
			continue
		}
		at, ok := index[s]
		if !ok {
			at = len(l.Storages)
			index[s] = at
			l.Storages = append(l.Storages, s)
		}
		store[i] = at
	}
	layers, group, err := in.layers(store)
	if err != nil {
		return nil, err
	}
	l.NumLayers = len(layers)
	if err := l.kernelGroups(&in, layers, group); err != nil {
		return nil, err
	}
	if err := l.checkChunk(); err != nil {
		return nil, err
	}
	l.objectGroups(in.SeparateObjectGroups)
	if err := l.regions(); err != nil {
		return nil, err
	}
	return l, nil
}

// noGroup marks a layer that is registered and never transferred: scratch, or
// an alias of another layer's cache.
const noGroup = -1

// layers describes each layer of the registration that a group uses, and says
// which engine group that is.
func (in *Input) layers(store []int) ([]layer, []int, error) {
	layers, whole, err := in.whole(store)
	if err != nil {
		return nil, nil, err
	}
	if !whole {
		layers = make([]layer, len(in.Tensors))
	}
	group := make([]int, len(layers))
	if len(in.Groups) > 0 {
		if err := in.assign(group); err != nil {
			return nil, nil, err
		}
	}
	if whole {
		return layers, group, nil
	}
	for i := range layers {
		if group[i] == noGroup {
			continue
		}
		if layers[i], err = in.perLayer(&in.Tensors[i], store[i]); err != nil {
			return nil, nil, fmt.Errorf("tensor %d: %w", i, err)
		}
	}
	return layers, group, nil
}

// assign fills group with the engine group of every layer.
func (in *Input) assign(group []int) error {
	for i := range group {
		group[i] = noGroup
	}
	for g := range in.Groups {
		info := &in.Groups[g]
		if info.EngineGroup < 0 {
			return fmt.Errorf("%w: group %d has engine group id %d", ErrGroups, g, info.EngineGroup)
		}
		if len(info.Layers) == 0 {
			return fmt.Errorf("%w: group %d has no layers", ErrGroups, g)
		}
		if !slices.IsSorted(info.Layers) {
			return fmt.Errorf("%w: the layers %v of group %d do not rise", ErrGroups, info.Layers, g)
		}
		for _, i := range info.Layers {
			switch {
			case i < 0 || i >= len(group):
				return fmt.Errorf("%w: group %d names layer %d, of %d registered", ErrGroups, g, i, len(group))
			case group[i] != noGroup:
				return fmt.Errorf("%w: layer %d is named twice", ErrGroups, i)
			}
			group[i] = info.EngineGroup
		}
	}
	return nil
}

// RetrieveChunks is the range of a request's chunks that a retrieve of an
// object group needs: the window's last ones, less those that lie whole inside
// the skipped tokens.
func (l *Layout) RetrieveChunks(group, chunks, skipTokens int) (from, to int) {
	g := &l.Object[group]
	if g.Aux || chunks <= 0 {
		return 0, 0
	}
	if g.WindowChunks > 0 {
		from = max(0, chunks-g.WindowChunks)
	}
	if skipTokens > 0 {
		from = max(from, min(skipTokens/l.ChunkTokens, chunks))
	}
	return from, chunks
}

// MemoryLayout is the MemoryLayoutDesc of an object group: per kernel group
// the shape [planes, layers, slots, heads*head size] of its region and its
// dtype.
func (l *Layout) MemoryLayout(group int) (shapes [][]int64, dtypes []string) {
	for _, k := range l.Object[group].Kernel {
		g := &l.Kernel[k]
		shapes = append(shapes, []int64{
			int64(g.Planes), int64(len(g.Layers)), int64(g.KeptBlocks) * g.SlotsPerBlock, g.Heads * g.HeadSize,
		})
		dtypes = append(dtypes, g.DType)
	}
	return shapes, dtypes
}
