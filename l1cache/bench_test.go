package l1cache

import (
	"context"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/invariants"
)

// full makes a cache of n resident objects of one step, which fills its pool.
func full(b testing.TB, n int) *Cache {
	b.Helper()
	c := newCache(b, Options{Arena: sizedArena(b, int64(n)<<12), Evict: true})
	for at := 0; at < n; at += 100 {
		store(b, c, hashes(at, min(100, n-at)), 4096)
	}
	return c
}

// BenchmarkLookup is a lookup of 128 chunks (32k tokens) among 100k objects, and
// the release of its holds.
func BenchmarkLookup(b *testing.B) {
	f := func(name string, n int, hs []Hash) {
		b.Run(name, func(b *testing.B) {
			c := full(b, n)
			req := request(hs)
			b.ReportAllocs()
			for b.Loop() {
				if l, _ := c.Lookup(req, nil); l != nil {
					l.Release()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(hs)), "ns/key")
		})
	}
	f("hit", 100_000, hashes(5000, 128))
	f("miss", 100_000, hashes(-200, 128))
}

// BenchmarkTouch is what END_SESSION costs for 128 chunks.
func BenchmarkTouch(b *testing.B) {
	c := full(b, 100_000)
	hs := hashes(5000, 128)
	ranks := []uint32{0}
	b.ReportAllocs()
	for b.Loop() {
		c.Touch(scopeA, ranks, hs)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/128, "ns/key")
}

// BenchmarkTake is the read of 128 held chunks.
func BenchmarkTake(b *testing.B) {
	c := full(b, 100_000)
	req := request(hashes(5000, 128))
	b.ReportAllocs()
	for b.Loop() {
		l, _ := c.Lookup(req, nil)
		t, err := l.Take(0, 0, 0, 128)
		if err != nil {
			b.Fatal(err)
		}
		t.Done()
	}
}

// BenchmarkStore is a reservation of 4 objects in a full pool, with the
// eviction that makes room for it and its publication.
func BenchmarkStore(b *testing.B) {
	c := full(b, 100_000)
	hs := hashes(1<<20, 4)
	i := 1 << 20
	b.ReportAllocs()
	for b.Loop() {
		for j := range hs {
			hs[j] = hashOf(i)
			i++
		}
		r, err := c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hs, SizeBytes: 4096})
		if err != nil {
			b.Fatal(err)
		}
		r.Publish(nil)
	}
}

// BenchmarkStoreMixed is the same with three sizes in random order in 64 GiB, one
// in four objects held: the search for holes is what it measures.
func BenchmarkStoreMixed(b *testing.B) {
	c := newCache(b, Options{Arena: sizedArena(b, 64<<30), Evict: true})
	r := rand.New(rand.NewPCG(1, 2))
	sizes := []int64{1 * mib, 10 * mib, 32 * mib}
	hs := hashes(0, 4)
	i := 0
	put := func() {
		for j := range hs {
			hs[j] = hashOf(i)
			i++
		}
		res, err := c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hs, SizeBytes: sizes[r.IntN(3)]})
		if err != nil {
			b.Fatal(err)
		}
		res.Publish(nil)
	}
	for range 5000 {
		put()
	}
	for at := i - 4; at > i-3000; at -= 16 {
		c.Lookup(request(hashes(at, 4)), nil)
	}
	var worst time.Duration
	b.ReportAllocs()
	for b.Loop() {
		t := time.Now()
		put()
		worst = max(worst, time.Since(t))
	}
	st := c.Stats()
	b.ReportMetric(float64(worst.Microseconds()), "worst-us")
	b.ReportMetric(100*st.Usage(), "%used")
}

// BenchmarkContended is a lookup cycle on all CPUs at once: the price of one mutex.
func BenchmarkContended(b *testing.B) {
	c := full(b, 100_000)
	req := request(hashes(5000, 128))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if l, _ := c.Lookup(req, nil); l != nil {
				l.Release()
			}
		}
	})
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// objectBytesMax is what an object may cost in Go memory, all in.
const objectBytesMax = 400

func TestMemoryPerObject(t *testing.T) {
	const n = 100_000
	before := heap()
	c := full(t, n)
	per := float64(heap()-before) / n
	t.Logf("%.0f bytes an object", per)
	require.Less(t, per, float64(objectBytesMax))
	require.Equal(t, int64(n), c.Stats().Resident)
}

func TestAllocations(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the self checks allocate")
	}
	c := full(t, 1000)
	hit, miss := request(hashes(100, 128)), request(hashes(5000, 128))
	ctx := context.Background()
	f := func(what string, want float64, run func()) {
		t.Helper()
		if got := testing.AllocsPerRun(100, run); got > want {
			t.Errorf("%s: %g allocations, want at most %g", what, got, want)
		}
	}
	f("lookup that misses", 0, func() { c.Lookup(miss, nil) })
	f("lookup and release", 2, func() { l, _ := c.Lookup(hit, nil); l.Release() })
	f("lookup, take, done", 5, func() {
		l, _ := c.Lookup(hit, nil)
		tr, _ := l.Take(0, 0, 0, 128)
		tr.Done()
	})
	ranks := []uint32{0}
	f("touch", 0, func() { c.Touch(scopeA, ranks, hit.Hashes) })
	f("stats", 0, func() { c.Stats() })
	i := 10_000
	hs := hashes(0, 16)
	f("reserve, evict, publish", 3, func() {
		for j := range hs {
			hs[j] = hashOf(i)
			i++
		}
		r, _ := c.Reserve(ctx, ReserveRequest{Scope: scopeA, Hashes: hs, SizeBytes: 4096})
		r.Publish(nil)
	})
	f("turn", 0, c.turn)
}
