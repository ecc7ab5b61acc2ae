package kvlayout

import (
	"cmp"
	"fmt"
	"slices"
)

// identity is what layers must share to be one kernel group
// (KernelGroupIdentity, lmcache 0.5.6, v1/kv_layer_groups.py).
type identity struct {
	format                 Format
	dtype                  string
	heads, headSize, slots int64
	engineGroup            int
}

// kernelGroups partitions the layers. The engine does the same and sends one
// info per group, in the order of the groups' first layers.
func (l *Layout) kernelGroups(in *Input, layers []layer, group []int) error {
	index := map[identity]int{}
	for i := range layers {
		if group[i] == noGroup {
			continue
		}
		a := &layers[i]
		id := identity{a.format, a.dtype, a.heads, a.headSize, a.slots, group[i]}
		at, ok := index[id]
		if !ok {
			at = len(l.Kernel)
			index[id] = at
			l.Kernel = append(l.Kernel, KernelGroup{
				Index: at, EngineGroup: group[i], List: at,
				Format: a.format, DType: a.dtype, ElemBytes: a.elem, Planes: a.format.Planes(),
				Heads: a.heads, HeadSize: a.headSize, SlotsPerBlock: a.slots, NumBlocks: a.blocks,
				BlockBytes: a.blockBytes(), BlockStride: a.stride,
				HeadMajor: a.format.HeadsFirst() && a.heads > 1 && a.slots > 1,
			})
		}
		g := &l.Kernel[at]
		g.Layers = append(g.Layers, i)
		if a.stride != g.BlockStride && min(a.blocks, g.NumBlocks) > 1 {
			return fmt.Errorf("%w: layers %d and %d are one group (%v, %s) but their blocks are %d and %d bytes apart",
				ErrGroups, g.Layers[0], i, g.Format, g.DType, g.BlockStride, a.stride)
		}
		// Ids beyond the shortest layer would be out of its bounds.
		g.NumBlocks = min(g.NumBlocks, a.blocks)
	}
	if len(l.Kernel) == 0 {
		return fmt.Errorf("%w: no layer is in a group", ErrGroups)
	}
	if n := len(in.Groups); n > 0 && n != len(l.Kernel) {
		return fmt.Errorf("%w: the engine sent %d groups for tensors that make %d (by format, shape, dtype and engine group)", ErrGroups, n, len(l.Kernel))
	}
	for i := range l.Kernel {
		g := &l.Kernel[i]
		g.TokensPerBlock = g.SlotsPerBlock
		if len(in.Groups) == 0 {
			g.List = 0
		} else if err := g.apply(&in.Groups[i]); err != nil {
			return err
		}
		if err := g.place(l, layers); err != nil {
			return err
		}
	}
	return nil
}

// apply takes over what only the engine knows.
func (g *KernelGroup) apply(info *GroupInfo) error {
	if !slices.Equal(g.Layers, info.Layers) {
		return fmt.Errorf("%w: group %d covers layers %v in the engine's list and %v by the tensors", ErrGroups, g.Index, info.Layers, g.Layers)
	}
	if info.TokensPerBlock < 0 || info.ExtraTag < 0 {
		return fmt.Errorf("%w: group %d has %d tokens per block and tag %d", ErrGroups, g.Index, info.TokensPerBlock, info.ExtraTag)
	}
	if info.TokensPerBlock > 0 {
		g.TokensPerBlock = int64(info.TokensPerBlock)
	}
	g.WindowTokens = int64(max(info.WindowTokens, 0))
	g.ExtraTag, g.Recurrent = info.ExtraTag, info.Recurrent
	return nil
}

// place sets the addresses and checks the last block of every row against its
// storage: the descriptions were checked one by one, this checks the sum.
func (g *KernelGroup) place(l *Layout, layers []layer) error {
	g.Bases = make([]Base, 0, g.Planes*len(g.Layers))
	for k := range g.Planes {
		for _, i := range g.Layers {
			b := layers[i].planes[k]
			if b.Storage < 0 || g.NumBlocks < 1 || g.BlockBytes < 1 {
				return fmt.Errorf("%w: layer %d is empty", ErrTensor, i)
			}
			end := b.Offset + (g.NumBlocks-1)*g.BlockStride + g.BlockBytes
			if b.Offset < 0 || end > l.Storages[b.Storage].Bytes {
				return fmt.Errorf("%w: block %d of layer %d ends at byte %d of a storage of %d", ErrTensor, g.NumBlocks-1, i, end, l.Storages[b.Storage].Bytes)
			}
			g.Bases = append(g.Bases, b)
		}
	}
	g.RowStep = constantStep(g.Bases)
	g.LayerStep = g.RowStep
	if n := len(g.Layers); g.Planes == 2 && g.RowStep == 0 {
		if first := constantStep(g.Bases[:n]); first == constantStep(g.Bases[n:]) {
			g.LayerStep = first
		}
	}
	return nil
}

// constantStep is the distance between neighbours if it is positive and always
// the same, within one storage; else 0.
func constantStep(b []Base) int64 {
	if len(b) < 2 {
		return 0
	}
	step := b[1].Offset - b[0].Offset
	for i := 1; i < len(b); i++ {
		if b[i].Storage != b[0].Storage || b[i].Offset-b[i-1].Offset != step {
			return 0
		}
	}
	return max(step, 0)
}

// layerRange names a group's layers for people.
func (g *KernelGroup) layerRange() string {
	first, last := g.Layers[0], g.Layers[len(g.Layers)-1]
	if first == last {
		return fmt.Sprintf("layer %d", first)
	}
	return fmt.Sprintf("%d layers of %d to %d", len(g.Layers), first, last)
}

// checkChunk validates chunk, window and block sizes, and derives the numbers
// of blocks.
func (l *Layout) checkChunk() error {
	step, chunk := int64(1), int64(l.ChunkTokens)
	for i := range l.Kernel {
		g := &l.Kernel[i]
		if g.TokensPerBlock > maxChunk {
			return fmt.Errorf("%w: kernel group %d has %d tokens per block, at most %d are served", ErrChunkSize, i, g.TokensPerBlock, maxChunk)
		}
		if g.TokensPerBlock%g.SlotsPerBlock != 0 {
			return fmt.Errorf("%w: kernel group %d (%s) has %d tokens per block, which is not a multiple of the %d slots per block of its tensors (format %v: is kv_layout right?)",
				ErrChunkSize, i, g.layerRange(), g.TokensPerBlock, g.SlotsPerBlock, g.Format)
		}
		step = min(lcm(step, g.TokensPerBlock), maxChunk)
	}
	for i := range l.Kernel {
		g := &l.Kernel[i]
		if chunk%g.TokensPerBlock != 0 {
			return &ChunkSizeError{
				Group: i, Layers: g.layerRange(), ChunkTokens: l.ChunkTokens, BlockTokens: int(g.TokensPerBlock),
				Step: int(step), Valid: multiplesAround(int(step), l.ChunkTokens),
			}
		}
		kept := chunk
		if g.WindowTokens > 0 && g.WindowTokens < chunk {
			if kept = g.WindowTokens; kept%g.TokensPerBlock != 0 {
				return fmt.Errorf("%w: kernel group %d (%s) has a window of %d tokens, below the chunk size %d and not a multiple of its %d tokens per block",
					ErrChunkSize, i, g.layerRange(), kept, chunk, g.TokensPerBlock)
			}
		}
		g.BlocksPerChunk = int(chunk / g.TokensPerBlock)
		g.KeptBlocks = int(kept / g.TokensPerBlock)
		if i > 0 && l.Lists == 1 && g.BlocksPerChunk != l.Kernel[0].BlocksPerChunk {
			return fmt.Errorf("%w: the engine sent no groups, but its tensors have blocks of %d and %d tokens", ErrGroups, l.Kernel[0].TokensPerBlock, g.TokensPerBlock)
		}
	}
	return nil
}

// maxChunk bounds block sizes in tokens and what is proposed as a chunk size.
const maxChunk = 1 << 30

func lcm(a, b int64) int64 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// multiplesAround lists the multiples of step next to n: one at or below it if
// there is one, and the two above.
func multiplesAround(step, n int) []int {
	var m []int
	at := n / step * step
	for len(m) < 3 {
		if at > 0 {
			m = append(m, at)
		}
		at += step
	}
	return m
}

// bucket is what kernel groups must share to be stored together when object
// groups are separate (_ObjectBucket, lmcache 0.5.6, v1/kv_layer_groups.py).
type bucket struct {
	tag       int
	recurrent bool
	window    int
}

// objectGroups decides which kernel groups share objects: all of them, or
// those of one kind. The ones with a tag come last, so that the ids of the
// others do not depend on them.
func (l *Layout) objectGroups(separate bool) {
	if !separate {
		all := make([]int, len(l.Kernel))
		for i := range all {
			all[i] = i
		}
		l.Object = []ObjectGroup{{Kernel: all, Recurrent: l.allRecurrent(all)}}
		return
	}
	var buckets []bucket
	index := map[bucket]int{}
	for i := range l.Kernel {
		g := &l.Kernel[i]
		window := int((g.WindowTokens + int64(l.ChunkTokens) - 1) / int64(l.ChunkTokens))
		b := bucket{g.ExtraTag, g.Recurrent, window}
		at, ok := index[b]
		if !ok {
			at = len(buckets)
			index[b] = at
			buckets = append(buckets, b)
			l.Object = append(l.Object, ObjectGroup{WindowChunks: window, Aux: b.tag > 0})
		}
		l.Object[at].Kernel = append(l.Object[at].Kernel, i)
	}
	slices.SortStableFunc(l.Object, func(a, b ObjectGroup) int {
		return cmp.Compare(boolInt(a.Aux), boolInt(b.Aux))
	})
	for o := range l.Object {
		l.Object[o].Recurrent = l.allRecurrent(l.Object[o].Kernel)
		for _, k := range l.Object[o].Kernel {
			l.Kernel[k].ObjectGroup = o
		}
	}
}

func (l *Layout) allRecurrent(groups []int) bool {
	for _, k := range groups {
		if !l.Kernel[k].Recurrent {
			return false
		}
	}
	return true
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// regions lays out the objects and gives each object group its form.
func (l *Layout) regions() error {
	for o := range l.Object {
		form := &Form{}
		for _, k := range l.Object[o].Kernel {
			g := &l.Kernel[k]
			rows := int64(len(g.Bases))
			n, ok := mul(rows*int64(g.KeptBlocks), g.BlockBytes)
			if !ok || form.Bytes+n > maxBytes {
				return fmt.Errorf("%w: an object of group %d would be larger than %d bytes", ErrChunkSize, o, int64(maxBytes))
			}
			g.RegionOffset, g.RegionBytes = form.Bytes, n
			r := Region{
				Offset: form.Bytes, DType: g.DType, Planes: g.Planes, Layers: len(g.Layers),
				Slots: int64(g.KeptBlocks) * g.SlotsPerBlock, RowBytes: g.Heads * g.HeadSize * g.ElemBytes,
			}
			if g.HeadMajor {
				r.Heads, r.BlockSlots = g.Heads, g.SlotsPerBlock
			}
			form.Regions = append(form.Regions, r)
			form.Bytes += n
		}
		l.Object[o].Form = form
	}
	return nil
}
