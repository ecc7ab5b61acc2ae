package l1cache

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func keysOf(sc Scope, hs ...Hash) []ObjectKey {
	out := make([]ObjectKey, len(hs))
	for i, h := range hs {
		out[i] = ObjectKey{Model: sc.Model, Salt: sc.Salt, Group: sc.Group, Hash: h}
	}
	return out
}

func TestDelete(t *testing.T) {
	c := lru(t, 1*mib)
	hs := hashes(0, 6)
	store(t, c, hs[:4], 4096)
	lease, _ := c.Lookup(request(hs[:1]), nil)
	res, err := c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hs[4:], SizeBytes: 4096})
	require.NoError(t, err)

	f := func(force bool, deleted, skipped int, hs ...Hash) {
		t.Helper()
		d, s := c.Delete(keysOf(scopeA, hs...), force)
		require.Equal(t, [2]int{deleted, skipped}, [2]int{d, s})
		require.NoError(t, c.Check())
	}
	f(false, 0, 1, hs[0])                    // held
	f(false, 0, 1, hs[4])                    // in a writer's hands
	f(false, 2, 0, hs[1], hs[2], hashOf(99)) // unlocked, and one that is not there
	f(false, 0, 0, hs[1])                    // gone already
	f(false, 1, 0, hs[3], hs[3])             // named twice
	f(true, 1, 0, hs[0])                     // held, forced
	_, err = lease.Take(0, 0, 0, 1)
	require.ErrorIs(t, err, ErrNotHeld)
	f(true, 1, 0, hs[4], hs[4]) // reserved, forced: the reservation is over
	require.Zero(t, res.Publish(nil))
	require.Zero(t, c.Stats().UsedBytes)
	require.Equal(t, uint64(4), c.Stats().Evicted[EvictDelete])

	// Not what another rank, salt, group or model has; every layout's.
	other := Scope{Model: "a", Layout: "x"}
	store(t, c, hs[:1], 4096)
	r, err := c.Reserve(context.Background(), ReserveRequest{Scope: other, Hashes: hs[:1], SizeBytes: 4096})
	require.NoError(t, err)
	require.Equal(t, 1, r.Publish(nil))
	for _, k := range []ObjectKey{{Model: "b"}, {Model: "a", Salt: "s"}, {Model: "a", Group: 1}, {Model: "a", Rank: 1}} {
		k.Hash = hs[0]
		d, s := c.Delete([]ObjectKey{k}, true)
		require.Zero(t, d+s)
	}
	f(false, 2, 0, hs[0])
}

// TestDeleteWhileRead: memory that somebody reads stays what it is.
func TestDeleteWhileRead(t *testing.T) {
	c := lru(t, 64<<10)
	hs := hashes(0, 1)
	store(t, c, hs, 4096)
	lease, _ := c.Lookup(request(hs), nil)
	tr, err := lease.Take(0, 0, 0, 1)
	require.NoError(t, err)
	d, s := c.Delete(keysOf(scopeA, hs...), false)
	require.Equal(t, [2]int{0, 1}, [2]int{d, s})
	d, s = c.Delete(keysOf(scopeA, hs...), true)
	require.Equal(t, [2]int{1, 0}, [2]int{d, s})
	require.False(t, c.present(hs[0]))
	require.Equal(t, int64(4096), c.Stats().UsedBytes)
	tr.Done()
	require.Zero(t, c.Stats().UsedBytes)
}

// TestDeleteAfterTheTTL: what nobody has a right to any more is no hindrance.
func TestDeleteAfterTheTTL(t *testing.T) {
	clk := newClock()
	c := newCache(t, Options{Arena: grownArena(64 << 10), Evict: true, Now: clk.Now, ReadTTL: 2 * time.Second})
	hs := hashes(0, 1)
	store(t, c, hs, 4096)
	_, _ = c.Lookup(request(hs), nil)
	_, s := c.Delete(keysOf(scopeA, hs...), false)
	require.Equal(t, 1, s)
	clk.advance(2 * time.Second)
	d, s := c.Delete(keysOf(scopeA, hs...), false)
	require.Equal(t, [2]int{1, 0}, [2]int{d, s})
}

func TestPage(t *testing.T) {
	c := lru(t, 1*mib)
	hs := hashes(0, 10)
	store(t, c, hs, 4000)
	b := Scope{Model: "b", Salt: "s", Group: 2}
	r, err := c.Reserve(context.Background(), ReserveRequest{Scope: b, Rank: 7, Hashes: hs[:2], SizeBytes: 100})
	require.NoError(t, err)
	entries, next := c.Page("", 0, 100)
	require.Len(t, entries, 10, "what is not published yet is not listed")
	require.Zero(t, next)
	require.Equal(t, 2, r.Publish(nil))

	seen := map[Hash]bool{}
	pages := 0
	for after := uint32(0); ; pages++ {
		entries, after = c.Page("a", after, 3)
		require.LessOrEqual(t, len(entries), 3)
		for _, e := range entries {
			require.Equal(t, scopeA, e.Scope)
			require.Equal(t, int64(4000), e.SizeBytes)
			require.False(t, seen[e.Hash])
			seen[e.Hash] = true
		}
		if after == 0 {
			break
		}
	}
	require.Len(t, seen, 10)
	require.LessOrEqual(t, pages, 5)
	entries, _ = c.Page("b", 0, 100)
	require.ElementsMatch(t, []Entry{{b, 7, hs[0], 100}, {b, 7, hs[1], 100}}, entries)
	entries, next = c.Page("", 1<<31, 5)
	require.Empty(t, entries)
	require.Zero(t, next)
}

func TestBytesBySalt(t *testing.T) {
	c := lru(t, 1*mib)
	require.Empty(t, c.BytesBySalt())
	hs := hashes(0, 4)
	store(t, c, hs, 4000)
	for _, sc := range []Scope{{Model: "a", Salt: "s"}, {Model: "b", Salt: "s"}} {
		r, err := c.Reserve(context.Background(), ReserveRequest{Scope: sc, Hashes: hs[:2], SizeBytes: 100})
		require.NoError(t, err)
		require.Equal(t, 2, r.Publish([]bool{true, true}))
	}
	require.Equal(t, map[string]int64{"": 4 * 4096, "s": 4 * 4096}, c.BytesBySalt())
	c.Delete(keysOf(scopeA, hs...), false)
	require.Equal(t, map[string]int64{"s": 4 * 4096}, c.BytesBySalt())
	c.Clear(true)
	require.Empty(t, c.BytesBySalt())
}
