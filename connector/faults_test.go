package connector

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver"
)

var modes = []TransferMode{ModeLMCacheDriven, ModeEngineDriven}

func eachMode(t *testing.T, f func(t *testing.T, mode TransferMode)) {
	t.Helper()
	for _, m := range modes {
		t.Run(string(m), func(t *testing.T) { f(t, m) })
	}
}

// warm loads what the servers have of r, checks it, and finishes.
func (e *engine) warm(r *request, want int) {
	e.t.Helper()
	require.Equal(e.t, want, e.match(r, 0))
	e.alloc(r, want)
	e.step(Step{})
	for _, p := range e.wait() {
		require.Equal(e.t, []string{r.ID}, p.Received)
		require.Empty(e.t, p.BadBlocks)
	}
	e.check(r, 0, want)
	e.finish(r)
}

func TestTwoRanks(t *testing.T) {
	eachMode(t, func(t *testing.T, mode TransferMode) {
		twoRanks(t, startServer(t, nil).Addr(), mode)
	})
}

// twoRanks is the row of TP=2: one lookup, and every rank moves its own part.
func twoRanks(t *testing.T, url string, mode TransferMode) {
	t.Helper()
	e := newEngine(t, engineOptions{urls: []string{url}, mode: mode, ranks: 2})
	tokens := prompt(9, 600)
	e.cold(newRequest("cold", tokens))
	awaitStored(t, url, 2, tokens, 256, 2)
	e.warm(newRequest("warm", tokens), 512)
	requireTrace(t, "scheduler", e.s,
		"PING(None)", "LOOKUP[0,512)", "QUERY->0", "REPORT 38 blocks 600 tokens", "END_SESSION", "LOOKUP[0,512)", "QUERY->2", "END_SESSION")
	requireTrace(t, "worker 0", e.w[0], moves(mode, "PING(id)", "STORE[0,512) worker 0 of 2 32 blocks", "RETRIEVE[0,512) worker 0 of 2 32 blocks skip 0")...)
	requireTrace(t, "worker 1", e.w[1], moves(mode, "PING(id)", "STORE[0,512) worker 1 of 2 32 blocks", "RETRIEVE[0,512) worker 1 of 2 32 blocks skip 0")...)
}

// Of two servers the one with less counts, and the other one's holds beyond it
// are freed: clear then finds nothing held.
func TestTwoServers(t *testing.T) {
	a, b := startServer(t, nil), startServer(t, nil)
	e := newEngine(t, engineOptions{urls: []string{a.Addr(), b.Addr()}, mode: ModeEngineDriven, ranks: 2})
	tokens := prompt(1, 600)
	e.cold(newRequest("cold", tokens))
	e.warm(newRequest("warm", tokens), 512)
	e.s.take()
	e.more[0].take()
	// Server b loses all and learns the first chunk again.
	require.NoError(t, dial(t, b.Addr(), Options{}).Clear(t.Context(), true))
	r := newRequest("short", tokens[:256])
	require.Zero(t, e.match(r, 0))
	e.alloc(r, 0)
	e.run(r, New, 256)
	e.finish(r)
	requireTrace(t, "scheduler", e.s, "LOOKUP[0,256)", "QUERY->1", "FREE[0,256)", "REPORT 16 blocks 256 tokens", "END_SESSION")
	requireTrace(t, "scheduler", e.more[0], "LOOKUP[0,256)", "QUERY->0", "REPORT 16 blocks 256 tokens", "END_SESSION")
	e.warm(newRequest("warm again", tokens), 256)
	requireTrace(t, "scheduler", e.s, "LOOKUP[0,512)", "QUERY->2", "FREE[256,512)", "END_SESSION")
	requireTrace(t, "scheduler", e.more[0], "LOOKUP[0,512)", "QUERY->1", "END_SESSION")
	c := dial(t, a.Addr(), Options{})
	require.NoError(t, c.Clear(t.Context(), false))
	require.Zero(t, hitsOf(t, c, 1, tokens), "something was still held")
}

// hitsOf looks a prompt up and lets go again.
func hitsOf(t *testing.T, c *Client, world int, tokens []uint32) int {
	t.Helper()
	k := schedulerKey(world, "probe", tokens)
	require.NoError(t, c.Lookup(t.Context(), &k, 1))
	n, done, err := c.WaitPrefetch(t.Context(), "probe", 5*time.Second)
	require.NoError(t, err)
	require.True(t, done)
	c.FreeLookupLocks(&k, 1)
	c.EndSession("probe")
	return n
}

// An abort at any moment leaves nothing held: clear without force then drops
// everything.
func TestAbortsFreeLocks(t *testing.T) {
	eachMode(t, func(t *testing.T, mode TransferMode) {
		s := startServer(t, nil)
		e := newEngine(t, engineOptions{urls: []string{s.Addr()}, mode: mode})
		tokens := prompt(1, 600)
		f := func(name string, abort func(r *request)) {
			t.Helper()
			e.cold(newRequest(name+" cold", tokens))
			r := newRequest(name, tokens)
			abort(r)
			e.sched.Finish(&r.Request)
			e.wait(r.ID)
			e.settle()
			c := dial(t, s.Addr(), Options{})
			require.NoError(t, c.Clear(t.Context(), false))
			if n := hitsOf(t, c, 1, tokens); n != 0 {
				t.Errorf("%s: %d chunks were still held", name, n)
			}
		}
		f("after the lookup", func(r *request) { e.sched.Match(&r.Request, 0) })
		f("after the hit", func(r *request) { e.match(r, 0) })
		f("after the blocks", func(r *request) {
			e.match(r, 304)
			e.alloc(r, 512-304)
		})
		f("with blocks and no load", func(r *request) {
			e.match(r, 0)
			e.alloc(r, 0)
		})
		f("with the load begun", func(r *request) {
			e.match(r, 0)
			e.alloc(r, 512)
			e.step(Step{})
		})
	})
}

// A load that fails is told once, with its blocks; the request is then computed
// and stored.
func TestFailedLoad(t *testing.T) {
	eachMode(t, func(t *testing.T, mode TransferMode) {
		s := startServer(t, nil)
		e := newEngine(t, engineOptions{urls: []string{s.Addr()}, mode: mode})
		tokens := prompt(1, 600)
		e.cold(newRequest("cold", tokens))
		r := newRequest("failing", tokens)
		require.Equal(t, 512-304, e.match(r, 304))
		e.alloc(r, 512-304)
		require.NoError(t, dial(t, s.Addr(), Options{}).Clear(t.Context(), true))
		e.step(Step{})
		p := e.wait()[0]
		require.Equal(t, []string{"failing"}, p.Received)
		require.Equal(t, r.blocks[0][19:32], p.BadBlocks, "blocks of the load that the engine did not have")
		require.Equal(t, WorkerStats{Stores: 1, FailedLoads: 1}, e.workers[0].Stats())
		e.s.take()
		e.w[0].take()

		require.Zero(t, e.match(r, 0), "bypass")
		e.sched.Allocated(&r.Request, r.blocks, 0)
		e.run(r, New, 600)
		e.finish(r)
		requireTrace(t, "scheduler", e.s, "REPORT 38 blocks 600 tokens", "END_SESSION")
		requireTrace(t, "worker", e.w[0], moves(mode, "STORE[0,512) 32 blocks")...)
		require.Equal(t, int64(1), e.sched.Stats().FailedLoads)
		e.warm(newRequest("warm", tokens), 512)
	})
}

// A server that comes back, with nothing and another pool, is used again.
func TestServerRestart(t *testing.T) {
	eachMode(t, func(t *testing.T, mode TransferMode) {
		var o mpserver.Options
		s := startServer(t, func(p *mpserver.Options) { o = *p })
		_, port, err := net.SplitHostPort(hostPort(s.Addr()))
		require.NoError(t, err)
		e := newEngine(t, engineOptions{urls: []string{s.Addr()}, mode: mode, cfg: func(c *Config) { c.HeartbeatInterval = time.Second }})
		tokens := prompt(1, 600)
		e.cold(newRequest("before", tokens))
		s.stop()
		startServer(t, func(p *mpserver.Options) {
			*p = o
			p.Port, err = strconv.Atoi(port)
			require.NoError(t, err)
		})
		// The lookup that fails for the lost connection, or finds nothing.
		r := newRequest("gap", tokens)
		require.Zero(t, e.match(r, 0))
		e.sched.Finish(&r.Request)
		n := 0
		testutil.Eventually(t, "a store after the restart", func() bool {
			n++
			r := newRequest("after"+strconv.Itoa(n), tokens)
			if e.match(r, 0) != 0 {
				e.alloc(r, 0)
				e.sched.Finish(&r.Request)
				return true
			}
			e.alloc(r, 0)
			e.run(r, New, 600)
			e.sched.Finish(&r.Request)
			e.wait(r.ID)
			return false
		})
		e.warm(newRequest("warm", tokens), 512)
	})
}

// A server that is gone: lookups count nothing at once, stores are dropped,
// loads fail, and nothing hangs.
func TestServerGone(t *testing.T) {
	eachMode(t, func(t *testing.T, mode TransferMode) {
		s := startServer(t, nil)
		e := newEngine(t, engineOptions{urls: []string{s.Addr()}, mode: mode, cfg: func(c *Config) { c.HeartbeatInterval = 300 * time.Millisecond }})
		tokens := prompt(1, 600)
		e.cold(newRequest("cold", tokens))
		r := newRequest("caught", tokens)
		require.Equal(t, 512, e.match(r, 0))
		e.alloc(r, 512)
		s.stop()
		e.step(Step{})
		p := e.wait()[0]
		require.Equal(t, []string{"caught"}, p.Received)
		require.Equal(t, r.blocks[0][:32], p.BadBlocks)
		testutil.Eventually(t, "degraded mode", func() bool { return !e.sched.Healthy() && !e.workers[0].Healthy() })
		require.Zero(t, e.match(r, 0))
		e.sched.Allocated(&r.Request, r.blocks, 0)
		e.run(r, New, 600)
		require.True(t, e.sched.Finish(&r.Request).KeepBlocks)
		require.Equal(t, []string{"caught"}, e.workers[0].Poll([]string{"caught"}).Sent, "a dropped store keeps no blocks")
		require.Equal(t, int64(1), e.workers[0].Stats().DroppedStores)
		n, ready := e.sched.Match(&newRequest("new", tokens).Request, 0)
		require.True(t, ready)
		require.Zero(t, n)
	})
}

func TestHeadsFirst(t *testing.T) {
	eachMode(t, func(t *testing.T, mode TransferMode) {
		s := startServer(t, nil)
		e := newEngine(t, engineOptions{urls: []string{s.Addr()}, mode: mode, hnd: true})
		// The patterns are written as if tokens came first: any bytes do.
		e.cold(newRequest("cold", prompt(1, 600)))
		e.warm(newRequest("warm", prompt(1, 600)), 512)
	})
}

func TestConsumerNeverStores(t *testing.T) {
	s := startServer(t, nil)
	e := newEngine(t, engineOptions{urls: []string{s.Addr()}, mode: ModeEngineDriven, cfg: func(c *Config) { c.Role = RoleConsumer }})
	r := newRequest("r", prompt(1, 600))
	require.Zero(t, e.match(r, 0))
	e.alloc(r, 0)
	require.Empty(t, e.run(r, New, 600).Stores)
	require.False(t, e.sched.Finish(&r.Request).KeepBlocks)
	e.workers[0].Save([]Transfer{{}})
	require.Empty(t, e.workers[0].flights)
}

func TestRequestParams(t *testing.T) {
	s := startServer(t, nil)
	e := newEngine(t, engineOptions{urls: []string{s.Addr()}, mode: ModeEngineDriven, cfg: func(c *Config) { c.SaveDecodeCache = true }})
	r := newRequest("r", prompt(1, 600))
	r.Params = params1(t, `{"lmcache.max_offload_tokens": 300, "cached_token_stats": true, "lmcache.tag": {"a": [1, 2.5, "x", null]}}`)
	e.match(r, 0)
	e.alloc(r, 0)
	m := e.run(r, New, 600)
	require.Len(t, m.Stores, 1)
	require.Equal(t, 256, m.Stores[0].Key.End)
	require.Equal(t, &CachedTokens{}, e.sched.Finish(&r.Request).Cached)
	e.wait(r.ID)
	r = newRequest("warm", prompt(1, 600))
	r.Params = params1(t, `{"cached_token_stats": 1}`)
	require.Equal(t, 256-48, e.match(r, 48))
	e.alloc(r, 256-48)
	e.step(Step{})
	e.wait()
	require.Equal(t, &CachedTokens{Local: 48, LMCache: 256, External: 208}, e.sched.Finish(&r.Request).Cached)
}

// With lmcache.mp.save_decode_cache generated chunks are stored, under a key
// that has grown.
func TestSaveDecodeCache(t *testing.T) {
	s := startServer(t, nil)
	e := newEngine(t, engineOptions{urls: []string{s.Addr()}, mode: ModeLMCacheDriven, cfg: func(c *Config) { c.SaveDecodeCache, c.EagerPrefetch = true, true }})
	r := newRequest("decode", prompt(5, 500))
	e.sched.Enqueued(&r.Request)
	require.Zero(t, e.match(r, 0))
	e.alloc(r, 0)
	e.run(r, New, 500)
	for i := range 20 {
		r.Tokens = append(r.Tokens, uint32(i))
		e.run(r, Running, 1)
	}
	e.finish(r)
	requireTrace(t, "worker", e.w[0], "PING(id)", "STORE[0,256) 16 blocks", "STORE[256,512) 16 blocks")
	again := newRequest("again", r.Tokens)
	e.warm(again, 512)
	require.NoError(t, e.sched.Reset(t.Context()))
	require.Zero(t, e.match(newRequest("after reset", r.Tokens), 0))
}

// Closing with transfers in flight ends, and unregisters behind the last copy.
func TestCloseInFlight(t *testing.T) {
	eachMode(t, func(t *testing.T, mode TransferMode) {
		s := startServer(t, nil)
		e := newEngine(t, engineOptions{urls: []string{s.Addr()}, mode: mode})
		for i := range 5 {
			r := newRequest("r"+strconv.Itoa(i), prompt(uint64(i), 600))
			require.Zero(t, e.match(r, 0))
			e.alloc(r, 0)
			e.run(r, New, 600)
			if i == 0 {
				require.NoError(t, e.workers[0].Flush(t.Context()))
			}
		}
		require.NoError(t, e.workers[0].Close(t.Context()))
		ops := e.w[0].take()
		require.Contains(t, ops[len(ops)-1], "UNREGISTER")
		e.wait()
		e.workers[0].Load([]Transfer{{Key: schedulerKey(1, "late", nil), Blocks: [][]int64{{1}}}})
		require.Equal(t, Progress{Received: []string{"late"}, BadBlocks: []int64{1}}, e.workers[0].Poll(nil))
	})
}
