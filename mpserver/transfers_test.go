package mpserver

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/mpserver/torchpickle"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

func shared(t *testing.T) func(*Options) {
	t.Helper()
	name := fmt.Sprintf("test-%d-%s", os.Getpid(), t.Name())
	return func(o *Options) { o.L1.ShmName = name }
}

func TestStoreAndRetrieveThroughSlots(t *testing.T) {
	s := startServer(t, shared(t))
	p := connect(t, s)
	require.Equal(t, s.arena.ShmName(), p.register(1))
	tokens := prompt(1, 4*testChunk+3)
	k := keyOf("a", tokens)
	require.Zero(t, p.lookup(k))
	p.store(s, k, 1, tokens)
	again := p.prepareStore(k, 1)
	require.True(t, again.Present)
	require.Empty(t, again.Slots, "resident chunks count as stored")
	p.end("a")

	k.RequestID = "b"
	require.False(t, p.prepareRetrieve(k, 1).Success, "no lookup, no hold")
	require.Equal(t, 4, p.lookup(k))
	require.Zero(t, p.query("b"), "a result is told once")
	r := p.prepareRetrieve(k, 1)
	requirePattern(t, s, r, tokens[0])
	require.True(t, p.commitRetrieve(k, 1))
	require.False(t, p.prepareRetrieve(k, 1).Success, "one reader, one retrieve")
	p.end("b")
	require.Zero(t, s.cache.Stats().LeaseHolds)

	longer := keyOf("c", append(append([]uint32{}, tokens[:4*testChunk]...), prompt(2, testChunk)...))
	require.Equal(t, 4, p.lookup(longer))
	p.end("c")
}

// An END_SESSION of the scheduler's socket may overtake the worker's retrieve.
func TestRetrieveAfterEndSessionIsServed(t *testing.T) {
	s := startServer(t, shared(t))
	worker, sched := connect(t, s), connect(t, s)
	worker.register(1)
	tokens := prompt(1, 3*testChunk)
	k := keyOf("a", tokens)
	worker.store(s, k, 1, tokens)
	require.Equal(t, 3, sched.lookup(k))
	sched.end("a")
	requirePattern(t, s, worker.prepareRetrieve(k, 1), tokens[0])
	require.True(t, worker.commitRetrieve(k, 1))
	require.Zero(t, s.cache.Stats().LeaseHolds)
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	require.Zero(t, s.sessions.lru.Len(), "nothing is left of the request")
}

// The grace after END_SESSION ends by itself, and so does a hit that nobody
// comes for.
func TestHoldsEndByTime(t *testing.T) {
	s := startServer(t, shared(t))
	p := connect(t, s)
	p.register(1)
	tokens := prompt(1, 2*testChunk)
	k := keyOf("ended", tokens)
	p.store(s, k, 1, tokens)
	require.Equal(t, 2, p.lookup(k))
	p.end("ended")
	k.RequestID = "lost"
	require.Equal(t, 2, p.lookup(k))
	require.EqualValues(t, 4, s.cache.Stats().LeaseHolds)
	s.sweep(time.Now().Add(s.opt.SessionGrace + time.Second))
	require.EqualValues(t, 2, s.cache.Stats().LeaseHolds, "the grace has passed, the read TTL has not")
	p.boolean(wire.OpPing, intFrame(1))
	s.sweep(time.Now().Add(s.opt.L1.ReadTTL + time.Second))
	require.Zero(t, s.cache.Stats().LeaseHolds)
}

// A second LOOKUP with one id (an engine that preempts) replaces the result;
// both hits can be retrieved, and nothing leaks.
func TestSecondLookupWithOneID(t *testing.T) {
	s := startServer(t, shared(t))
	p := connect(t, s)
	p.register(1)
	tokens := prompt(1, 2*testChunk)
	k := keyOf("a", tokens)
	p.store(s, k, 1, tokens)
	require.Equal(t, 2, p.lookup(k))
	require.Equal(t, 2, p.lookup(k))
	for range 2 {
		require.True(t, p.prepareRetrieve(k, 1).Success)
		require.True(t, p.commitRetrieve(k, 1))
	}
	require.False(t, p.prepareRetrieve(k, 1).Success)
	p.end("a")
	require.Zero(t, s.cache.Stats().LeaseHolds)
}

// Tokens that change under one id are other chunks: the reference serves the
// first list's.
func TestTokensChangeUnderOneID(t *testing.T) {
	s := startServer(t, shared(t))
	p := connect(t, s)
	p.register(1)
	one, two := prompt(1, 2*testChunk), prompt(2, 2*testChunk)
	p.store(s, keyOf("a", one), 1, one)
	p.store(s, keyOf("a", two), 1, two)
	require.Equal(t, 2, p.lookup(keyOf("b", one)))
	require.False(t, p.prepareRetrieve(keyOf("b", two), 1).Success, "not what was looked up")
	requirePattern(t, s, p.prepareRetrieve(keyOf("b", one), 1), one[0])
	require.True(t, p.commitRetrieve(keyOf("b", one), 1))
}

// FREE_LOOKUP_LOCKS rounds inwards and belongs to its request.
func TestFreeLookupLocks(t *testing.T) {
	s := startServer(t, shared(t))
	p := connect(t, s)
	p.register(1)
	tokens := prompt(1, 4*testChunk)
	k := keyOf("a", tokens)
	p.store(s, k, 1, tokens)
	holds := func(want int64) { t.Helper(); require.Equal(t, want, s.cache.Stats().LeaseHolds) }
	free := func(id string, start, end int) {
		t.Helper()
		f := scheduler(keyOf(id, tokens))
		f.Start, f.End = start, end
		p.none(wire.OpFreeLookupLocks, keyFrame(f), intFrame(1))
	}
	require.Equal(t, 4, p.lookup(k))
	k.RequestID = "b"
	require.Equal(t, 4, p.lookup(k))
	holds(8)
	free("a", 1, 2*testChunk)
	holds(7)
	free("a", 1, testChunk+1)
	holds(7)
	free("a", -1, 4*testChunk)
	holds(7)
	free("a", 0, 100*testChunk)
	holds(4)
	free("a", 0, 4*testChunk)
	holds(4) // the reference would take b's
	require.True(t, p.prepareRetrieve(k, 1).Success)
	require.True(t, p.commitRetrieve(k, 1))
	holds(0)

	// Before the result was fetched it counts as fetched.
	k.RequestID = "c"
	p.none(wire.OpLookup, keyFrame(scheduler(k)), intFrame(1))
	free("c", 0, 4*testChunk)
	require.Zero(t, p.query("c"))
	holds(0)
}

// A lookup that meets a copy in flight waits for it, bounded.
func TestLookupWaitsForCopiesInFlight(t *testing.T) {
	s := startServer(t, func(o *Options) { o.PendingLookupTimeout = 100 * time.Millisecond })
	p := connect(t, s)
	p.register(1)
	tokens := prompt(1, 2*testChunk)
	k := keyOf("a", tokens)
	in := s.instances.get(1, true, nil, time.Now())
	pr, _, err := s.hasher.Prompt(k.Tokens, k.TokenCount)
	require.NoError(t, err)
	rank, _ := wire.KVRank(1, 0)
	tr := &transfer{requestKey: &requestKey{Key: k, prompt: pr}, in: in, rank: rank}
	res, err := s.reserve(t.Context(), tr, 0, pr.Chunks())
	require.NoError(t, err)
	res.BeginFill()

	p.none(wire.OpLookup, keyFrame(scheduler(k)), intFrame(1))
	v, _ := p.call(wire.OpQueryPrefetchStatus, strFrame("a"))
	require.Nil(t, v, "still loading")
	uid := p.send(wire.AppendOp(nil, wire.OpWaitPrefetchStatus), strFrame("a"), wire.AppendFloat(nil, 5))
	require.True(t, p.boolean(wire.OpPing, wire.AppendNil(nil)), "a wait delays nobody")
	require.Equal(t, 2, res.Publish(nil))
	require.Equal(t, [][]byte{uid, wire.AppendOp(nil, wire.OpWaitPrefetchStatus), intFrame(2)}, p.recv())
	require.Zero(t, p.query("a"), "told once")
	p.end("a")

	// One that is never finished counts as absent after the limit.
	other := keyOf("b", prompt(2, testChunk))
	pr, _, err = s.hasher.Prompt(other.Tokens, other.TokenCount)
	require.NoError(t, err)
	res, err = s.reserve(t.Context(), tr, 0, pr.Chunks())
	require.NoError(t, err)
	res.BeginFill()
	defer res.Abort()
	require.Zero(t, p.lookup(other))
}

func TestWaitPrefetchStatusTimesOutWithNone(t *testing.T) {
	s := startServer(t, nil)
	p := connect(t, s)
	s.sessions.begin("a", nil, time.Now())
	p.none(wire.OpWaitPrefetchStatus, strFrame("a"), wire.AppendFloat(nil, 0.02))
	p.none(wire.OpWaitPrefetchStatus, strFrame("a"), wire.AppendFloat(nil, -1))
	// END_SESSION answers who still waits.
	uid := p.send(wire.AppendOp(nil, wire.OpWaitPrefetchStatus), strFrame("a"), wire.AppendFloat(nil, 60))
	q := connect(t, s)
	testutil.Eventually(t, "the wait is parked", func() bool {
		s.sessions.mu.Lock()
		defer s.sessions.mu.Unlock()
		ses, ok := s.sessions.lru.Peek("a")
		return ok && ses.job != nil && len(ses.job.waiters) == 3
	})
	q.end("a")
	require.Equal(t, [][]byte{uid, wire.AppendOp(nil, wire.OpWaitPrefetchStatus), intFrame(0)}, p.recv())
}

func picklesOf(t *testing.T, first uint32, n int) []byte {
	t.Helper()
	d, _ := torchdtype.Lookup("uint8")
	enc, err := torchpickle.NewEncoder(d, []int64{2, 1, testChunk, 64})
	require.NoError(t, err)
	var chunks [][]byte
	for i := range n {
		chunks = append(chunks, pattern(first, i))
	}
	return enc.Append(nil, chunks)
}

func (p *peer) commitPickle(k wire.Key, data []byte) bool {
	p.t.Helper()
	return p.boolean(wire.OpCommitStore, keyFrame(k), intFrame(1), wire.AppendBytes(nil, data))
}

func TestStoreAndRetrieveByPickle(t *testing.T) {
	s := startServer(t, nil)
	p := connect(t, s)
	require.Empty(t, p.register(1))
	tokens := prompt(1, 3*testChunk)
	k := keyOf("a", tokens)
	require.False(t, p.prepareStore(k, 1).Present)
	require.False(t, p.commitPickle(k, []byte("junk")))
	require.False(t, p.commitPickle(k, picklesOf(t, tokens[0], 2)), "one chunk is missing")
	require.True(t, p.commitPickle(k, picklesOf(t, tokens[0], 3)), "a retry stores what was missing")
	require.Equal(t, 3, p.lookup(k))
	r := p.prepareRetrieve(k, 1)
	require.True(t, r.Success)
	got, err := torchpickle.Parse(r.Data)
	require.NoError(t, err)
	require.Len(t, got, 3)
	for i := range got {
		buf := make([]byte, testObject)
		require.NoError(t, got[i].CopyTo(buf))
		require.Equal(t, pattern(tokens[0], i), buf)
	}
	require.True(t, p.commitRetrieve(k, 1), "a no-op")
	p.end("a")
	require.Zero(t, s.cache.Stats().LeaseHolds)
}

// A client that could not map the pool prepares like the others and then sends
// a pickle: it goes into the prepared slots.
func TestPickleIntoPreparedSlots(t *testing.T) {
	s := startServer(t, shared(t))
	p := connect(t, s)
	p.register(1)
	tokens := prompt(1, 2*testChunk)
	k := keyOf("a", tokens)
	require.Len(t, p.prepareStore(k, 1).Slots, 2)
	require.True(t, p.commitPickle(k, picklesOf(t, tokens[0], 2)))
	require.False(t, p.commitStore(k, 1), "nothing is left to commit")
	require.Equal(t, 2, p.lookup(k))
	requirePattern(t, s, p.prepareRetrieve(k, 1), tokens[0])
}

// A store without room says so instead of looking like one that was cached.
func TestStoreWithoutRoomFails(t *testing.T) {
	s := startServer(t, func(o *Options) {
		shared(t)(o)
		o.L1.SizeBytes = 8 * 4096
		o.L1.EvictionPolicy = EvictNone
	})
	p := connect(t, s)
	p.register(1)
	tokens := prompt(1, 6*testChunk)
	k := keyOf("a", tokens)
	p.store(s, k, 1, tokens)
	more := prompt(2, 6*testChunk)
	k2 := keyOf("b", more)
	require.False(t, p.prepareStore(k2, 1).Present)
	require.False(t, p.commitStore(k2, 1))
	require.False(t, p.commitPickle(k2, picklesOf(t, more[0], 6)))
	require.Equal(t, 6, p.lookup(k), "nothing was lost for it")
	require.EqualValues(t, 12, s.cache.Stats().NoSpace+s.cache.Stats().TooLarge)
}

func TestBadRangesAreMisses(t *testing.T) {
	s := startServer(t, shared(t))
	p := connect(t, s)
	p.register(1)
	tokens := prompt(1, 2*testChunk+1)
	f := func(change func(*wire.Key)) {
		t.Helper()
		k := keyOf("a", tokens)
		change(&k)
		require.False(t, p.prepareStore(k, 1).Present)
		require.False(t, p.commitStore(k, 1))
		require.False(t, p.prepareRetrieve(k, 1).Success)
	}
	f(func(k *wire.Key) { k.Start = 1 })
	f(func(k *wire.Key) { k.Start = -testChunk })
	f(func(k *wire.Key) { k.End = 2*testChunk + 1 })
	f(func(k *wire.Key) { k.End = 3 * testChunk })
	f(func(k *wire.Key) { k.HasWorker = false })
	f(func(k *wire.Key) { k.WorkerID = 1 })
	f(func(k *wire.Key) { k.WorldSize = 2 })
	f(func(k *wire.Key) { k.Model = "other" })
	k := keyOf("a", tokens)
	k.Start, k.End = testChunk, testChunk
	r := p.prepareStore(k, 1)
	require.True(t, r.Present, "an empty range has nothing to write")
	require.Empty(t, r.Slots)
}
