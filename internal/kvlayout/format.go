package kvlayout

import (
	"strconv"
	"strings"
)

// Format is the order of the axes of an engine's KV tensors. The values are
// those of EngineKVFormat in lmcache 0.5.6 (csrc/engine_kv_format.h); they are
// stable and appear in /status by name.
type Format uint8

// The formats by what they mean. "Plane" is K or V; "packed" keeps both in one
// row. HND formats have heads before tokens inside a block.
const (
	FormatCrossLayer       Format = iota // 0: one tensor, per block every layer's K and V
	FormatPlaneFirst                     // 1: per layer all K blocks, then all V blocks
	FormatBlockPlanes                    // 2: per layer and block K, then V
	FormatLatent                         // 3: per layer one row a token (MLA)
	FormatListFlat                       // 4: a list of K and one of V, blocks not told apart
	FormatLatentFlat                     // 5: one row a token, blocks not told apart
	FormatPlaneFirstHND                  // 6: as 1
	FormatBlockPlanesHND                 // 7: as 2
	FormatCrossLayerHND                  // 8: as 0
	FormatList                           // 9: a list of K tensors and one of V tensors
	FormatPackedOldHND                   // 10: deprecated by 12
	FormatPackedOld                      // 11: deprecated by 13
	FormatPackedHND                      // 12: per layer K and V packed per head
	FormatPacked                         // 13: as 12, tokens before heads
	FormatIndexer                        // 14: per layer the fp8 rows of a sparse indexer
	FormatPlaneFirstOneHND               // 15: as 6 with an axis of one
	FormatPairs                          // 16: per layer a pair of tensors
	FormatLatentPlanes                   // 17: per layer a tuple of latent planes
	FormatComponents                     // 18: every tensor is one K or V of a layer
	numFormats
)

// facts is what the rest of the package asks about a format.
type facts struct {
	name    string // EngineKVFormat member, lmcache 0.5.6
	backend string // attention_backends[0] of the format's spec, lmcache 0.5.6, v1/gpu_connector/kv_format/specs
	planes  int    // kv_size of the shape descriptor
	mla     bool
	hnd     bool
	served  bool // can be told from a registration and copied
}

var formatFacts = [numFormats]facts{
	FormatCrossLayer:       {"NB_NL_TWO_BS_NH_HS", "vLLM CROSS_LAYER", 2, false, false, true},
	FormatPlaneFirst:       {"NL_X_TWO_NB_BS_NH_HS", "vLLM non-MLA flash attention", 2, false, false, true},
	FormatBlockPlanes:      {"NL_X_NB_TWO_BS_NH_HS", "vLLM non-MLA flash infer", 2, false, false, true},
	FormatLatent:           {"NL_X_NB_BS_HS", "vLLM MLA / SGLang MLA (MP)", 1, true, false, true},
	FormatListFlat:         {"TWO_X_NL_X_NBBS_NH_HS", "SGLang MHA (flash attention and flash infer)", 2, false, false, false},
	FormatLatentFlat:       {"NL_X_NBBS_ONE_HS", "SGLang MLA", 1, true, false, false},
	FormatPlaneFirstHND:    {"NL_X_TWO_NB_NH_BS_HS", "vLLM non-MLA flash attention (HND layout)", 2, false, true, true},
	FormatBlockPlanesHND:   {"NL_X_NB_TWO_NH_BS_HS", "vLLM non-MLA flash infer (HND layout)", 2, false, true, true},
	FormatCrossLayerHND:    {"NB_NL_TWO_NH_BS_HS", "TRT-LLM cross-layer (HND layout)", 2, false, true, true},
	FormatList:             {"TWO_X_NL_X_NB_BS_NH_HS", "SGLang MHA via MP daemon (4-D inner)", 2, false, false, true},
	FormatPackedOldHND:     {"NL_X_NB_NH_BS_TWO_HS", "vLLM non-MLA blocks-first, fused K/V", 1, false, true, false},
	FormatPackedOld:        {"NL_X_NB_BS_NH_TWO_HS", "vLLM non-MLA blocks-first, fused K/V (NHD)", 1, false, false, false},
	FormatPackedHND:        {"NL_X_NB_NH_BS_CS", "vLLM non-MLA blocks-first, fused K/V (HND)", 1, false, true, true},
	FormatPacked:           {"NL_X_NB_BS_NH_CS", "vLLM non-MLA blocks-first, fused K/V (NHD)", 1, false, false, true},
	FormatIndexer:          {"NL_X_NB_BSV_BSS", "vLLM MLA", 1, true, false, true},
	FormatPlaneFirstOneHND: {"NL_X_TWO_NB_NH_ONE_BS_HS", "vLLM-RBLN attention (HND layout)", 2, false, true, true},
	FormatPairs:            {"NL_X_TWO_X_NB_BS_NH_HS", "vLLM-Ascend: per-layer (K, V) tuples", 2, false, false, false},
	FormatLatentPlanes:     {"NL_X_NP_X_NB_BS_ONE_HS", "vLLM-Ascend: per-layer latent planes", 1, true, false, false},
	FormatComponents:       {"NL_X_NB_BS_NH_HS", "SGLang unified MP independent components", 1, false, false, true},
}

// String returns the EngineKVFormat name.
func (f Format) String() string {
	if f >= numFormats {
		return "Format(" + strconv.Itoa(int(f)) + ")"
	}
	return formatFacts[f].name
}

// Planes is 2 where K and V are apart and 1 where there is one tensor row.
func (f Format) Planes() int { return formatFacts[f].planes }

// MLA says whether a token has one row without heads.
func (f Format) MLA() bool { return formatFacts[f].mla }

// HeadsFirst says whether heads come before tokens inside a block.
func (f Format) HeadsFirst() bool { return formatFacts[f].hnd }

// AttentionBackend is the representative text shown in /status.
func (f Format) AttentionBackend() string { return formatFacts[f].backend }

// Served says whether the format can be told from a registration and copied.
// The others appear only inside an engine's process.
func (f Format) Served() bool { return f < numFormats && formatFacts[f].served }

// Shape is the symbolic shape in /status: "NL x [2, NB, BS, NH, HS]".
func (f Format) Shape() string {
	return f.render(func(axis string) string {
		switch axis {
		case "NBBS":
			return "PBS"
		case "BSV":
			return "BSxVALS"
		case "BSS":
			return "BSxSCALES"
		}
		return axis
	})
}

// render spells the name out as a shape: X separates list levels, the rest are
// axes of the tensor.
func (f Format) render(axis func(string) string) string {
	label := func(a string) string {
		switch a {
		case "ONE":
			return "1"
		case "TWO":
			return "2"
		}
		return axis(a)
	}
	levels := strings.Split(f.String(), "_X_")
	last := len(levels) - 1
	var b strings.Builder
	for _, l := range levels[:last] {
		b.WriteString(label(l))
		b.WriteString(" x ")
	}
	b.WriteByte('[')
	for i, a := range strings.Split(levels[last], "_") {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(label(a))
	}
	b.WriteByte(']')
	return b.String()
}
