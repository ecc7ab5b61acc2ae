package kvlayout

import (
	"fmt"
	"iter"
	"strconv"
)

// Description is kv_cache_layout in /status, cache_context_meta of an instance
// (lmcache 0.5.6, v1/platform/base/cache_context.py, report_status).
type Description struct {
	NumLayers int   `json:"num_layers"`
	NumBlocks int64 `json:"num_blocks"`
	// CacheSizePerToken in bytes of all groups; bench tools divide by it.
	CacheSizePerToken int64              `json:"cache_size_per_token"`
	KernelGroups      []GroupDescription `json:"kernel_groups"`
}

// GroupDescription is one entry of kernel_groups.
type GroupDescription struct {
	KernelGroup      int    `json:"kernel_group_idx"`
	EngineGroup      int    `json:"engine_group_idx"`
	ObjectGroup      int    `json:"object_group_idx"`
	NumLayers        int    `json:"num_layers"`
	LayerIndices     []int  `json:"layer_indices"`
	TokensPerBlock   int64  `json:"tokens_per_block"`
	SlotsPerBlock    int64  `json:"slots_per_block"`
	DType            string `json:"dtype"`
	ConcreteShape    string `json:"engine_kv_concrete_shape"`
	MLA              bool   `json:"is_mla"`
	Format           string `json:"engine_kv_format"`
	Shape            string `json:"engine_kv_shape"`
	AttentionBackend string `json:"attention_backend"`
}

// Describe renders the layout for /status.
func (l *Layout) Describe() Description {
	d := Description{NumLayers: l.NumLayers, NumBlocks: l.Kernel[0].NumBlocks}
	object := int64(0)
	for i := range l.Kernel {
		g := &l.Kernel[i]
		object += g.RegionBytes
		d.KernelGroups = append(d.KernelGroups, GroupDescription{
			KernelGroup: g.Index, EngineGroup: g.EngineGroup, ObjectGroup: g.ObjectGroup,
			NumLayers: len(g.Layers), LayerIndices: append([]int(nil), g.Layers...),
			TokensPerBlock: g.TokensPerBlock, SlotsPerBlock: g.SlotsPerBlock,
			DType: "torch." + g.DType, ConcreteShape: g.concreteShape(), MLA: g.Format.MLA(),
			Format: g.Format.String(), Shape: g.Format.Shape(), AttentionBackend: g.Format.AttentionBackend(),
		})
	}
	d.CacheSizePerToken = object / int64(l.ChunkTokens)
	return d
}

func (g *KernelGroup) concreteShape() string {
	num := func(n int64) string { return strconv.FormatInt(n, 10) }
	return g.Format.render(func(axis string) string {
		switch axis {
		case "NB":
			return num(g.NumBlocks)
		case "NL":
			return num(int64(len(g.Layers)))
		case "BS":
			return num(g.SlotsPerBlock)
		case "NH":
			return num(g.Heads)
		case "HS", "CS":
			return num(g.HeadSize)
		case "NBBS":
			return num(g.NumBlocks * g.SlotsPerBlock)
		case "BSV": // 128 fp8 values a token …
			return num(g.SlotsPerBlock) + "x128"
		case "BSS": // … and a scale of 4 bytes
			return num(g.SlotsPerBlock) + "x4"
		}
		return axis
	})
}

// Piece is a run of bytes in engine memory.
type Piece struct {
	Base
	Bytes int64
}

// GatherOrder yields the blocks of one layer in the order of the engine's own
// tensor, indexed by ids along its block axis: what /cache/checksums hashes.
// The dtype is that of the layer's group. It fails for a layer of no group and
// for ids that are not blocks.
func (l *Layout) GatherOrder(layer int, ids []int64) (dtype string, pieces iter.Seq[Piece], err error) {
	g, row := l.find(layer)
	if g == nil {
		return "", nil, fmt.Errorf("%w: layer %d is in no group", ErrGroups, layer)
	}
	for _, id := range ids {
		if id < 0 || id >= g.NumBlocks {
			return "", nil, fmt.Errorf("%w: block id %d, layer %d has %d blocks", ErrGroups, id, layer, g.NumBlocks)
		}
	}
	at := func(plane int, id int64) Piece {
		b := g.Bases[plane*len(g.Layers)+row]
		b.Offset += id * g.BlockStride
		return Piece{b, g.BlockBytes}
	}
	planeOutside := false
	switch g.Format {
	case FormatPlaneFirst, FormatPlaneFirstHND, FormatPlaneFirstOneHND, FormatList:
		planeOutside = true
	default:
	}
	return g.DType, func(yield func(Piece) bool) {
		n := g.Planes * len(ids)
		for i := range n {
			plane, block := i%g.Planes, i/g.Planes
			if planeOutside {
				plane, block = i/len(ids), i%len(ids)
			}
			if !yield(at(plane, ids[block])) {
				return
			}
		}
	}, nil
}

func (l *Layout) find(layer int) (*KernelGroup, int) {
	for i := range l.Kernel {
		for row, at := range l.Kernel[i].Layers {
			if at == layer {
				return &l.Kernel[i], row
			}
		}
	}
	return nil, 0
}
