package l1cache

import (
	"context"
	"encoding/binary"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

// fakeArena is an arena over the Go heap that grows when a test says so.
func fakeArena(size int64) *Arena {
	a := newArena(slog.New(slog.DiscardHandler))
	a.mem = make([]byte, size)
	a.next = size
	return a
}

// growTo publishes the next piece; the whole arena ends the growth.
func (a *Arena) growTo(n int64) {
	a.publish(a.ReadyBytes(), n)
	if n == a.SizeBytes() {
		a.finish(newPopulator(nil, nil, nil))
	}
}

func grownArena(size int64) *Arena {
	a := fakeArena(size)
	a.growTo(size)
	return a
}

// sizedArena has no memory behind it, for tests of bookkeeping over large pools.
func sizedArena(t testing.TB, size int64) *Arena {
	t.Helper()
	a := newArena(slog.New(slog.DiscardHandler))
	mem, err := mapPrivate(size)
	require.NoError(t, err)
	a.mem, a.next = mem, size
	t.Cleanup(func() { _ = unmap(mem) })
	a.growTo(size)
	return a
}

// clock is a time source that moves when a test says so.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_700_000_000, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// newCache makes a cache whose background turn runs only when a test calls it.
func newCache(t testing.TB, o Options) *Cache {
	t.Helper()
	if o.Ticks == nil {
		o.Ticks = make(chan time.Time)
	}
	c, err := New(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Check())
		require.NoError(t, c.Close())
	})
	return c
}

func lru(t testing.TB, size int64) *Cache {
	t.Helper()
	return newCache(t, Options{Arena: grownArena(size), Evict: true})
}

// hashOf makes a recognisable hash.
func hashOf(n int) (h Hash) {
	binary.LittleEndian.PutUint64(h[:], uint64(n)*0x9E3779B97F4A7C15)
	binary.LittleEndian.PutUint64(h[8:], uint64(n))
	return h
}

func hashes(from, n int) []Hash {
	out := make([]Hash, n)
	for i := range out {
		out[i] = hashOf(from + i)
	}
	return out
}

var scopeA = Scope{Model: "a"}

// store publishes chunks and fails the test when they do not fit.
func store(t testing.TB, c *Cache, hs []Hash, size int64) {
	t.Helper()
	r, err := c.Reserve(context.Background(), ReserveRequest{Scope: scopeA, Hashes: hs, SizeBytes: size})
	require.NoError(t, err)
	require.Equal(t, len(r.Slots()), r.Publish(nil))
}

// request is a lookup of one full-attention group and rank 0.
func request(hs []Hash) LookupRequest {
	return LookupRequest{Groups: []Group{{Scope: scopeA}}, Ranks: []uint32{0}, Hashes: hs, Readers: 1}
}

// hit returns how many chunks a lookup finds, and holds nothing.
func hit(c *Cache, hs []Hash) int {
	l, _ := c.Lookup(request(hs), nil)
	if l == nil {
		return 0
	}
	defer l.Release()
	return l.Hit()
}

// present tells whether one chunk is resident, without touching it.
func (c *Cache) present(h Hash) bool {
	c.mu.Lock()
	defer c.unlock()
	id, ok := c.scopes.lookup(scopeA)
	if !ok {
		return false
	}
	i, ok := c.index[key{hash: h, scope: id}]
	return ok && c.objects.at(i).state == published
}
