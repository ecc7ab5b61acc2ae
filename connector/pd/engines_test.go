package pd

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// offerOne offers block 1 under an id.
func offerOne(t testing.TB, p *Peer, id string) *Params {
	t.Helper()
	params, err := p.Offer(Offer{RequestID: id, Blocks: [][]int64{{1}}, Tokens: 16})
	require.NoError(t, err)
	return params
}

// Many requests of one producer shake hands once, those of a producer that has
// registered again once more, and one that is not used for long is forgotten.
func TestHandshakesAreKept(t *testing.T) {
	needLib(t)
	from, to := newCache(t, 1, 8, 256), newCache(t, 1, 8, 256)
	from.fill(5)
	producer := newPeer(t, from.options(testModel(2)))
	o := to.options(testModel(2))
	o.EngineTTL = 500 * time.Millisecond
	consumer := newPeer(t, o)
	shakes := func() int64 {
		n, _ := producer.channel.Answered()
		return n
	}
	var wg sync.WaitGroup
	for i := range int64(8) {
		params := offerOne(t, producer, string(rune('a'+i)))
		wg.Go(func() {
			_, err := consumer.Pull(t.Context(), params.RemoteRequestID, params, [][]int64{{i}})
			require.NoError(t, err)
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, shakes())
	for i := range int64(8) {
		require.Equal(t, from.page(0, 1), to.page(0, i))
	}
	require.Len(t, consumer.TakeStats().Transfers, 8)

	params := offerOne(t, producer, "registered again")
	params.RemoteGeneration++
	_, err := consumer.Pull(t.Context(), "x", params, [][]int64{{2}})
	require.NoError(t, err)
	require.EqualValues(t, 2, shakes())

	other := newPeer(t, newCache(t, 1, 8, 256).options(testModel(2)))
	consumer.engines.mu.Lock()
	consumer.engines.byID[producer.EngineID()].used = time.Now().Add(-time.Second)
	consumer.engines.mu.Unlock()
	_, err = consumer.Pull(t.Context(), "y", offerOne(t, other, "o"), [][]int64{{2}})
	require.NoError(t, err)
	require.Equal(t, 1, consumer.engines.known())
	params = offerOne(t, producer, "after a while")
	params.RemoteGeneration = 0
	_, err = consumer.Pull(t.Context(), "z", params, [][]int64{{2}})
	require.NoError(t, err)
	require.EqualValues(t, 3, shakes())
}

func BenchmarkPull(b *testing.B) {
	needLib(b)
	const blocks, size = 512, 64 << 10
	from, shared := newSharedCache(b, 1, blocks, size)
	to := plainCache(b, from)
	order := make([]int64, blocks) // no two neighbours
	for i := range order {
		order[i] = int64(i * 5 % blocks)
	}
	for name, noDirect := range map[string]bool{"nixl": true, "shared": false} {
		b.Run(name, func(b *testing.B) {
			o := from.options(testModel(2))
			o.NoDirect, o.Shared = false, []SharedMemory{shared}
			producer := newPeer(b, o)
			o = to.options(testModel(2))
			o.NoDirect = noDirect
			consumer := newPeer(b, o)
			ids := [][]int64{order}
			b.SetBytes(blocks * size)
			b.ReportAllocs()
			for b.Loop() {
				params, err := producer.Offer(Offer{RequestID: newID(), Blocks: blockIDs(blocks), Tokens: 16 * blocks})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := consumer.Pull(b.Context(), "x", params, ids); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
