package pd

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Names of layouts (vLLM's KVCacheLayout): layers, blocks, heads, tokens,
// content.
const (
	LayoutHeadsFirst  = "LBHNC"
	LayoutTokensFirst = "LBNHC"
)

// The versions that this package speaks (vLLM 0.33.0, nixl/metadata.py).
const (
	VLLMVersion      = "0.33.0"
	ConnectorVersion = 15
)

// Model is what vLLM compares of two engines before KV moves between them. All
// of it is hashed: one difference and they refuse each other.
type Model struct {
	// Name as given to vLLM, "meta-llama/Llama-3.1-8B-Instruct".
	Name string
	// DType is torch's name of the model's numbers, "torch.bfloat16".
	DType string
	// KVHeads of the whole model, over all ranks; HeadSize; Layers of the whole
	// model.
	KVHeads, HeadSize, Layers int
	// AttnBackend as vLLM calls it: "FLASH_ATTN", "CPU_ATTN".
	AttnBackend string
	// CacheDType is --kv-cache-dtype. Default "auto".
	CacheDType string
	// NoHybrid: --disable-hybrid-kv-cache-manager was given.
	NoHybrid bool
	// MLA: the cache has no heads and is the same on all ranks. Not hashed.
	MLA bool
	// Version of vLLM to pass for. Default [VLLMVersion].
	Version string
}

// Hash is vLLM's compatibility hash of pull mode without speculation: SHA-256,
// in hexadecimal, of Python's json.dumps of the factors, keys sorted.
func (m *Model) Hash() string {
	version, cache := m.Version, m.CacheDType
	if version == "" {
		version = VLLMVersion
	}
	if cache == "" {
		cache = "auto"
	}
	var b strings.Builder
	b.WriteString(`{"attn_backend_name": ` + pyString(m.AttnBackend))
	b.WriteString(`, "cache_dtype": ` + pyString(cache))
	b.WriteString(`, "dtype": ` + pyString(m.DType))
	b.WriteString(`, "head_size": ` + strconv.Itoa(m.HeadSize))
	b.WriteString(`, "is_hma_enabled": ` + strconv.FormatBool(!m.NoHybrid))
	b.WriteString(`, "model": ` + pyString(m.Name))
	b.WriteString(`, "nixl_connector_version": ` + strconv.Itoa(ConnectorVersion))
	b.WriteString(`, "num_hidden_layers": ` + strconv.Itoa(m.Layers))
	b.WriteString(`, "num_kv_heads": ` + strconv.Itoa(m.KVHeads))
	b.WriteString(`, "speculative_config": null, "transfer_mode": "` + modePull + `", "vllm_version": ` + pyString(version) + `}`)
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:])
}

// String lists the factors, for errors.
func (m *Model) String() string {
	return fmt.Sprintf("model %s, %s, cache %s, %d KV heads of %d, %d layers, %s", m.Name, m.DType, m.CacheDType, m.KVHeads, m.HeadSize, m.Layers, m.AttnBackend)
}

// pyString is a string as Python's json.dumps writes it: ASCII, with surrogate
// pairs.
func pyString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\f':
			b.WriteString(`\f`)
		case r >= 0x20 && r < 0x7f:
			b.WriteRune(r)
		case r == 0x7f:
			b.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
