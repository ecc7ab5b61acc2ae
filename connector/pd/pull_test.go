package pd

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// overTheRouter sends params through JSON, as a router does.
func overTheRouter(t testing.TB, p *Params) *Params {
	t.Helper()
	data, err := json.Marshal(p)
	require.NoError(t, err)
	q, err := ParseParams(data)
	require.NoError(t, err)
	return q
}

func TestPull(t *testing.T) {
	needLib(t)
	from, to := newCache(t, 2, 32, 4096), newCache(t, 2, 16, 4096)
	from.fill(1)
	to.fill(99)
	before := append([]byte(nil), to.buf.Bytes()...)
	got := make(releases, 4)
	o := from.options(testModel(2))
	o.Released = got.add
	producer, consumer := newPeer(t, o), newPeer(t, to.options(testModel(2)))

	id := "cmpl-___prefill_addr_localhost:8001___decode_addr_localhost:8002_0-0-1a2b3c4d"
	params, err := producer.Offer(Offer{RequestID: id, Blocks: [][]int64{{3, 9, 4, 5}}, Tokens: 60})
	require.NoError(t, err)
	params = overTheRouter(t, params)
	consumer.Track("mine", params)
	require.Equal(t, 1, consumer.Tracked())

	// The first block is in the consumer's prefix cache.
	res, err := consumer.Pull(t.Context(), "mine", params, [][]int64{{7, 2, 3}})
	require.NoError(t, err)
	require.Equal(t, 3, res.Blocks)
	require.EqualValues(t, 2*3*4096, res.Bytes)
	require.Equal(t, 4, res.Descriptors) // 4,5 → 2,3 are neighbours on both sides
	<-res.Settled
	r := got.next(t)
	require.Equal(t, ReleaseRead, r.Reason)
	require.Equal(t, id, r.RequestID)
	require.Less(t, r.Held, DefaultLease/2)

	pairs := map[int64]int64{7: 9, 2: 4, 3: 5}
	for l := range 2 {
		for b := range int64(16) {
			if far, ok := pairs[b]; ok {
				require.Equal(t, from.page(l, far), to.page(l, b))
			} else {
				at := (l*16 + int(b)) * 4096
				require.Equal(t, before[at:at+4096], to.page(l, b), "layer %d block %d was not asked for", l, b)
			}
		}
	}
	require.Zero(t, consumer.Tracked())
	require.Zero(t, producer.Offered())
	s := consumer.TakeStats()
	require.Len(t, s.Transfers, 1)
	require.EqualValues(t, res.Bytes, s.Transfers[0].Bytes)
	require.Equal(t, 4, s.Transfers[0].Descriptors)
	require.True(t, func() bool { s := consumer.TakeStats(); return s.Empty() }())

	// The second time the producer is known.
	params, err = producer.Offer(Offer{RequestID: "again", Blocks: [][]int64{{1}}, Tokens: 16})
	require.NoError(t, err)
	_, err = consumer.Pull(t.Context(), "mine2", params, [][]int64{{15}})
	require.NoError(t, err)
	require.Equal(t, from.page(1, 1), to.page(1, 15))
	require.Equal(t, "again", got.next(t).RequestID)
	answered, refused := producer.channel.Answered()
	require.EqualValues(t, []int64{1, 0}, []int64{answered, refused})
}

// Everything is in the prefix cache: the producer is only told.
func TestPullOfNothingFreesTheBlocks(t *testing.T) {
	needLib(t)
	from, to := newCache(t, 1, 8, 256), newCache(t, 1, 8, 256)
	got := make(releases, 4)
	o := from.options(testModel(2))
	o.Released = got.add
	producer, consumer := newPeer(t, o), newPeer(t, to.options(testModel(2)))
	params, err := producer.Offer(Offer{RequestID: "a", Blocks: [][]int64{{3}}, Tokens: 16})
	require.NoError(t, err)
	res, err := consumer.Pull(t.Context(), "x", params, nil)
	require.NoError(t, err)
	require.Zero(t, res.Bytes)
	require.Equal(t, ReleaseRead, got.next(t).Reason)
	require.Empty(t, consumer.TakeStats().Transfers)
}

// Engines of different tensor parallel size, all ranks in this process.
func TestPullAcrossParallelSizes(t *testing.T) {
	needLib(t)
	const heads, perHead = 4, 512
	f := func(local, remote int, mla bool) {
		t.Helper()
		t.Run(fmt.Sprintf("%d from %d, mla %v", local, remote, mla), func(t *testing.T) {
			model := testModel(heads)
			model.MLA = mla
			size := func(tp int) int {
				if mla {
					return 4 * perHead
				}
				return perHead * heads / tp
			}
			// whole is the block of a layer over all heads.
			whole := func(layer int, block int64) []byte {
				b := make([]byte, heads*perHead)
				for i := range b {
					b[i] = byte(layer*101 + int(block)*13 + i*7 + i>>8)
				}
				return b
			}
			slice := func(b []byte, tp, rank int) []byte {
				if mla {
					return b[:size(tp)]
				}
				return b[rank*size(tp) : (rank+1)*size(tp)]
			}
			channel, err := NewSideChannel("127.0.0.1", 0)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, channel.Close()) })
			got := make(releases, 16)
			var params *Params
			for rank := range remote {
				c := newCache(t, 2, 8, size(remote))
				for l := range 2 {
					for b := range int64(8) {
						copy(c.page(l, b), slice(whole(l, b), remote, rank))
					}
				}
				o := c.options(model)
				o.EngineID, o.TPRank, o.TPSize, o.Channel, o.Released = "producer", rank, remote, channel, got.add
				p, err := newPeer(t, o).Offer(Offer{RequestID: "r:1", Blocks: [][]int64{{5, 2}}, Tokens: 32})
				require.NoError(t, err)
				if rank == 0 {
					params = p
				}
			}
			params = overTheRouter(t, params)
			require.Equal(t, remote, params.TPSize)
			for rank := range local {
				c := newCache(t, 2, 8, size(local))
				o := c.options(model)
				o.TPRank, o.TPSize = rank, local
				res, err := newPeer(t, o).Pull(t.Context(), "x", params, [][]int64{{0, 6}})
				require.NoError(t, err)
				require.EqualValues(t, 2*2*size(local), res.Bytes)
				for l := range 2 {
					require.Equal(t, slice(whole(l, 5), local, rank), c.page(l, 0))
					require.Equal(t, slice(whole(l, 2), local, rank), c.page(l, 6))
				}
			}
			for range remote {
				r := got.next(t)
				require.Equal(t, ReleaseRead, r.Reason)
				require.Equal(t, max(1, local/remote), r.Readers)
			}
		})
	}
	f(2, 2, false)
	f(4, 2, false)
	f(4, 1, false)
	f(2, 4, false)
	f(1, 4, false)
	f(1, 2, true)
	f(2, 1, true)
}

// Heartbeats keep blocks far beyond the lease, and stop with the pull.
func TestHeartbeatsKeepBlocks(t *testing.T) {
	needLib(t)
	from, to := newCache(t, 1, 8, 256), newCache(t, 1, 8, 256)
	from.fill(3)
	got := make(releases, 4)
	o := from.options(testModel(2))
	const lease = 4 * time.Second
	o.Released, o.Lease = got.add, lease
	producer := newPeer(t, o)
	o = to.options(testModel(2))
	o.Heartbeat = 100 * time.Millisecond
	consumer := newPeer(t, o)
	params, err := producer.Offer(Offer{RequestID: "kept", Blocks: [][]int64{{3}}, Tokens: 16})
	require.NoError(t, err)
	_, err = producer.Offer(Offer{RequestID: "left", Blocks: [][]int64{{4}}, Tokens: 16})
	require.NoError(t, err)
	consumer.Track("x", params)
	r := got.next(t)
	require.Equal(t, "left", r.RequestID)
	require.Equal(t, ReleaseExpired, r.Reason)
	require.Equal(t, 1, producer.Offered(), "it was offered before")
	_, err = consumer.Pull(t.Context(), "x", params, [][]int64{{1}})
	require.NoError(t, err)
	require.Equal(t, ReleaseRead, got.next(t).Reason)
	require.Equal(t, from.page(0, 3), to.page(0, 1))
	s := producer.TakeStats()
	require.Equal(t, []int{1, 0}, []int{s.Expired, s.LateNotifs})
}
