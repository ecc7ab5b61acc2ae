package pd

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	tokenBytes = 4 // of one head: toy
	pageTokens = 2
)

// rankMeta describes a rank of an engine whose heads-first blocks hold head
// numbers, so that it can be seen which head a byte is of.
func rankMeta(heads, tp, blocks int, base uint64) *AgentMetadata {
	size := headsOf(heads, tp) * pageTokens * tokenBytes
	return &AgentMetadata{
		EngineID: "p", BaseAddrs: []uint64{base}, NumBlocks: blocks, BlockLens: []int{size}, BlockStrides: []int{size}, Layout: LayoutHeadsFirst,
		BlockTokens: pageTokens, BlocksPerLogical: 1, DCPSize: 1, PCPSize: 1, RegionNames: []string{"l"},
	}
}

func localRank(heads, tp, rank, blocks int) geometry {
	size := headsOf(heads, tp) * pageTokens * tokenBytes
	o := Options{
		TPRank: rank, TPSize: tp, BlockTokens: pageTokens, Model: Model{KVHeads: heads},
		Regions: []Region{{Name: "l", Addr: 1 << 20, BlockBytes: size, Blocks: blocks}},
	}.withDefaults()
	return o.geometry()
}

// headAt is the head that a byte of a rank's block belongs to.
func headAt(heads, tp, rank int, offset int) int {
	return firstHead(heads, rank, tp) + offset/(pageTokens*tokenBytes)
}

// Every byte of a local block is read from the byte of the same head and token,
// and each producer rank hears of as many readers as it has.
func TestEveryHeadIsReadOnce(t *testing.T) {
	const base = 1 << 40
	for _, c := range []struct{ heads, local, remote int }{
		{8, 1, 1}, {8, 2, 2}, {8, 4, 1}, {8, 4, 2}, {8, 8, 2}, {8, 1, 4}, {8, 2, 8}, {8, 2, 4}, {2, 4, 2}, {2, 4, 1}, {2, 8, 2}, {4, 8, 8}, {2, 8, 4},
	} {
		t.Run(fmt.Sprintf("%d heads, %d from %d", c.heads, c.local, c.remote), func(t *testing.T) {
			told := map[int]int{}
			want := 0
			for rank := range c.local {
				g := localRank(c.heads, c.local, rank, 4)
				list, readers, err := g.sources(c.remote)
				require.NoError(t, err)
				want = readers
				covered := map[uintptr]bool{}
				for _, s := range list {
					told[s.rank]++
					m := rankMeta(c.heads, c.remote, 8, base)
					require.NoError(t, g.validate(m, c.remote))
					spans, err := g.spans(s, m, [][]int64{{3, 1}}, [][]int64{{5, 7}})
					require.NoError(t, err)
					for _, sp := range spans {
						for i := range sp.bytes {
							a, b := int(sp.local+i-g.regions[0].Addr), int(sp.remote+i-base)
							la, lb := g.regions[0].BlockBytes, m.BlockLens[0]
							require.Equal(t, map[int]int{3: 5, 1: 7}[a/la], b/lb)
							require.Equal(t, headAt(c.heads, c.local, rank, a%la), headAt(c.heads, c.remote, s.rank, b%lb))
							require.Equal(t, a%la%(pageTokens*tokenBytes), b%lb%(pageTokens*tokenBytes))
							require.False(t, covered[sp.local+i])
							covered[sp.local+i] = true
						}
					}
				}
				require.Len(t, covered, 2*g.regions[0].BlockBytes)
			}
			require.Len(t, told, c.remote)
			for rank, n := range told {
				require.Equal(t, want, n, "rank %d", rank)
			}
		})
	}
}

// With MLA one rank is read, and the others are told that theirs is not needed.
func TestMLAReadsOneRank(t *testing.T) {
	f := func(local, remote, rank int, read int, told []int, readers int) {
		t.Helper()
		g := localRank(1, local, rank, 4)
		g.mla, g.heads = true, 0
		list, n, err := g.sources(remote)
		require.NoError(t, err)
		require.Equal(t, []source{{rank: read, remoteParts: 1, localParts: 1}}, list)
		require.Equal(t, told, g.handshakeRanks(remote))
		require.Equal(t, readers, n)
	}
	f(1, 1, 0, 0, []int{0}, 1)
	f(4, 2, 3, 1, []int{1}, 2)
	f(2, 8, 1, 4, []int{4, 5, 6, 7}, 1)
}

func TestIncompatibleEnginesAreToldBothValues(t *testing.T) {
	f := func(want string, change func(*AgentMetadata)) {
		t.Helper()
		g := localRank(8, 2, 0, 4)
		m := rankMeta(8, 2, 8, 1<<40)
		require.NoError(t, g.validate(m, 2))
		change(m)
		err := g.validate(m, 2)
		require.ErrorIs(t, err, ErrIncompatible)
		require.ErrorContains(t, err, want)
	}
	f("kv_cache_layout: LBHNC here, LBNHC there", func(m *AgentMetadata) { m.Layout = LayoutTokensFirst })
	f("block size in tokens: 2 here, 64 there", func(m *AgentMetadata) { m.BlockTokens = 64 })
	f("number of regions: 1 here, 2 there", func(m *AgentMetadata) { m.BaseAddrs = append(m.BaseAddrs, 0) })
	f("name of region 0: l here, other there", func(m *AgentMetadata) { m.RegionNames = []string{"other"} })
	f("bytes of a block of region 0, with tensor parallel size 2 here and 2 there,: 32 here, 64 there", func(m *AgentMetadata) { m.BlockLens[0] *= 2 })
	f("KV cache group of region 0: 0 here, 1 there", func(m *AgentMetadata) { m.RegionGroups = []int{1} })
	f("context parallel", func(m *AgentMetadata) { m.DCPSize = 2 })

	g := localRank(8, 2, 0, 4)
	g.layout = LayoutTokensFirst
	require.ErrorContains(t, g.validate(rankMeta(8, 4, 8, 0), 4), "needs the layout LBHNC")
	_, _, err := g.sources(3)
	require.ErrorContains(t, err, "2 here, 3 there")
	g = localRank(2, 1, 0, 4)
	_, _, err = g.sources(4)
	require.ErrorContains(t, err, "copies of heads")
}

// The prefix cache has the first blocks: what is read is the tail.
func TestBlocksPairFromTheEnd(t *testing.T) {
	g := localRank(8, 1, 0, 100)
	l, r, err := g.pair([][]int64{{7}, {8, 9}}, [][]int64{{1, 2, 3}, {4, 5}}, 1)
	require.NoError(t, err)
	require.Equal(t, [][]int64{{7}, {8, 9}}, l)
	require.Equal(t, [][]int64{{3}, {4, 5}}, r)

	// A producer whose blocks are made of two smaller ones.
	l, r, err = g.pair([][]int64{{7, 8}}, [][]int64{{1, 2}}, 2)
	require.NoError(t, err)
	require.Equal(t, [][]int64{{7, 8}}, l)
	require.Equal(t, [][]int64{{4, 5}}, r)

	_, _, err = g.pair([][]int64{{7, 8, 9}}, [][]int64{{1, 2}}, 1)
	require.ErrorIs(t, err, ErrParams)
	_, _, err = g.pair([][]int64{{7}}, [][]int64{{1}, {2}}, 1)
	require.ErrorIs(t, err, ErrParams)
}

func TestBlocksOutsideAreRefused(t *testing.T) {
	g := localRank(8, 1, 0, 4)
	m := rankMeta(8, 1, 8, 1<<40)
	list, _, err := g.sources(1)
	require.NoError(t, err)
	for _, c := range [][2]int64{{4, 0}, {-1, 0}, {0, 8}, {0, -1}} {
		_, err := g.spans(list[0], m, [][]int64{{c[0]}}, [][]int64{{c[1]}})
		require.ErrorIs(t, err, ErrParams)
	}
}

// A local block list in several groups goes to the regions of each group.
func TestGroups(t *testing.T) {
	g := localRank(1, 1, 0, 4)
	g.regions = append(slices.Clone(g.regions), Region{Name: "m", Addr: 1 << 21, BlockBytes: 8, Stride: 16, Blocks: 4, Group: 1})
	m := rankMeta(1, 1, 8, 1<<40)
	m.BaseAddrs, m.BlockLens, m.BlockStrides = append(m.BaseAddrs, 1<<41), append(m.BlockLens, 8), append(m.BlockStrides, 8)
	m.RegionNames, m.RegionGroups = []string{"l", "m"}, []int{0, 1}
	require.NoError(t, g.validate(m, 1))
	list, _, err := g.sources(1)
	require.NoError(t, err)
	spans, err := g.spans(list[0], m, [][]int64{{1}, {2, 3}}, [][]int64{{4}, {5, 6}})
	require.NoError(t, err)
	require.Equal(t, []span{{1<<20 + 8, 1<<40 + 32, 8}, {1<<21 + 32, 1<<41 + 40, 8}, {1<<21 + 48, 1<<41 + 48, 8}}, spans)
}
