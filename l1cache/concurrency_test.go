package l1cache

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// contents makes the bytes of an object from its hash, so that a reader can
// tell whether it reads what it asked for.
func contents(b []byte, h Hash) {
	for i := range b {
		b[i] = h[i%len(h)] + byte(i)
	}
}

func hasContents(b []byte, h Hash) bool {
	for i := range b {
		if b[i] != h[i%len(h)]+byte(i) {
			return false
		}
	}
	return true
}

func TestConcurrentClients(t *testing.T) {
	ticks := make(chan time.Time)
	arena := grownArena(96 * step)
	c := newCache(t, Options{Arena: arena, AlignBytes: step, Evict: true, Ticks: ticks})
	mem := arena.Bytes()
	var reads, writes, refused, settled atomic.Int64
	client := func(seed uint64) {
		r := rand.New(rand.NewPCG(seed, 5))
		for range 400 {
			from, n := r.IntN(40), 1+r.IntN(6)
			hs := hashes(from, n)
			switch r.IntN(8) {
			case 0, 1, 2, 3:
				res, err := c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hs, SizeBytes: int64(step * (1 + from%3))})
				if errors.Is(err, ErrNoSpace) {
					refused.Add(1)
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if r.IntN(2) == 0 {
					res.BeginFill()
				}
				if r.IntN(8) == 0 {
					res.Quarantine()
				}
				for _, s := range res.Slots() {
					contents(mem[s.Offset:s.Offset+s.Length], hs[s.Chunk])
				}
				switch r.IntN(6) {
				case 0:
					res.Abort()
				default:
					writes.Add(int64(res.Publish(nil)))
				}
				res.Release()
			case 4, 5, 6:
				req := request(hs)
				req.Readers = 1 + r.IntN(2)
				l, _ := c.Lookup(req, func() { settled.Add(1) })
				if l == nil {
					continue
				}
				l.SetYield(r.IntN(2) == 0)
				if tr, err := l.Take(0, 0, 0, l.Hit()); err == nil {
					for _, o := range tr.Objects() {
						if !hasContents(mem[o.Offset:o.Offset+o.Length], l.Hash(o.Chunk)) {
							t.Error("a reader got other bytes than were written")
						}
						reads.Add(1)
					}
					tr.Done()
				} else if !errors.Is(err, ErrNotHeld) { // revoked or cleared
					t.Error(err)
				}
				l.Release()
			case 7:
				switch r.IntN(6) {
				case 0:
					c.Clear(r.IntN(4) == 0)
				case 1:
					ticks <- time.Time{}
				case 2:
					c.Stats()
				default:
					c.Touch(scopeA, []uint32{0}, hs)
				}
			}
		}
	}
	var wg sync.WaitGroup
	for i := range uint64(6) {
		wg.Go(func() { client(i) })
	}
	wg.Wait()
	require.NoError(t, c.Check())
	c.Clear(true)
	require.Zero(t, c.Stats().UsedBytes, "%+v", c.Stats())
	require.Zero(t, c.Stats().Leases)
	require.Positive(t, reads.Load())
	require.Positive(t, writes.Load())
	t.Logf("read %d, written %d, refused %d, settled %d", reads.Load(), writes.Load(), refused.Load(), settled.Load())
}

func TestReserveWaitsForGrowth(t *testing.T) {
	arena := fakeArena(16 << 12)
	arena.growTo(4 << 12)
	c := newCache(t, Options{Arena: arena, Evict: true})
	store(t, c, hashes(0, 4), 4096)
	req := ReserveRequest{Scope: scopeA, Hashes: hashes(10, 6), SizeBytes: 4096}

	req.NoWait = true
	_, err := c.Reserve(context.Background(), req)
	require.ErrorIs(t, err, ErrGrowing)
	req.NoWait = false
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = c.Reserve(ctx, req)
	require.ErrorIs(t, err, ErrGrowing)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 4, hit(c, hashes(0, 4)), "nothing is evicted while the pool grows")
	require.True(t, c.Stats().Growing)
	c.turn()
	require.Equal(t, int64(4), c.Stats().Resident, "nor by the watermark")

	got := make(chan error)
	go func() {
		r, err := c.Reserve(context.Background(), req)
		if err == nil {
			r.Publish(nil)
		}
		got <- err
	}()
	arena.growTo(8 << 12) // not enough
	arena.growTo(16 << 12)
	require.NoError(t, <-got)
	require.Equal(t, 6, hit(c, hashes(10, 6)))
	require.Equal(t, 4, hit(c, hashes(0, 4)))
	require.False(t, c.Stats().Growing)

	req.Hashes = hashes(20, 17)
	_, err = c.Reserve(context.Background(), req)
	require.ErrorIs(t, err, ErrTooLarge)
}

func TestReserveTooLargeDoesNotWait(t *testing.T) {
	c := newCache(t, Options{Arena: fakeArena(16 << 12), Evict: true})
	_, err := c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hashes(0, 17), SizeBytes: 4096})
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hashes(0, 1), SizeBytes: 1 << 62})
	require.ErrorIs(t, err, ErrTooLarge)
	require.Zero(t, c.Stats().Scopes, "a refused scope is not remembered")
}

func TestCloseWakesWaiters(t *testing.T) {
	arena := fakeArena(16 << 12)
	arena.growTo(4 << 12)
	c := newCache(t, Options{Arena: arena, Evict: true})
	r, err := c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hashes(0, 2), SizeBytes: 4096})
	require.NoError(t, err)
	r.BeginFill()
	settled := 0
	_, pending := c.Lookup(request(hashes(0, 2)), func() { settled++ })
	require.True(t, pending)
	got := make(chan error)
	go func() {
		_, err := c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hashes(10, 9), SizeBytes: 4096})
		got <- err
	}()
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-got, ErrClosed)
	require.Equal(t, 1, settled)
	require.False(t, c.Alive())
	l, pending := c.Lookup(request(hashes(0, 2)), func() {})
	require.Nil(t, l)
	require.False(t, pending)
	require.Zero(t, r.Publish(nil))
	require.Zero(t, c.Clear(true))
	arena.growTo(16 << 12) // after the cache has let go of the arena
	require.Equal(t, int64(4<<12), c.Stats().TotalBytes)
}
