package l1cache

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/invariants"
)

// stream stores requests one after another and knows what it stored.
type stream struct {
	t      *testing.T
	c      *Cache
	stored []streamed
}

type streamed struct {
	hash Hash
	size int64
}

// store stores a request; a refusal fails the test.
func (s *stream) store(chunks int, size int64) {
	s.t.Helper()
	hs := hashes(len(s.stored), chunks)
	r, err := s.c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hs, SizeBytes: size})
	require.NoError(s.t, err)
	require.Equal(s.t, chunks, r.Publish(nil))
	// Within a request the last chunk is the oldest.
	for i := range hs {
		s.stored = append(s.stored, streamed{hash: hs[chunks-1-i], size: size})
	}
}

// newest is how many bytes of the stream's end are resident without a gap.
func (s *stream) newest() (bytes int64) {
	for i := len(s.stored) - 1; i >= 0 && s.c.present(s.stored[i].hash); i-- {
		bytes += s.stored[i].size
	}
	return bytes
}

func TestStreamOfOneSize(t *testing.T) {
	// Twice the pool: the real server refuses 44-96 % of such a stream and keeps
	// 0-7 % of the newest.
	f := func(pool int64, chunks int, size int64) {
		t.Helper()
		s := &stream{t: t, c: newCache(t, Options{Arena: sizedArena(t, pool), Evict: true})}
		for bytes := int64(0); bytes < 2*pool; bytes += int64(chunks) * size {
			s.store(chunks, size)
		}
		require.Equal(t, pool/size*size, s.newest(), "the pool holds the newest and nothing else")
	}
	f(256*mib, 4, mib)
	f(256*mib, 4, 32*mib)
	f(256*mib+12345, 3, 17*mib+576)
}

func TestStreamOfMixedSizes(t *testing.T) {
	const pool = 512 * mib
	s := &stream{t: t, c: newCache(t, Options{Arena: sizedArena(t, pool), Evict: true})}
	phase := func(size int64) {
		t.Helper()
		for bytes := int64(0); bytes < 2*pool; bytes += 4 * size {
			s.store(4, size)
			// All of the newest stay: but for the holes of one request and of one
			// object, the whole pool.
			if total := int64(len(s.stored)) * mib; total > pool {
				require.GreaterOrEqual(t, s.newest(), int64(pool-5*32*mib))
			}
		}
		require.Equal(t, int64(pool), s.newest(), "after twice the pool only this size is left")
	}
	phase(mib)
	phase(32 * mib)
	phase(mib)
	phase(32 * mib)
	phase(mib)
}

func TestStreamOfRandomSizes(t *testing.T) {
	// Three models share the pool, in no order. Fragmentation costs some of the
	// newest, but no store is refused, and the pool stays well used. (Evicting the
	// neighbours of the oldest object, whatever their age, kept 1 %.)
	const pool = 1 << 30
	r := rand.New(rand.NewPCG(3, 4))
	s := &stream{t: t, c: newCache(t, Options{Arena: sizedArena(t, pool), Evict: true})}
	sizes := []int64{mib, 10 * mib, 32 * mib}
	least, leastUsed := int64(pool), 1.0
	requests := 3000
	if invariants.Enabled {
		requests = 600
	}
	for i := range requests {
		s.store(1+r.IntN(4), sizes[r.IntN(3)])
		if i < 200 {
			continue
		}
		st := s.c.Stats()
		least, leastUsed = min(least, s.newest()), min(leastUsed, st.Usage())
	}
	t.Logf("newest without a gap: at least %.0f %% of the pool; used: at least %.0f %%", 100*float64(least)/pool, 100*leastUsed)
	require.Greater(t, least, int64(pool/2))
	require.Greater(t, leastUsed, 0.75)
}
