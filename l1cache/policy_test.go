package l1cache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func withPolicy(t testing.TB, p Policy, objects int64) *Cache {
	t.Helper()
	return newCache(t, Options{Arena: grownArena(objects * 4096), Evict: true, Policy: p})
}

// storeIn publishes chunks of a scope; false when they do not fit.
func storeIn(t testing.TB, c *Cache, sc Scope, hs []Hash, size int64) bool {
	t.Helper()
	r, err := c.Reserve(context.Background(), ReserveRequest{Scope: sc, Hashes: hs, SizeBytes: size})
	if err != nil {
		return false
	}
	r.Publish(nil)
	return true
}

// hitIn is what a lookup in a scope finds.
func hitIn(c *Cache, sc Scope, hs []Hash) int {
	l, _ := c.Lookup(LookupRequest{Groups: []Group{{Scope: sc}}, Ranks: []uint32{0}, Hashes: hs, Readers: 1}, nil)
	if l == nil {
		return 0
	}
	defer l.Release()
	return l.Hit()
}

// TestARCKeepsWhatComesBack: prompts that come once do not push out those that
// were found again; under LRU they do.
func TestARCKeepsWhatComesBack(t *testing.T) {
	f := func(p Policy, want int) {
		t.Helper()
		c := withPolicy(t, p, 16)
		often := hashes(0, 6)
		store(t, c, often, 4096)
		require.Equal(t, 6, hit(c, often))
		for i := range 40 {
			store(t, c, hashes(1000+i, 1), 4096)
		}
		require.Equal(t, want, hit(c, often), "policy %d", p)
	}
	f(PolicyLRU, 0)
	f(PolicyARC, 6)
	f(PolicyIsolated, 0)
}

// TestARCAdapts: when what was pushed out comes back, its kind gets more room.
func TestARCAdapts(t *testing.T) {
	c := withPolicy(t, PolicyARC, 8)
	store(t, c, hashes(0, 4), 4096)
	require.Equal(t, 4, hit(c, hashes(0, 4)))
	store(t, c, hashes(10, 6), 4096) // two of these push two of themselves out
	target := c.arc.target
	require.Zero(t, target)
	gone := slices.DeleteFunc(hashes(10, 6), c.present)
	require.Empty(t, gone, "a reservation is not its own victim")
	require.Equal(t, 2, hit(c, hashes(0, 4)), "so two of the others went")
	store(t, c, hashes(20, 2), 4096)
	gone = slices.DeleteFunc(hashes(10, 6), c.present)
	require.Len(t, gone, 2)
	store(t, c, gone[:1], 4096)
	require.Positive(t, c.arc.target, "a return from the recent ghosts")
	require.Equal(t, int64(3), c.lists[frequent].n, "it is of the frequent ones now")
	target = c.arc.target
	store(t, c, hashes(2, 1), 4096)
	require.Less(t, c.arc.target, target, "a return from the frequent ghosts")
}

func TestARCGhostsAreBounded(t *testing.T) {
	c := withPolicy(t, PolicyARC, 8)
	for i := range 5000 {
		store(t, c, hashes(i, 1), 4096)
		if i%3 == 0 {
			hit(c, hashes(i, 1))
		}
	}
	total := 0
	for i := range c.arc.ghosts {
		g := &c.arc.ghosts[i]
		total += len(g.at)
		require.LessOrEqual(t, len(g.queue), 2*len(g.at)+64)
	}
	require.LessOrEqual(t, total, 16)
	c.Clear(true)
	require.Zero(t, c.lists[recent].n+c.lists[frequent].n)
}

func TestIsolatedQuota(t *testing.T) {
	a, b, free := Scope{Model: "m", Salt: "a"}, Scope{Model: "m", Salt: "b"}, Scope{Model: "m"}
	c := withPolicy(t, PolicyIsolated, 64)
	c.SetQuota("a", 10*4096)
	require.True(t, storeIn(t, c, b, hashes(0, 20), 4096))
	require.True(t, storeIn(t, c, a, hashes(0, 7), 4096))
	require.True(t, storeIn(t, c, free, hashes(0, 20), 4096))
	c.turn()
	require.Equal(t, 7, hitIn(c, a, hashes(0, 7)), "0.7 of the quota is below the watermark")

	// At its limit a tenant pushes out its own, and nobody else's.
	require.True(t, storeIn(t, c, a, hashes(100, 6), 4096))
	require.Equal(t, map[string]int64{"a": 10 * 4096, "b": 20 * 4096, "": 20 * 4096}, c.BytesBySalt())
	require.Equal(t, 4, hitIn(c, a, hashes(0, 7)), "suffixes first")
	require.Equal(t, 6, hitIn(c, a, hashes(100, 6)))
	require.Equal(t, uint64(3), c.Stats().Evicted[EvictQuota])
	// The background turn keeps it below the watermark.
	c.turn()
	require.Equal(t, int64(8*4096), c.BytesBySalt()["a"])
	c.turn()
	require.Equal(t, int64(7*4096), c.BytesBySalt()["a"], "0.8 is at the watermark")
	c.turn()
	require.Equal(t, int64(7*4096), c.BytesBySalt()["a"])
	// A limit is soft: what is larger is stored, and goes with the next turn.
	c.SetQuota("b", 0)
	c.turn()
	require.Zero(t, c.BytesBySalt()["b"])
	require.True(t, storeIn(t, c, b, hashes(0, 3), 4096))
	require.Equal(t, 3, hitIn(c, b, hashes(0, 3)))
	c.turn()
	require.Zero(t, hitIn(c, b, hashes(0, 3)))
	// Held objects stay.
	c.DeleteQuota("b")
	require.True(t, storeIn(t, c, b, hashes(0, 3), 4096))
	l, _ := c.Lookup(LookupRequest{Groups: []Group{{Scope: b}}, Ranks: []uint32{0}, Hashes: hashes(0, 2), Readers: 1}, nil)
	c.SetQuota("b", 0)
	c.turn()
	require.Equal(t, int64(2*4096), c.BytesBySalt()["b"])
	l.Release()
	require.Equal(t, int64(20*4096), c.BytesBySalt()[""], "nobody else noticed")
}

// TestQuotasNeedTheirPolicy: with LRU a quota is bookkeeping.
func TestQuotasNeedTheirPolicy(t *testing.T) {
	c := withPolicy(t, PolicyLRU, 8)
	c.SetQuota("", 0)
	store(t, c, hashes(0, 4), 4096)
	c.turn()
	require.Equal(t, 4, hit(c, hashes(0, 4)))
	_, err := New(Options{Arena: grownArena(4096), Policy: 9})
	require.ErrorContains(t, err, "unknown policy")
}

// TestPoliciesAtRandom: whatever happens, in whatever order, the store stays
// whole; mixed sizes make it search for holes in several lists at once.
func TestPoliciesAtRandom(t *testing.T) {
	for _, p := range []Policy{PolicyLRU, PolicyARC, PolicyIsolated} {
		t.Run(fmt.Sprint(p), func(t *testing.T) {
			for seed := range uint64(8) {
				r := rand.New(rand.NewPCG(seed, 7))
				c := withPolicy(t, p, 200)
				var leases []*Lease
				var transfers []*Transfer
				for step := range 1500 {
					sc := Scope{Model: "m", Salt: fmt.Sprint(r.IntN(1 + int(seed)*3))}
					hs := hashes(r.IntN(300), 1+r.IntN(6))
					switch r.IntN(12) {
					default:
						storeIn(t, c, sc, hs, 4096*int64(1+r.IntN(4)*r.IntN(8)))
					case 0, 1, 2:
						if l, _ := c.Lookup(LookupRequest{Groups: []Group{{Scope: sc}}, Ranks: []uint32{0}, Hashes: hs, Readers: 1 + r.IntN(2)}, nil); l != nil {
							l.SetYield(r.IntN(2) == 0)
							leases = append(leases, l)
						}
					case 3:
						if n := len(leases); n > 0 {
							if tr, err := leases[n-1].Take(0, 0, 0, 1); err == nil {
								transfers = append(transfers, tr)
							}
						}
					case 4, 5:
						for _, l := range leases {
							l.Release()
						}
						for _, tr := range transfers {
							tr.Done()
						}
						leases, transfers = nil, nil
					case 6:
						c.Touch(sc, []uint32{0}, hs)
					case 7:
						c.SetQuota(sc.Salt, int64(r.IntN(100))*4096)
						if r.IntN(3) == 0 {
							c.DeleteQuota(sc.Salt)
						}
					case 8:
						c.turn()
					case 9:
						c.Delete([]ObjectKey{{Model: "m", Salt: sc.Salt, Hash: hs[0]}}, r.IntN(2) == 0)
						if r.IntN(40) == 0 {
							c.Clear(r.IntN(2) == 0)
						}
					}
					if step%10 == 0 {
						require.NoError(t, c.Check())
					}
				}
				for _, l := range leases {
					l.Release()
				}
				for _, tr := range transfers {
					tr.Done()
				}
				c.Clear(true)
				require.Zero(t, c.Stats().UsedBytes)
			}
		})
	}
}
