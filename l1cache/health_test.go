package l1cache

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// caught runs f and returns what it panicked with.
func caught(f func()) (r any) {
	defer func() { r = recover() }()
	f()
	return nil
}

func TestPanicInsideTheLock(t *testing.T) {
	c, err := New(Options{Arena: grownArena(16 << 12), Evict: true, Ticks: make(chan time.Time)})
	require.NoError(t, err)
	defer c.Close()
	store(t, c, hashes(0, 4), 4096)
	l, _ := c.Lookup(request(hashes(0, 4)), nil)
	require.True(t, c.Alive())
	l.entries = nil // a broken invariant
	require.NotNil(t, caught(func() { _, _ = l.Take(0, 0, 0, 4) }))

	// The lock is free, nothing is served any more, and health says so.
	require.False(t, c.Alive())
	_, err = c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hashes(9, 1), SizeBytes: 1})
	require.ErrorIs(t, err, ErrBroken)
	require.Zero(t, hit(c, hashes(0, 4)))
	require.Zero(t, c.Clear(true))
	_, err = l.Take(0, 0, 0, 1)
	require.ErrorIs(t, err, ErrBroken)
}

func TestBadArgumentsDoNotPanic(t *testing.T) {
	c := lru(t, 16<<12)
	store(t, c, hashes(0, 4), 4096)
	l, _ := c.Lookup(request(hashes(0, 4)), nil)
	take := func(group int, rank uint32, from, to int, want error) {
		t.Helper()
		_, err := l.Take(group, rank, from, to)
		require.ErrorIs(t, err, want)
	}
	take(0, 0, -1, 2, ErrRange)
	take(0, 0, 3, 2, ErrRange)
	take(0, 0, 2, 2, ErrRange)
	take(0, 9, 0, 1, ErrRange)
	take(-1, 0, 0, 1, ErrRange)
	take(1, 0, 0, 1, ErrRange)
	require.Equal(t, 4, l.Outstanding())
	require.Zero(t, l.Free(nil, 3, -1, 1))
	require.Zero(t, l.Free(nil, -5, 0, 1))
	require.Zero(t, l.Free([]uint32{7}, 0, 4, 1))
	require.Zero(t, l.Free(nil, 0, 4, 0))
	require.Zero(t, l.Free(nil, 0, 4, -3))
	require.Equal(t, 4, l.Outstanding())
	require.Equal(t, 4, l.Free(nil, -100, 1<<40, 1<<30))

	for _, size := range []int64{0, -1} {
		_, err := c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hashes(9, 1), SizeBytes: size})
		require.Error(t, err)
	}
	r, err := c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, SizeBytes: 1})
	require.NoError(t, err)
	require.Empty(t, r.Slots())
	require.Zero(t, r.Publish(nil))
	for _, req := range []LookupRequest{{}, {Groups: []Group{{Scope: scopeA}}}, {Groups: []Group{{Scope: scopeA}}, Ranks: []uint32{0}}} {
		l, pending := c.Lookup(req, func() {})
		require.Nil(t, l)
		require.False(t, pending)
	}
	// The same chunk twice: one object.
	r, err = c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: []Hash{hashOf(50), hashOf(50)}, SizeBytes: 1})
	require.NoError(t, err)
	require.Len(t, r.Slots(), 1)
	_, busy := r.Skipped()
	require.Equal(t, 1, busy)
	r.Abort()
}

func TestOptionsCheck(t *testing.T) {
	a := grownArena(1 << 14)
	f := func(o Options, want string) {
		t.Helper()
		_, err := New(o)
		require.ErrorContains(t, err, want)
	}
	f(Options{}, "Arena is required")
	f(Options{Arena: a, AlignBytes: 3}, "power of two")
	f(Options{Arena: a, AlignBytes: -4096}, "power of two")
	f(Options{Arena: a, AlignBytes: 1 << 15}, "smaller than one step")
	f(Options{Arena: a, TriggerWatermark: 1.5}, "watermark")
	f(Options{Arena: a, EvictionRatio: -1}, "ratio")
	f(Options{Arena: a, WriteTTL: -1}, "TTLs")
	newCache(t, Options{Arena: a})
	f(Options{Arena: a}, "belongs to a cache")
}

// recorder is an Observer.
type recorder struct {
	mu     sync.Mutex
	events []string
	c      *Cache
}

func (r *recorder) add(what string, s Scope, n int) {
	if r.c != nil {
		r.c.Stats() // the lock is free
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, what+" "+s.Model+" "+strings.Repeat("x", n))
}
func (r *recorder) Published(s Scope, n int)    { r.add("published", s, n) }
func (r *recorder) ReadReleased(s Scope, n int) { r.add("released", s, n) }
func (r *recorder) Evicted(s Scope, n int, reason EvictReason) {
	r.add("evicted "+reason.String(), s, n)
}

func TestObserver(t *testing.T) {
	rec := &recorder{}
	c := newCache(t, Options{Arena: grownArena(12 << 12), Evict: true, Observer: rec})
	rec.c = c
	models := []string{"a", "b", "c", "d", "e", "f"}
	for _, m := range models {
		r, err := c.Reserve(context.Background(), ReserveRequest{Scope: Scope{Model: m}, Hashes: hashes(0, 2), SizeBytes: 4096})
		require.NoError(t, err)
		r.Publish([]bool{true, m != "a"})
	}
	req := request(hashes(0, 2))
	req.Readers, req.Groups = 3, []Group{{Scope: Scope{Model: "d"}}, {Scope: Scope{Model: "e"}}, {Scope: Scope{Model: "f"}}}
	l, _ := c.Lookup(req, nil)
	tr, err := l.Take(1, 0, 0, 2)
	require.NoError(t, err)
	tr.Done()
	l.Free(nil, 0, 1, 1)
	l.Release()
	store(t, c, hashes(0, 2), 4096) // "a" again: one more
	require.Equal(t, 12, c.Clear(false))
	require.Equal(t, []string{
		"published a x", "published b xx", "published c xx", "published d xx", "published e xx", "published f xx",
		"released e xx", "released d x", "released e x", "released f x",
		"released d xxxxx", "released e xxx", "released f xxxxx",
		"published a x",
		"evicted clear b xx", "evicted clear c xx", "evicted clear d xx", "evicted clear e xx",
		"evicted clear f xx", "evicted clear a xx",
	}, rec.events)
}

func TestBackgroundTurn(t *testing.T) {
	ck, ticks := newClock(), make(chan time.Time)
	var log bytes.Buffer
	c := newCache(t, Options{
		Arena: grownArena(16 << 12), Evict: true, Now: ck.Now, Ticks: ticks, ReadTTL: time.Minute,
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	store(t, c, hashes(0, 4), 4096)
	l, _ := c.Lookup(request(hashes(0, 4)), nil)
	require.Equal(t, ck.Now().Add(time.Minute), l.Deadline())
	ck.advance(time.Minute)
	ticks <- time.Time{}
	ticks <- time.Time{} // the first turn is over
	require.Zero(t, l.Outstanding())
	_, err := l.Take(0, 0, 0, 1)
	require.ErrorIs(t, err, ErrNotHeld)
	require.Equal(t, uint64(4), c.Stats().ExpiredHolds)
	require.GreaterOrEqual(t, c.Stats().Turns, uint64(1))
	require.NoError(t, c.Close())
	require.Equal(t, 1, strings.Count(log.String(), "--l1-read-ttl-seconds"), log.String())
}

func TestBackgroundTurnInBatches(t *testing.T) {
	c := newCache(t, Options{Arena: sizedArena(t, 4000<<12), Evict: true, EvictionRatio: 0.5})
	store(t, c, hashes(0, 4000), 4096)
	c.turn()
	require.Equal(t, int64(2000), c.Stats().Resident)
	require.Equal(t, uint64(2000), c.Stats().Evicted[EvictWatermark])
	require.Equal(t, 2000, hit(c, hashes(0, 4000)), "the suffix went")
}

func TestBackgroundTurnThatPanics(t *testing.T) {
	ticks := make(chan time.Time)
	var log bytes.Buffer
	c, err := New(Options{
		Arena: grownArena(16 << 12), Ticks: ticks, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Now: func() time.Time { panic("no clock") },
	})
	require.NoError(t, err)
	ticks <- time.Time{}
	c.wg.Wait()
	require.False(t, c.Alive(), "a background turn that ended is ill health")
	require.Contains(t, log.String(), "no clock")
	require.NoError(t, c.Close())
}

func TestScopesAreForgotten(t *testing.T) {
	c := lru(t, 16<<12)
	for i := range 50 {
		s := Scope{Model: "m", Salt: strings.Repeat("s", i)}
		l, _ := c.Lookup(LookupRequest{Groups: []Group{{Scope: s}}, Ranks: []uint32{0}, Hashes: hashes(0, 1)}, nil)
		require.Nil(t, l)
		c.Touch(s, []uint32{0}, hashes(0, 1))
		require.Zero(t, c.Stats().Scopes, "asking for a scope does not make it")
		r, err := c.Reserve(context.Background(), ReserveRequest{Scope: s, Hashes: hashes(0, 1), SizeBytes: 1})
		require.NoError(t, err)
		r.Publish(nil)
		require.Equal(t, int64(1), c.Stats().Scopes)
		require.Equal(t, 1, c.Clear(false))
	}
	require.Len(t, c.scopes.list, 2, "numbers are used again")
}

func TestMoreScopesThanUsual(t *testing.T) {
	c := lru(t, 64<<12)
	req := LookupRequest{Ranks: []uint32{0, 1}, Hashes: hashes(0, 3), Readers: 1}
	for g := range 7 {
		req.Groups = append(req.Groups, Group{Scope: Scope{Model: "m", Group: g}, WindowChunks: g % 3})
		for rank := range req.Ranks {
			r, err := c.Reserve(context.Background(), ReserveRequest{Scope: req.Groups[g].Scope, Rank: uint32(rank), Hashes: req.Hashes, SizeBytes: 1})
			require.NoError(t, err)
			r.Publish(nil)
		}
	}
	l, _ := c.Lookup(req, nil)
	require.Equal(t, 3, l.Hit())
	require.Equal(t, 2*(3*3+2*1+2*2), l.Outstanding())
	require.Equal(t, Scope{Model: "m", Group: 6}, l.Scope(6))
	tr, err := l.Take(1, 1, 0, 3)
	require.NoError(t, err)
	require.Len(t, tr.Objects(), 1, "a windowed group reads its window only")
	require.Equal(t, 2, tr.Objects()[0].Chunk)
	tr.Done()
	tr, err = l.Take(2, 1, 0, 1)
	require.NoError(t, err)
	require.Empty(t, tr.Objects())
	tr.Done()
	l.Release()
	require.Equal(t, 42, c.Clear(false))
}
