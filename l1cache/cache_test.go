package l1cache

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStoreAndRead(t *testing.T) {
	arena := grownArena(64 << 12)
	c := newCache(t, Options{Arena: arena, Evict: true})
	hs := hashes(0, 4)
	r, err := c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hs, SizeBytes: 5000, Form: 7})
	require.NoError(t, err)
	require.Len(t, r.Slots(), 4)
	for i, s := range r.Slots() {
		require.Equal(t, Slot{Chunk: i, Offset: int64(i) * 8192, Length: 5000}, s)
		arena.Bytes()[s.Offset] = byte(i + 1)
	}
	require.Zero(t, hit(c, hs), "reserved objects are not readable")
	require.Equal(t, 4, r.Publish(nil))
	require.Zero(t, r.Publish(nil), "a second Publish does nothing")

	l, pending := c.Lookup(request(hashes(0, 6)), nil)
	require.False(t, pending)
	require.Equal(t, 4, l.Hit())
	require.Equal(t, hashOf(3), l.Hash(3))
	tr, err := l.Take(0, 0, 1, 4)
	require.NoError(t, err)
	for i, o := range tr.Objects() {
		require.Equal(t, Object{Chunk: i + 1, Offset: int64(i+1) * 8192, Length: 5000, Form: 7}, o)
		require.Equal(t, byte(i+2), arena.Bytes()[o.Offset])
	}
	require.Equal(t, 1, l.Outstanding())
	tr.Done()
	tr.Done()
	_, err = l.Take(0, 0, 1, 2)
	require.ErrorIs(t, err, ErrNotHeld)
	require.Equal(t, 1, l.Free(nil, 0, 4, 1))
	st := c.Stats()
	require.Equal(t, int64(4), st.Resident)
	require.Equal(t, int64(4*8192), st.ResidentBytes)
	require.Zero(t, st.Leases)
	require.Zero(t, st.Leased)
}

func TestWatermarkTurnOfTheReference(t *testing.T) {
	// Spec 9.5: 40 slots of 262144 in 10737418 bytes; four 8-chunk requests and
	// one more object make 33; after a lookup of the first request a turn leaves
	// 27 objects: gone are the last six chunks of request 2.
	c := newCache(t, Options{Arena: grownArena(10737418), Evict: true})
	for r := range 4 {
		store(t, c, hashes(r*100, 8), 262144)
	}
	store(t, c, hashes(900, 1), 262144)
	require.Equal(t, 8, hit(c, hashes(0, 8)))
	c.turn()
	require.Equal(t, int64(27), c.Stats().Resident)
	c.turn()
	require.Equal(t, int64(27), c.Stats().Resident, "below the watermark nothing more happens")
	require.Equal(t, 2, hit(c, hashes(100, 8)))
	require.Equal(t, 8, hit(c, hashes(0, 8)))
	require.Equal(t, 8, hit(c, hashes(200, 8)))
	require.Equal(t, 8, hit(c, hashes(300, 8)))
}

func TestWriteTTLHandsTheKeyOn(t *testing.T) {
	ck := newClock()
	c := newCache(t, Options{Arena: grownArena(16 << 12), Evict: true, Now: ck.Now, WriteTTL: time.Minute})
	req := ReserveRequest{Scope: scopeA, Hashes: hashes(0, 2), SizeBytes: 4096}
	old, err := c.Reserve(context.Background(), req)
	require.NoError(t, err)
	ck.advance(59 * time.Second)
	busy, err := c.Reserve(context.Background(), req)
	require.NoError(t, err)
	require.Empty(t, busy.Slots())
	require.False(t, old.Expired())
	ck.advance(time.Second)
	require.True(t, old.Expired())
	next, err := c.Reserve(context.Background(), req)
	require.NoError(t, err)
	require.Len(t, next.Slots(), 2)
	for i := range next.Slots() {
		require.NotEqual(t, old.Slots()[i].Offset, next.Slots()[i].Offset, "the old writer's memory is not handed over")
	}
	require.Equal(t, int64(8192), c.Stats().QuarantinedBytes)
	require.Equal(t, 2, next.Publish(nil))
	require.Zero(t, old.Publish(nil), "an expired writer publishes nothing")
	require.Zero(t, c.Stats().Quarantined)
	require.Equal(t, 2, hit(c, hashes(0, 2)))
}
