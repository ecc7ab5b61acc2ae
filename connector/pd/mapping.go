package pd

import (
	"errors"
	"fmt"
	"slices"
)

// geometry is what the mapping needs of this rank.
type geometry struct {
	tpRank, tpSize int
	heads          int // KV heads of the whole model; 0 with MLA
	mla            bool
	layout         string
	blockTokens    int
	perLogical     int
	regions        []Region
}

func (o *Options) geometry() geometry {
	g := geometry{
		tpRank: o.TPRank, tpSize: o.TPSize, heads: o.Model.KVHeads, mla: o.Model.MLA, layout: o.Layout,
		blockTokens: o.BlockTokens, perLogical: o.BlocksPerLogical, regions: o.Regions,
	}
	if g.mla {
		g.heads = 0
	}
	return g
}

// source is one rank of the producer that this rank reads from, and the slice of
// each block: bytes [from/of) of the producer's block go to [to/into) of ours,
// in shares of a block, because regions differ in size.
type source struct {
	rank int
	// remote slice number of remoteParts, local slice number of localParts.
	remote, remoteParts int
	local, localParts   int
}

// sources lists which ranks of a producer of another size this rank reads, as
// vLLM 0.33 does (nixl/tp_mapping.py), and how many readers each of them has.
func (g *geometry) sources(remoteTP int) (list []source, readers int, err error) {
	readers = max(1, g.tpSize/remoteTP)
	switch {
	case g.tpSize%remoteTP != 0 && remoteTP%g.tpSize != 0:
		return nil, 0, fmt.Errorf("%w: tensor parallel sizes must divide one another: %d here, %d there", ErrIncompatible, g.tpSize, remoteTP)
	case g.mla:
		// The cache is the same everywhere: one rank, spread over them.
		return []source{{rank: g.tpRank * remoteTP / g.tpSize, remoteParts: 1, localParts: 1}}, readers, nil
	case g.tpSize == remoteTP:
		return []source{{rank: g.tpRank, remoteParts: 1, localParts: 1}}, 1, nil
	case g.layout != LayoutHeadsFirst:
		return nil, 0, fmt.Errorf("%w: tensor parallel size %d here and %d there needs the layout %s on both sides, this one has %s", ErrIncompatible, g.tpSize, remoteTP, LayoutHeadsFirst, g.layout)
	case g.heads < 1:
		return nil, 0, fmt.Errorf("%w: tensor parallel size %d here and %d there needs Model.KVHeads", ErrIncompatible, g.tpSize, remoteTP)
	case g.tpSize > remoteTP:
		// One of theirs has the heads of several of ours.
		far, mine := headsOf(g.heads, remoteTP), headsOf(g.heads, g.tpSize)
		rank := g.tpRank * remoteTP / g.tpSize
		offset := firstHead(g.heads, g.tpRank, g.tpSize) - firstHead(g.heads, rank, remoteTP)
		return []source{{rank: rank, remote: offset / mine, remoteParts: far / mine, localParts: 1}}, readers, nil
	case remoteTP > g.heads:
		return nil, 0, fmt.Errorf("%w: %d producer ranks with %d KV heads hold copies of heads: reading them from %d ranks is not supported", ErrIncompatible, remoteTP, g.heads, g.tpSize)
	default:
		n := remoteTP / g.tpSize
		for i := range n {
			list = append(list, source{rank: g.tpRank*n + i, remoteParts: 1, local: i, localParts: n})
		}
		return list, 1, nil
	}
}

// headsOf is how many KV heads a rank has; with more ranks than heads each has
// one, and several the same.
func headsOf(heads, ranks int) int { return max(1, heads/ranks) }

func firstHead(heads, rank, ranks int) int { return rank * heads / ranks }

// handshakeRanks are the ranks of a producer to shake hands with: those that are
// read, and with MLA all whose blocks this rank's notification frees.
func (g *geometry) handshakeRanks(remoteTP int) []int {
	list, _, err := g.sources(remoteTP)
	if err != nil {
		return nil
	}
	if g.mla && remoteTP > g.tpSize {
		n := remoteTP / g.tpSize
		ranks := make([]int, n)
		for i := range ranks {
			ranks[i] = g.tpRank*n + i
		}
		return ranks
	}
	var ranks []int
	for _, s := range list {
		ranks = append(ranks, s.rank)
	}
	return ranks
}

// validate compares a producer's rank with this one. All differences are in one
// error that wraps ErrIncompatible, with the values of both sides.
func (g *geometry) validate(m *AgentMetadata, remoteTP int) error {
	list, _, err := g.sources(remoteTP)
	if err != nil {
		return err
	}
	var errs []error
	bad := func(what string, here, there any) {
		errs = append(errs, fmt.Errorf("%w: %s: %v here, %v there", ErrIncompatible, what, here, there))
	}
	if m.DCPSize > 1 || m.PCPSize > 1 {
		bad("context parallel sizes (dcp, pcp)", "1, 1", fmt.Sprintf("%d, %d", m.DCPSize, m.PCPSize))
	}
	if m.SSMSizes != [2]int{} {
		bad("SSM state", "none", m.SSMSizes)
	}
	if !g.mla && m.Layout != g.layout {
		bad("kv_cache_layout", g.layout, m.Layout)
	}
	if m.BlockTokens != g.blockTokens {
		bad("block size in tokens", g.blockTokens, m.BlockTokens)
	}
	if len(m.BaseAddrs) != len(g.regions) {
		bad("number of regions", len(g.regions), len(m.BaseAddrs))
		return errors.Join(errs...)
	}
	for i := range g.regions {
		r := &g.regions[i]
		if m.RegionNames != nil && m.RegionNames[i] != r.Name {
			bad(fmt.Sprintf("name of region %d", i), r.Name, m.RegionNames[i])
		}
		if m.RegionGroups != nil && m.RegionGroups[i] != r.Group {
			bad(fmt.Sprintf("KV cache group of region %d", i), r.Group, m.RegionGroups[i])
		}
		s := list[0]
		if r.BlockBytes%s.localParts != 0 || m.BlockLens[i]%s.remoteParts != 0 || r.BlockBytes/s.localParts != m.BlockLens[i]/s.remoteParts {
			bad(fmt.Sprintf("bytes of a block of region %d, with tensor parallel size %d here and %d there,", i, g.tpSize, remoteTP), r.BlockBytes, m.BlockLens[i])
		}
	}
	if m.RegionMemTypes != nil && slices.ContainsFunc(m.RegionMemTypes, func(t string) bool { return t != m.RegionMemTypes[0] }) {
		bad("memory types", "one", m.RegionMemTypes)
	}
	return errors.Join(errs...)
}

// expand turns ids of the scheduler's blocks into ids of the regions' blocks.
func expand(ids []int64, per int) []int64 {
	if per == 1 {
		return ids
	}
	out := make([]int64, 0, len(ids)*per)
	for _, id := range ids {
		for i := range per {
			out = append(out, id*int64(per)+int64(i))
		}
	}
	return out
}

// pair makes the lists of both sides equally long: the local blocks are the last
// ones of the request, what comes before is in the prefix cache.
func (g *geometry) pair(local, remote [][]int64, remotePerLogical int) (l, r [][]int64, err error) {
	if len(local) != len(remote) {
		return nil, nil, fmt.Errorf("%w: KV cache groups: %d here, %d in remote_block_ids", ErrParams, len(local), len(remote))
	}
	for i := range local {
		a, b := expand(local[i], g.perLogical), expand(remote[i], remotePerLogical)
		if len(a) > len(b) {
			return nil, nil, fmt.Errorf("%w: group %d: %d blocks here, only %d in remote_block_ids", ErrParams, i, len(a), len(b))
		}
		l, r = append(l, a), append(r, b[len(b)-len(a):])
	}
	return l, r, nil
}

// span is one piece to copy, by address.
type span struct{ local, remote, bytes uintptr }

// spans lists what to read from one rank: for each region, for each block of its
// group.
func (g *geometry) spans(s source, m *AgentMetadata, local, remote [][]int64) ([]span, error) {
	n := 0
	for i := range g.regions {
		if group := g.regions[i].Group; group < len(local) {
			n += len(local[group])
		}
	}
	out := make([]span, 0, n)
	for i := range g.regions {
		r := &g.regions[i]
		if r.Group >= len(local) {
			return nil, fmt.Errorf("%w: region %s is of group %d, there are lists for %d", ErrParams, r.Name, r.Group, len(local))
		}
		size := r.BlockBytes / s.localParts
		a := r.Addr + uintptr(s.local*size)
		b := uintptr(m.BaseAddrs[i]) + uintptr(s.remote*size)
		farBlocks, farStride := m.blocks(i), uintptr(m.BlockStrides[i])
		for j, id := range local[r.Group] {
			far := remote[r.Group][j]
			if id < 0 || id >= int64(r.Blocks) {
				return nil, fmt.Errorf("%w: block %d of region %s, which has %d here", ErrParams, id, r.Name, r.Blocks)
			}
			if far < 0 || far >= int64(farBlocks) {
				return nil, fmt.Errorf("%w: block %d of region %s, which has %d there", ErrParams, far, r.Name, farBlocks)
			}
			out = append(out, span{a + uintptr(id)*uintptr(r.Stride), b + uintptr(far)*farStride, uintptr(size)})
		}
	}
	return out, nil
}
