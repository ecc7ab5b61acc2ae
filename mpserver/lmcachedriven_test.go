package mpserver

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

func TestServerCopies(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, s *Server) {
		e := newEngine(t, s, 1, false, oneGroup)
		e.registerKV()
		tokens := prompt(1, 3*testChunk+5)
		k := e.keyOf("a", tokens)
		require.Zero(t, e.lookup(k))
		from, to := e.ids(4, 3), e.ids(32, 3)
		e.write(tokens[0], from, 0, 3*testChunk)
		require.True(t, e.storeKV(k, from))
		require.True(t, e.storeKV(k, from), "resident chunks count as stored")
		e.end("a")

		k.RequestID = "b"
		require.Equal(t, 3, e.lookup(k))
		require.True(t, e.retrieveKV(k, to, 0))
		e.requireKV(tokens[0], to, 0, 3*testChunk)
		require.False(t, e.retrieveKV(k, to, 0), "one reader, one retrieve")
		e.end("b")
		idle(t, s)
	})
}

// The blocks of skipped tokens are left alone, in whole blocks.
func TestSkippedTokens(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, s *Server) {
		e := newEngine(t, s, 1, false, oneGroup)
		e.registerKV()
		tokens := prompt(1, 3*testChunk)
		ids := e.ids(4, 3)
		e.write(tokens[0], ids, 0, 3*testChunk)
		k := e.keyOf("a", tokens)
		require.True(t, e.storeKV(k, ids))
		n := e.blockSlots
		for _, skip := range []int{0, 1, n - 1, n, n + 1, testChunk, testChunk + n, 3 * testChunk, 100 * testChunk} {
			e.wipe()
			require.Equal(t, 3, e.lookup(k))
			require.True(t, e.retrieveKV(k, ids, skip))
			left := min(skip/n*n, 3*testChunk)
			e.requireKV(tokens[0], [][]int64{ids[0][left/n:]}, left, 3*testChunk)
			require.Equal(t, left, e.wrong(0, tokens[0], ids[0], 0, 3*testChunk), "skip %d", skip)
		}
		// It counts from the start of the range.
		e.wipe()
		require.Equal(t, 3, e.lookup(k))
		part := k
		part.Start = testChunk
		require.True(t, e.retrieveKV(part, [][]int64{ids[0][testChunk/n:]}, n))
		require.Equal(t, testChunk+n, e.wrong(0, tokens[0], ids[0], 0, 3*testChunk))
		rest := scheduler(k)
		rest.End = testChunk
		e.none(wire.OpFreeLookupLocks, keyFrame(rest), intFrame(1))
		e.end("a")
		idle(t, s)
	})
}

// What cannot be copied is refused as a whole: nothing is stored, no byte of
// the engine changes, and a hit that will not be loaded is given up.
func TestUnusableBlockLists(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, s *Server) {
		e := newEngine(t, s, 1, false, oneGroup)
		e.registerKV()
		tokens, other := prompt(1, 2*testChunk), prompt(2, 2*testChunk)
		good := e.ids(4, 2)
		e.write(tokens[0], good, 0, 2*testChunk)
		k := e.keyOf("a", tokens)
		require.True(t, e.storeKV(k, good))
		e.wipe()
		f := func(what string, ids [][]int64) {
			t.Helper()
			fresh := e.keyOf("s", other)
			require.False(t, e.storeKV(fresh, ids), what)
			require.Zero(t, e.lookup(fresh), what)
			require.Equal(t, 2, e.lookup(k), what)
			require.False(t, e.retrieveKV(k, ids, 0), what)
			require.Zero(t, s.cache.Stats().LeaseHolds, "%s: the hit is given up", what)
			for _, b := range e.mem {
				require.Zero(t, b, what)
			}
		}
		f("too short", [][]int64{good[0][:len(good[0])-1]})
		f("no list", [][]int64{})
		f("two lists", [][]int64{good[0], good[0]})
		negative, large := append([]int64{}, good[0]...), append([]int64{}, good[0]...)
		negative[3], large[3] = -1, int64(e.blocks)
		f("negative", [][]int64{negative})
		f("too large", [][]int64{large})
		large[3] = 1 << 62
		f("far too large", [][]int64{large})
		require.Equal(t, 2, e.lookup(k))
		require.True(t, e.retrieveKV(k, [][]int64{append(good[0], -7)}, 0), "what follows is ignored")
		e.requireKV(tokens[0], good, 0, 2*testChunk)
		e.end("a")
		e.end("s")
		idle(t, s)
	})
}

// A chunk whose block ids are all null is not stored; one of them real is.
func TestNullChunks(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, s *Server) {
		e := newEngine(t, s, 1, false, oneGroup)
		e.registerKV()
		tokens := prompt(1, 3*testChunk)
		ids := e.ids(4, 3)
		n := testChunk / e.blockSlots
		for i := n; i < 2*n; i++ {
			ids[0][i] = 0
		}
		ids[0][2*n] = 0
		k := e.keyOf("a", tokens)
		require.True(t, e.storeKV(k, ids))
		require.EqualValues(t, 2, s.cache.Stats().Resident)
		require.Equal(t, 1, e.lookup(k))
		all := [][]int64{make([]int64, 3*n)}
		require.True(t, e.storeKV(e.keyOf("b", prompt(2, 3*testChunk)), all), "nothing to store is not an error")
		require.EqualValues(t, 2, s.cache.Stats().Resident)
	})
}

func TestBadTransferRanges(t *testing.T) {
	s := startServer(t, nil)
	e := newEngine(t, s, 1, false, oneGroup)
	e.registerKV()
	tokens := prompt(1, 2*testChunk+1)
	ids := e.ids(4, 3)
	f := func(change func(*wire.Key)) {
		t.Helper()
		k := e.keyOf("a", tokens)
		change(&k)
		require.False(t, e.storeKV(k, ids))
		require.False(t, e.retrieveKV(k, ids, 0))
	}
	f(func(k *wire.Key) { k.Start = 1 })
	f(func(k *wire.Key) { k.Start = -testChunk })
	f(func(k *wire.Key) { k.End = 2*testChunk + 1 })
	f(func(k *wire.Key) { k.End = 3 * testChunk })
	f(func(k *wire.Key) { k.HasWorker = false })
	f(func(k *wire.Key) { k.WorkerID = 1 })
	f(func(k *wire.Key) { k.WorldSize = 2 })
	f(func(k *wire.Key) { k.Model = "other" })
	k := e.keyOf("a", tokens)
	k.Start, k.End = testChunk, testChunk
	require.True(t, e.storeKV(k, ids), "an empty range has nothing to store")
	require.True(t, e.retrieveKV(k, ids, 0))
	_, ok := e.answer(e.send(wire.AppendOp(nil, wire.OpRetrieve), keyFrame(k), intFrame(1), wire.AppendBlockIDs(nil, ids), wire.AppendBytes(nil, nil), intFrame(-1)))
	require.False(t, ok, "a negative skip")
	require.Zero(t, s.cache.Stats().Resident)
	idle(t, s)
}

// Two ranks each store and load their own part; a hit needs both.
func TestTwoRanks(t *testing.T) {
	s := startServer(t, nil)
	a, b := newEngine(t, s, 1, false, oneGroup), newEngine(t, s, 2, false, oneGroup)
	a.world, b.world, b.worker = 2, 2, 1
	a.registerKV()
	b.registerKV()
	tokens := prompt(1, 2*testChunk)
	ids := a.ids(4, 2)
	a.write(tokens[0], ids, 0, 2*testChunk)
	b.write(tokens[0]+1, ids, 0, 2*testChunk)
	require.True(t, a.storeKV(a.keyOf("r", tokens), ids))
	require.Zero(t, a.lookup(a.keyOf("r", tokens)), "half of it is not a hit")
	require.True(t, b.storeKV(b.keyOf("r", tokens), ids))
	a.wipe()
	b.wipe()
	require.Equal(t, 2, a.lookup(a.keyOf("r", tokens)))
	require.True(t, a.retrieveKV(a.keyOf("r", tokens), ids, 0))
	require.True(t, b.retrieveKV(b.keyOf("r", tokens), ids, 0))
	a.requireKV(tokens[0], ids, 0, 2*testChunk)
	b.requireKV(tokens[0]+1, ids, 0, 2*testChunk)
	a.end("r")
	idle(t, s)
}

// Groups of different shape make one object, or with separate object groups
// one each, of which a window needs the last chunks only.
func TestObjectGroups(t *testing.T) {
	groups := []kvGroup{{layers: 2, heads: 2, headBytes: 8}, {layers: 1, heads: 4, headBytes: 8, window: 2 * testChunk}}
	const chunks = 4
	run := func(t *testing.T, separate bool, objects int64) {
		t.Helper()
		onDevices(t, func(o *Options) { o.SeparateObjectGroups = separate }, func(t *testing.T, s *Server) {
			e := newEngine(t, s, 1, false, groups)
			e.registerKV()
			tokens := prompt(1, chunks*testChunk)
			from, to := e.ids(4, chunks), e.ids(32, chunks)
			e.write(tokens[0], from, 0, chunks*testChunk)
			k := e.keyOf("a", tokens)
			require.True(t, e.storeKV(k, from))
			require.Equal(t, objects, s.cache.Stats().Resident)
			require.Equal(t, chunks, e.lookup(k))
			held := s.cache.Stats().LeaseHolds
			require.True(t, e.retrieveKV(k, to, 0))
			require.Zero(t, e.wrong(0, tokens[0], to[0], 0, chunks*testChunk))
			if separate {
				require.EqualValues(t, chunks+2, held, "of the window two")
				require.Equal(t, 2*testChunk, e.wrong(1, tokens[0], to[1], 0, chunks*testChunk), "written outside of the window")
				n := testChunk / e.blockSlots
				require.Zero(t, e.wrong(1, tokens[0], to[1][2*n:], 2*testChunk, chunks*testChunk))
			} else {
				require.EqualValues(t, chunks, held)
				e.requireKV(tokens[0], to, 0, chunks*testChunk)
			}
			// A shorter hit has its window elsewhere.
			short := e.keyOf("b", tokens[:3*testChunk])
			e.wipe()
			require.Equal(t, 3, e.lookup(short))
			require.True(t, e.retrieveKV(short, to, testChunk+e.blockSlots))
			n := testChunk / e.blockSlots
			for g := range groups {
				require.Zero(t, e.wrong(g, tokens[0], to[g][n+1:3*n], testChunk+e.blockSlots, 3*testChunk), "group %d", g)
				require.Equal(t, testChunk+e.blockSlots, e.wrong(g, tokens[0], to[g], 0, 3*testChunk), "group %d", g)
			}
			e.end("a")
			e.end("b")
			idle(t, s)
		})
	}
	t.Run("one object", func(t *testing.T) { run(t, false, chunks) })
	t.Run("separate", func(t *testing.T) { run(t, true, 2*chunks) })
}

// Of a window below a chunk only its tokens are kept.
func TestWindowBelowAChunk(t *testing.T) {
	groups := []kvGroup{{layers: 1, heads: 2, headBytes: 8}, {layers: 2, heads: 2, headBytes: 8, window: testChunk / 2}}
	onDevices(t, func(o *Options) { o.SeparateObjectGroups = true }, func(t *testing.T, s *Server) {
		e := newEngine(t, s, 1, false, groups)
		e.registerKV()
		tokens := prompt(1, 2*testChunk)
		from, to := e.ids(4, 2), e.ids(32, 2)
		e.write(tokens[0], from, 0, 2*testChunk)
		k := e.keyOf("a", tokens)
		require.True(t, e.storeKV(k, from))
		require.Equal(t, 2, e.lookup(k))
		require.True(t, e.retrieveKV(k, to, 0))
		require.Zero(t, e.wrong(0, tokens[0], to[0], 0, 2*testChunk))
		require.Equal(t, 2*testChunk-testChunk/2, e.wrong(1, tokens[0], to[1], 0, 2*testChunk), "only the window is loaded")
		e.end("a")
		idle(t, s)
	})
}

// Auxiliary groups are stored and count for nothing else.
func TestAuxiliaryGroups(t *testing.T) {
	groups := []kvGroup{{layers: 1, heads: 2, headBytes: 8, tag: 1}, {layers: 2, heads: 2, headBytes: 8}}
	onDevices(t, func(o *Options) { o.SeparateObjectGroups = true }, func(t *testing.T, s *Server) {
		e := newEngine(t, s, 1, false, groups)
		e.registerKV()
		tokens := prompt(1, 2*testChunk)
		from, to := e.ids(4, 2), e.ids(32, 2)
		e.write(tokens[0], from, 0, 2*testChunk)
		k := e.keyOf("a", tokens)
		require.True(t, e.storeKV(k, from))
		require.EqualValues(t, 4, s.cache.Stats().Resident)
		require.Equal(t, 2, e.lookup(k))
		require.EqualValues(t, 2, s.cache.Stats().LeaseHolds, "none on auxiliary objects")
		require.True(t, e.retrieveKV(k, to, 0))
		require.Zero(t, e.wrong(1, tokens[0], to[1], 0, 2*testChunk))
		require.Equal(t, 2*testChunk, e.wrong(0, tokens[0], to[0], 0, 2*testChunk), "an auxiliary group was loaded")
		e.end("a")
		idle(t, s)
	})
}

// A retrieve of a worker that is not registered ends the holds of its hit.
func TestRetrieveOfAnUnknownWorkerEndsItsHolds(t *testing.T) {
	s := startServer(t, nil)
	e, gone := newEngine(t, s, 1, false, oneGroup), newEngine(t, s, 2, false, oneGroup)
	e.registerKV()
	tokens := prompt(1, 2*testChunk)
	ids := e.ids(4, 2)
	require.True(t, e.storeKV(e.keyOf("a", tokens), ids))
	require.Equal(t, 2, e.lookup(e.keyOf("a", tokens)))
	require.False(t, gone.retrieveKV(gone.keyOf("a", tokens), ids, 0))
	require.False(t, gone.storeKV(gone.keyOf("b", prompt(2, testChunk)), ids))
	require.Zero(t, s.cache.Stats().LeaseHolds)
}

// A store that does not fit says so, and leaves nothing behind.
func TestStoreThatDoesNotFit(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, func(o *Options) {
		o.L1.SizeBytes, o.L1.EvictionPolicy = 4*4096, EvictNone
	})
	e := newEngine(t, s, 1, false, oneGroup)
	e.registerKV()
	tokens := prompt(1, 6*testChunk)
	require.False(t, e.storeKV(e.keyOf("a", tokens), e.ids(4, 6)))
	require.Empty(t, dev.Trace(), "nothing was copied")
	require.Zero(t, s.cache.Stats().UsedBytes)
	short := e.keyOf("b", tokens[:4*testChunk])
	require.True(t, e.storeKV(short, e.ids(4, 4)))
	require.Equal(t, 4, e.lookup(short))
	e.end("b")
}
