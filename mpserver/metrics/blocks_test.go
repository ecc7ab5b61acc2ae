package metrics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBlocks: the transitions of a block of an engine's own cache, as the
// reference's subscriber makes them.
func TestBlocks(t *testing.T) {
	m := New(Options{SampleRate: 1})
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	give := func(instance int64, request string, s int, blocks, tokens []int64) {
		m.BlocksAllocated(instance, "m", []BlockAllocation{{request, blocks, tokens}}, at(s))
	}
	ab, cd := []int64{1, 2, 3}, []int64{4, 5, 6} // blocks of 3 tokens
	give(7, "r1", 0, []int64{10, 11}, append(append([]int64{}, ab...), cd...))
	give(7, "r1", 1, []int64{10}, ab) // told again
	give(7, "r2", 2, []int64{10}, ab) // shares the prefix
	m.RequestEnded("r1")
	give(7, "r3", 3, []int64{10}, ab) // r2 still uses it: no reuse
	m.RequestEnded("r2")
	m.RequestEnded("r3")
	give(7, "r4", 20, []int64{10}, ab) // a hit
	m.RequestEnded("r4")
	give(7, "r5", 50, []int64{10}, ab) // and another, 30 s later
	m.RequestEnded("r5")
	give(8, "r6", 55, []int64{10}, cd) // another engine's block
	got := scrape(t, m)
	for s := range got {
		require.False(t, strings.HasPrefix(s, "lmcache_mp_l0_"), "nothing was evicted yet: %s", s)
	}
	give(7, "r7", 100, []int64{10, 11}, append(append([]int64{}, cd...), cd...)) // 10 is replaced, 11 found again
	give(7, "r8", 101, nil, ab)
	give(7, "r8", 101, []int64{1, 2, 3, 4, 5}, []int64{9}) // fewer tokens than blocks
	got = scrape(t, m)
	f := func(name string, count, sum float64) {
		t.Helper()
		const label = `{instance_id="7",model_name="m"}`
		require.Equal(t, []float64{count, sum}, []float64{got["lmcache_mp_l0_block_"+name+"_seconds_count"+label], got["lmcache_mp_l0_block_"+name+"_seconds_sum"+label]}, name)
	}
	f("lifetime", 1, 100)
	f("idle_before_evict", 1, 50)
	f("reuse_gap", 1, 30)
	require.Equal(t, 1.0, got[`lmcache_mp_l0_block_lifetime_seconds_bucket{instance_id="7",model_name="m",le="100"}`])

	// Only the latest uses are remembered.
	for i := range 10 {
		give(7, fmt.Sprint("s", i), 200+i, []int64{11}, cd)
		m.RequestEnded(fmt.Sprint("s", i))
		m.RequestEnded("r7")
	}
	give(7, "end", 300, []int64{11}, ab)
	got = scrape(t, m)
	f("reuse_gap", 1+maxUses-1, 30+maxUses-1)
	m.RequestEnded("nobody")
}

func TestBlocksAreBounded(t *testing.T) {
	m := New(Options{SampleRate: 1, MaxModels: 2})
	list := make([]int64, 1000)
	for i := range 100 {
		for j := range list {
			list[j] = int64(i*len(list) + j)
		}
		m.BlocksAllocated(1, "m", []BlockAllocation{{"r", list, list}}, time.Unix(0, 0))
	}
	require.Len(t, m.blocks.at, maxBlocks)
	require.Equal(t, maxBlocks, m.blocks.owners)
	m.RequestEnded("r")
	require.Zero(t, m.blocks.owners)
	require.Empty(t, m.blocks.requests)
	for i := range maxOwners + 10 { // requests whose end is never heard
		m.BlocksAllocated(1, "m", []BlockAllocation{{fmt.Sprint(i), []int64{5}, []int64{5}}}, time.Unix(0, 0))
	}
	require.Equal(t, maxOwners, m.blocks.owners)

	// Engines past the limit of labels share series; there is room for their
	// blocks, and the owners of the one that they replace are gone.
	for i := range int64(5) {
		for tokens := range int64(2) {
			m.BlocksAllocated(100+i, "m", []BlockAllocation{{"q", []int64{0}, []int64{tokens}}}, time.Unix(0, 0))
		}
	}
	require.Len(t, m.blocks.at, maxBlocks)
	got := scrape(t, m)
	require.Equal(t, 3.0, got[`lmcache_mp_l0_block_lifetime_seconds_count{instance_id="other",model_name="other"}`])
	m.BlocksAllocated(1, "m", []BlockAllocation{{"r", []int64{5}, []int64{6}}}, time.Unix(0, 0))
	require.LessOrEqual(t, m.blocks.owners, 6)

	none, some := New(Options{}), New(Options{SampleRate: 0.01})
	for _, m := range []*Metrics{none, some} {
		m.BlocksAllocated(1, "m", []BlockAllocation{{"r", list, list}}, time.Unix(0, 0))
	}
	require.Empty(t, none.blocks.at)
	require.Less(t, len(some.blocks.at), 100, "a hundredth of a thousand")
}
