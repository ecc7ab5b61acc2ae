package wire

import (
	"fmt"
	"slices"
)

// EngineType names the engine that registers a KV cache.
type EngineType string

// The engines that lmcache 0.5.6 knows.
const (
	EngineVLLM   EngineType = "vllm"
	EngineAtom   EngineType = "atom"
	EngineSGLang EngineType = "sglang"
	EngineTRTLLM EngineType = "trtllm"
	EngineMock   EngineType = "mock"
)

var engineTypes = []string{"vllm", "atom", "sglang", "trtllm", "mock"}

// DecodeEngineType reads the engine_type of register_kv_cache.
func DecodeEngineType(frame []byte) (EngineType, error) {
	r := reader{b: frame}
	v := r.oneOf(engineTypes)
	return EngineType(v), r.done()
}

// oneOf consumes a string that must be one of allowed.
func (r *reader) oneOf(allowed []string) string {
	s := r.str()
	if r.err != nil {
		return ""
	}
	i := indexOf(allowed, s)
	if i < 0 {
		r.fail(fmt.Errorf("%w: %s, want one of %q", ErrValue, clip(s), allowed))
		return ""
	}
	return allowed[i]
}

// LayoutHints is what an engine says about the layout of its tensors. A zero
// field was not sent.
type LayoutHints struct {
	// KVLayout is NHD, HND, BLHNC or BLNHC.
	KVLayout   string
	NumKVHeads int
	// TokensPerBlock is the tokens of a paged block.
	TokensPerBlock int
	// KVListLayout is k_v or unified.
	KVListLayout string
	HeadDim      int
}

var (
	layoutNames   = []string{"kv_layout", "num_kv_heads", "tokens_per_block", "kv_list_layout", "head_dim"}
	kvLayouts     = []string{"NHD", "HND", "BLHNC", "BLNHC"}
	kvListLayouts = []string{"k_v", "unified"}
)

// DecodeLayoutHints reads the layout_hints of register_kv_cache into h.
func DecodeLayoutHints(frame []byte, h *LayoutHints) error {
	r := reader{b: frame}
	*h = LayoutHints{}
	r.object("layout_hints", layoutNames, 0, func(i int) {
		switch i {
		case 0:
			h.KVLayout = r.oneOf(kvLayouts)
		case 1:
			h.NumKVHeads = int(r.int())
		case 2:
			h.TokensPerBlock = int(r.int())
		case 3:
			h.KVListLayout = r.oneOf(kvListLayouts)
		case 4:
			h.HeadDim = int(r.int())
		}
	})
	return r.done()
}

// AppendLayoutHints appends the hints that are set.
func AppendLayoutHints(dst []byte, h *LayoutHints) []byte {
	n := 0
	for _, set := range []bool{h.KVLayout != "", h.NumKVHeads != 0, h.TokensPerBlock != 0, h.KVListLayout != "", h.HeadDim != 0} {
		if set {
			n++
		}
	}
	dst = appendMapHead(dst, n)
	if h.KVLayout != "" {
		dst = AppendString(AppendString(dst, "kv_layout"), h.KVLayout)
	}
	if h.NumKVHeads != 0 {
		dst = AppendInt(AppendString(dst, "num_kv_heads"), int64(h.NumKVHeads))
	}
	if h.TokensPerBlock != 0 {
		dst = AppendInt(AppendString(dst, "tokens_per_block"), int64(h.TokensPerBlock))
	}
	if h.KVListLayout != "" {
		dst = AppendString(AppendString(dst, "kv_list_layout"), h.KVListLayout)
	}
	if h.HeadDim != 0 {
		dst = AppendInt(AppendString(dst, "head_dim"), int64(h.HeadDim))
	}
	return dst
}

// EngineGroupInfo describes the layers that share one list of block ids. Its
// place in the list is the place of that list in store and retrieve.
type EngineGroupInfo struct {
	// EngineGroupID is the engine's address space of block ids.
	EngineGroupID int
	// LayerIndices index the tensors of the registration.
	LayerIndices []int
	// TokensPerBlock is the logical tokens of a block id, 0 when not reported.
	TokensPerBlock int
	// WindowTokens is the sliding window, -1 for none.
	WindowTokens int
	// ExtraGroupTag is above 0 for an auxiliary pool.
	ExtraGroupTag int
	// RecurrentState marks pages that hold state snapshots and not attention KV.
	RecurrentState bool
}

var groupNames = []string{
	"engine_group_id", "layer_indices", "tokens_per_block",
	"sw_size_tokens", "extra_object_group_tag", "recurrent_state",
}

// DecodeEngineGroupInfos reads the engine_group_infos of register_kv_cache. An
// empty list stands for one group of all layers.
func DecodeEngineGroupInfos(frame []byte) ([]EngineGroupInfo, error) {
	r := reader{b: frame}
	var groups []EngineGroupInfo
	r.list("engine_group_infos", func(int) {
		g := EngineGroupInfo{WindowTokens: -1}
		r.object("group", groupNames, 1, func(i int) {
			switch i {
			case 0:
				g.EngineGroupID = int(r.int())
			case 1:
				g.LayerIndices = nil
				r.list("layer_indices", func(int) { g.LayerIndices = append(g.LayerIndices, int(r.int())) })
			case 2:
				g.TokensPerBlock = int(r.int())
			case 3:
				g.WindowTokens = int(r.int())
			case 4:
				g.ExtraGroupTag = int(r.int())
			case 5:
				g.RecurrentState = r.bool()
			}
		})
		groups = append(groups, g)
	})
	if err := r.done(); err != nil {
		return nil, err
	}
	return slices.Clip(groups), nil
}

// AppendEngineGroupInfos appends the engine_group_infos of register_kv_cache.
func AppendEngineGroupInfos(dst []byte, groups []EngineGroupInfo) []byte {
	dst = appendArrayHead(dst, len(groups))
	for i := range groups {
		g := &groups[i]
		dst = appendMapHead(dst, len(groupNames))
		dst = AppendInt(AppendString(dst, "engine_group_id"), int64(g.EngineGroupID))
		dst = AppendInts(AppendString(dst, "layer_indices"), g.LayerIndices)
		dst = AppendInt(AppendString(dst, "tokens_per_block"), int64(g.TokensPerBlock))
		dst = AppendInt(AppendString(dst, "sw_size_tokens"), int64(g.WindowTokens))
		dst = AppendInt(AppendString(dst, "extra_object_group_tag"), int64(g.ExtraGroupTag))
		dst = AppendBool(AppendString(dst, "recurrent_state"), g.RecurrentState)
	}
	return dst
}
