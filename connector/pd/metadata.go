package pd

import (
	"fmt"
	"slices"
)

// AgentMetadata is what one rank says of its memory (vLLM's NixlAgentMetadata,
// field for field). Lengths are bytes.
type AgentMetadata struct {
	EngineID         string
	AgentMetadata    []byte   // of NIXL
	BaseAddrs        []uint64 // of regions
	DeviceID         int
	NumBlocks        int
	BlockLens        []int
	BlockStrides     []int
	Layout           string
	BlockTokens      int
	SSMSizes         [2]int
	AttnBackend      string
	BlocksPerLogical int
	RegionBlocks     []int    // nil: NumBlocks for each
	RegionGroups     []int    // nil: all group 0
	RegionNames      []string // nil: not told
	RegionMemTypes   []string // "DRAM" or "VRAM"; nil: not told
	DCPSize, PCPSize int
	PLEBlockLen      *int
	RegionMembers    [][]string
	PackedMembers    []PackedMember
}

// PackedMember is a layer that shares the blocks of a region with others.
type PackedMember struct {
	Name        string
	Offset, Len int
}

// Handshake is the answer of a side channel for one rank.
type Handshake struct {
	// Compatibility is the hash of [Model.Hash].
	Compatibility string
	// Metadata is an encoded AgentMetadata; it is looked at only when the
	// hashes agree.
	Metadata []byte
	// Direct is what a peer of this package says besides, for readers on its
	// host; vLLM ignores the key.
	Direct []byte
	// Err is what a peer of this package says when it has no such rank.
	Err string
}

const (
	keyHash   = "compatibility_hash"
	keyMeta   = "agent_metadata_bytes"
	keyDirect = "lmcache_go_direct"
	keyErr    = "lmcache_go_error"
)

// Append encodes a handshake as msgspec does.
func (h *Handshake) Append(b []byte) []byte {
	if h.Err != "" {
		return appendString(appendString(appendMap(b, 1), keyErr), h.Err)
	}
	n := 2
	if h.Direct != nil {
		n++
	}
	b = appendString(appendString(appendMap(b, n), keyHash), h.Compatibility)
	b = appendBin(appendString(b, keyMeta), h.Metadata)
	if h.Direct != nil {
		b = appendBin(appendString(b, keyDirect), h.Direct)
	}
	return b
}

// ParseHandshake decodes a handshake. Errors wrap [ErrMessage]. Byte slices are
// views into data.
func ParseHandshake(data []byte) (*Handshake, error) {
	h := &Handshake{}
	r := &reader{b: data}
	var seen [2]bool
	r.fields(func(key string) bool {
		switch key {
		case keyHash:
			h.Compatibility, seen[0] = r.string(), true
		case keyMeta:
			h.Metadata, seen[1] = r.bin(), true
		case keyDirect:
			h.Direct = r.bin()
		case keyErr:
			h.Err = r.string()
		default:
			return false
		}
		return true
	})
	if err := r.end(); err != nil {
		return nil, err
	}
	if h.Err == "" && seen != [2]bool{true, true} {
		return nil, fmt.Errorf("%w: a handshake without %s or %s", ErrMessage, keyHash, keyMeta)
	}
	return h, nil
}

// Append encodes metadata as msgspec does, all fields in vLLM's order.
func (m *AgentMetadata) Append(b []byte) []byte {
	num := func(b []byte, v int) []byte { return appendInt(b, int64(v)) }
	ints := func(b []byte, v []int) []byte { return appendList(b, v, num) }
	strs := func(b []byte, v []string) []byte { return appendList(b, v, appendString) }
	b = appendMap(b, 21)
	b = appendString(appendString(b, "engine_id"), m.EngineID)
	b = appendBin(appendString(b, "agent_metadata"), m.AgentMetadata)
	b = appendList(appendString(b, "kv_caches_base_addr"), m.BaseAddrs, appendUint)
	b = num(appendString(b, "device_id"), m.DeviceID)
	b = num(appendString(b, "num_blocks"), m.NumBlocks)
	b = ints(appendString(b, "block_lens"), m.BlockLens)
	b = ints(appendString(b, "block_strides"), m.BlockStrides)
	b = appendString(appendString(b, "kv_cache_layout"), m.Layout)
	b = num(appendString(b, "block_size"), m.BlockTokens)
	b = ints(appendString(b, "ssm_sizes"), m.SSMSizes[:])
	b = appendString(appendString(b, "attn_backend_name"), m.AttnBackend)
	b = num(appendString(b, "physical_blocks_per_logical_kv_block"), m.BlocksPerLogical)
	b = orNil(appendString(b, "region_num_blocks"), m.RegionBlocks, ints)
	b = orNil(appendString(b, "region_group_ids"), m.RegionGroups, ints)
	b = orNil(appendString(b, "region_names"), m.RegionNames, strs)
	b = orNil(appendString(b, "region_mem_types"), m.RegionMemTypes, strs)
	b = num(appendString(b, "dcp_size"), m.DCPSize)
	b = num(appendString(b, "pcp_size"), m.PCPSize)
	b = appendString(b, "ple_block_len")
	if m.PLEBlockLen == nil {
		b = append(b, 0xc0)
	} else {
		b = num(b, *m.PLEBlockLen)
	}
	b = appendList(appendString(b, "region_members"), m.RegionMembers, strs)
	b = appendMap(appendString(b, "packed_member_layouts"), len(m.PackedMembers))
	for _, p := range m.PackedMembers {
		b = num(num(appendArray(appendString(b, p.Name), 2), p.Offset), p.Len)
	}
	return b
}

func orNil[T any](b []byte, list []T, encode func([]byte, []T) []byte) []byte {
	if list == nil {
		return append(b, 0xc0)
	}
	return encode(b, list)
}

// required are the fields without a default.
var required = []string{
	"engine_id", "agent_metadata", "kv_caches_base_addr", "device_id", "num_blocks", "block_lens", "block_strides",
	"kv_cache_layout", "block_size", "ssm_sizes", "attn_backend_name", "physical_blocks_per_logical_kv_block",
}

// ParseAgentMetadata decodes metadata as msgspec does: any order, unknown keys
// ignored, defaults for what may be absent. Errors wrap [ErrMessage]. The result
// is consistent: every list that is there has an entry for each region.
func ParseAgentMetadata(data []byte) (*AgentMetadata, error) {
	m := &AgentMetadata{DCPSize: 1, PCPSize: 1}
	r := &reader{b: data}
	seen := map[string]bool{}
	r.fields(func(key string) bool {
		seen[key] = true
		return m.field(r, key)
	})
	if err := r.end(); err != nil {
		return nil, err
	}
	for _, key := range required {
		if !seen[key] {
			return nil, fmt.Errorf("%w: no %s", ErrMessage, key)
		}
	}
	return m, m.consistent()
}

func (m *AgentMetadata) field(r *reader, key string) bool {
	ints := func() []int { return readList(r, r.size) }
	strs := func() []string { return readList(r, r.string) }
	switch key {
	case "engine_id":
		m.EngineID = r.string()
	case "agent_metadata":
		m.AgentMetadata = r.bin()
	case "kv_caches_base_addr":
		m.BaseAddrs = readList(r, r.address)
	case "device_id":
		m.DeviceID = r.size()
	case "num_blocks":
		m.NumBlocks = r.size()
	case "block_lens":
		m.BlockLens = ints()
	case "block_strides":
		m.BlockStrides = ints()
	case "kv_cache_layout":
		m.Layout = r.string()
	case "block_size":
		m.BlockTokens = r.size()
	case "ssm_sizes":
		v := ints()
		if len(v) != 2 {
			r.fail("ssm_sizes of %d", len(v))
			return true
		}
		m.SSMSizes = [2]int(v)
	case "attn_backend_name":
		m.AttnBackend = r.string()
	case "physical_blocks_per_logical_kv_block":
		m.BlocksPerLogical = r.size()
	case "region_num_blocks":
		m.RegionBlocks = unlessNil(r, ints)
	case "region_group_ids":
		m.RegionGroups = unlessNil(r, ints)
	case "region_names":
		m.RegionNames = unlessNil(r, strs)
	case "region_mem_types":
		m.RegionMemTypes = unlessNil(r, strs)
	case "dcp_size":
		m.DCPSize = r.size()
	case "pcp_size":
		m.PCPSize = r.size()
	case "ple_block_len":
		if !r.nil() {
			v := r.size()
			m.PLEBlockLen = &v
		}
	case "region_members":
		m.RegionMembers = readList(r, strs)
	case "packed_member_layouts":
		r.fields(func(name string) bool {
			v := ints()
			if len(v) != 2 {
				r.fail("a layout of %d numbers", len(v))
				return true
			}
			m.PackedMembers = append(m.PackedMembers, PackedMember{name, v[0], v[1]})
			return true
		})
	default:
		return false
	}
	return true
}

func unlessNil[T any](r *reader, read func() []T) []T {
	if r.nil() {
		return nil
	}
	return read()
}

// consistent checks what every reader of the metadata relies on.
func (m *AgentMetadata) consistent() error {
	n := len(m.BaseAddrs)
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrMessage, fmt.Sprintf(format, args...))
	}
	for key, have := range map[string]int{
		"block_lens": len(m.BlockLens), "block_strides": len(m.BlockStrides), "region_num_blocks": lenOr(m.RegionBlocks, n),
		"region_group_ids": lenOr(m.RegionGroups, n), "region_names": lenOr(m.RegionNames, n), "region_mem_types": lenOr(m.RegionMemTypes, n),
	} {
		if have != n {
			return bad("%d %s for %d regions", have, key, n)
		}
	}
	if n == 0 || m.BlocksPerLogical < 1 || m.BlockTokens < 1 || m.NumBlocks < 1 {
		return bad("%d regions, %d blocks of %d tokens, %d to one", n, m.NumBlocks, m.BlockTokens, m.BlocksPerLogical)
	}
	for i, l := range m.BlockLens {
		if l < 1 || m.BlockStrides[i] < l {
			return bad("region %d: blocks of %d bytes with stride %d", i, l, m.BlockStrides[i])
		}
		if m.BaseAddrs[i]+uint64(m.blocks(i))*uint64(m.BlockStrides[i]) < m.BaseAddrs[i] {
			return bad("region %d ends beyond the address space", i)
		}
	}
	if slices.ContainsFunc(m.RegionBlocks, func(n int) bool { return n < 1 }) {
		return bad("a region without blocks")
	}
	return nil
}

func lenOr[T any](list []T, absent int) int {
	if list == nil {
		return absent
	}
	return len(list)
}

// blocks is how many blocks a region has.
func (m *AgentMetadata) blocks(region int) int {
	if m.RegionBlocks == nil {
		return m.NumBlocks
	}
	return m.RegionBlocks[region]
}

// getMeta is the tag of a request.
const getMeta = "get_meta_msg"

// appendRequest encodes a request for one rank: [b"get_meta_msg", pp, tp].
func appendRequest(b []byte, pp, tp int) []byte {
	b = appendBin(appendArray(b, 3), []byte(getMeta))
	return appendInt(appendInt(b, int64(pp)), int64(tp))
}

// parseRequest decodes a request. vLLM answers whatever the tag is, so a tag
// that is not known is no error.
func parseRequest(data []byte) (pp, tp int, known bool, err error) {
	r := &reader{b: data}
	if n := r.arrayLen(); r.err == nil && n != 3 {
		r.fail("a request of %d elements", n)
	}
	if len(r.b) > 0 && r.b[0]&0xe0 == 0xa0 {
		known = r.string() == getMeta
	} else {
		known = string(r.bin()) == getMeta
	}
	pp, tp = r.size(), r.size()
	return pp, tp, known, r.end()
}
