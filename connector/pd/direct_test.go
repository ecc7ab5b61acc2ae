package pd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// newSharedCache is a cache in shared memory, and how to name it.
func newSharedCache(t testing.TB, layers, blocks, blockBytes int) (*cache, SharedMemory) {
	t.Helper()
	path := filepath.Join("/dev/shm", fmt.Sprintf("pd_test_%d_%s", os.Getpid(), newID()))
	size := layers * blocks * blockBytes
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Remove(path) })
	require.NoError(t, f.Truncate(int64(size)))
	buf, err := nixl.MapBuffer(size, nixl.MapOptions{File: f})
	require.NoError(t, err)
	require.NoError(t, f.Close())
	t.Cleanup(func() { _ = buf.Close() })
	c := &cache{buf: buf, block: blockBytes, blocks: blocks}
	for l := range layers {
		c.regions = append(c.regions, Region{Name: fmt.Sprintf("l%d", l), Addr: buf.Addr() + uintptr(l*blocks*blockBytes), BlockBytes: blockBytes, Blocks: blocks})
	}
	return c, SharedMemory{Path: path, Addr: buf.Addr(), Bytes: int64(size)}
}

// plainCache has the names of a shared one.
func plainCache(t testing.TB, like *cache) *cache {
	t.Helper()
	c := newCache(t, len(like.regions), like.blocks, like.block)
	for i := range c.regions {
		c.regions[i].Name = like.regions[i].Name
	}
	return c
}

// Two peers of one host whose pools are in shared memory copy without NIXL, and
// the blocks are freed by the same notification.
func TestPullFromSharedMemory(t *testing.T) {
	needLib(t)
	from, shared := newSharedCache(t, 2, 16, 4096)
	to := plainCache(t, from)
	from.fill(4)
	got := make(releases, 4)
	o := from.options(testModel(2))
	o.NoDirect, o.Shared, o.Released = false, []SharedMemory{shared}, got.add
	producer := newPeer(t, o)
	o = to.options(testModel(2))
	o.NoDirect = false
	consumer := newPeer(t, o)
	pull := func(c *Peer, direct bool) {
		t.Helper()
		clear(to.buf.Bytes())
		params, err := producer.Offer(Offer{RequestID: "r", Blocks: [][]int64{{3, 9, 4}}, Tokens: 48})
		require.NoError(t, err)
		res, err := c.Pull(t.Context(), "x", params, [][]int64{{7, 2}})
		require.NoError(t, err)
		require.Equal(t, direct, res.Direct)
		require.EqualValues(t, 2*2*4096, res.Bytes)
		<-res.Settled
		require.Equal(t, ReleaseRead, got.next(t).Reason)
		for l := range 2 {
			require.Equal(t, from.page(l, 9), to.page(l, 7))
			require.Equal(t, from.page(l, 4), to.page(l, 2))
		}
		s := c.TakeStats()
		require.Len(t, s.Transfers, 1)
		require.EqualValues(t, res.Bytes, s.Transfers[0].Bytes)
	}
	pull(consumer, true)
	pull(consumer, true)
	other := plainCache(t, from)
	o = other.options(testModel(2))
	o.NoDirect = true
	to = other
	pull(newPeer(t, o), false)
}

// What cannot be mapped is read through NIXL: another host, another file, a
// file that is too short, an offer that is none.
func TestDirectOffersAreChecked(t *testing.T) {
	needLib(t)
	from, shared := newSharedCache(t, 1, 4, 4096)
	to := plainCache(t, from)
	o := to.options(testModel(2))
	o.NoDirect = false
	p := newPeer(t, o)
	offer := func(s SharedMemory) []byte {
		o := (&Options{Shared: []SharedMemory{s}}).withDefaults()
		return o.directOffer()
	}
	m := &AgentMetadata{EngineID: "e"}
	good := offer(shared)
	require.NotNil(t, good)
	d := p.openDirect(good, m)
	require.NotNil(t, d)
	_, ok := d.prepare([]span{{to.buf.Addr(), from.buf.Addr() + 3*4096, 4096}})
	require.True(t, ok)
	for _, s := range []span{{1, from.buf.Addr() - 1, 10}, {1, from.buf.Addr() + 3*4096 + 1, 4096}, {1, from.buf.Addr(), 1 << 40}} {
		_, ok := d.prepare([]span{s})
		require.False(t, ok, s)
	}
	d.close()

	long := shared
	long.Bytes++
	require.Nil(t, p.openDirect(offer(long), m))
	require.Nil(t, offer(SharedMemory{Path: "/dev/null", Bytes: 1}))
	require.Nil(t, offer(SharedMemory{Path: shared.Path + "-gone", Bytes: 1}))
	for n := range good {
		require.Nil(t, p.openDirect(good[:n:n], m), "cut at %d", n)
	}
	require.NoError(t, os.Remove(shared.Path))
	require.NoError(t, os.WriteFile(shared.Path, make([]byte, shared.Bytes), 0o600))
	require.Nil(t, p.openDirect(good, m), "a new file of the same name")
	host := hostID
	defer func() { hostID = host }()
	hostID = func() string { return "another" }
	require.Nil(t, p.openDirect(good, m))
}

// A producer that cuts its memory short while it is read: that pull fails, and
// the process lives.
func TestProducerTruncatesItsMemory(t *testing.T) {
	needLib(t)
	from, shared := newSharedCache(t, 1, 4, 1<<16)
	to := plainCache(t, from)
	o := from.options(testModel(2))
	o.NoDirect, o.Shared = false, []SharedMemory{shared}
	producer := newPeer(t, o)
	o = to.options(testModel(2))
	o.NoDirect = false
	consumer := newPeer(t, o)
	params, err := producer.Offer(Offer{RequestID: "r", Blocks: [][]int64{{3}}, Tokens: 16})
	require.NoError(t, err)
	_, err = consumer.Pull(t.Context(), "x", params, [][]int64{{0}})
	require.NoError(t, err)
	require.NoError(t, os.Truncate(shared.Path, 1<<16))
	res, err := consumer.Pull(t.Context(), "y", params, [][]int64{{0}})
	require.ErrorIs(t, err, ErrTransfer)
	require.ErrorIs(t, err, errFault)
	<-res.Settled
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = consumer.Pull(ctx, "z", params, nil)
	require.NoError(t, err, "it can be told all the same")
}
