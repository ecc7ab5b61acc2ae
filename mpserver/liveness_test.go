package mpserver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

func TestPingTellsAnUnknownWorkerOnce(t *testing.T) {
	s := startServer(t, shared(t))
	p := connect(t, s)
	ping := func(id int64) bool { t.Helper(); return p.boolean(wire.OpPing, intFrame(id)) }
	require.False(t, ping(7))
	require.True(t, ping(7))
	p.register(7)
	require.True(t, ping(7))
	p.none(wire.OpUnregisterEngineDriven, intFrame(7))
	require.False(t, ping(7), "unregistered: told again")
	require.True(t, ping(7))
	p.register(7)
	ping(7)
	s.sweep(time.Now().Add(s.opt.WorkerReapTimeout + time.Second))
	require.False(t, ping(7), "reaped: told again")
	require.True(t, p.boolean(wire.OpPing, wire.AppendNil(nil)), "a scheduler is nobody's worker")
	for id := range int64(maxStrangers + 10) {
		ping(1000 + id)
	}
	s.instances.mu.Lock()
	defer s.instances.mu.Unlock()
	require.LessOrEqual(t, s.instances.strangers.Len(), maxStrangers)
}

// A worker that has pinged is dropped after the reap timeout, one that has not
// only after the grace.
func TestReaperBudgets(t *testing.T) {
	s := startServer(t, shared(t))
	p := connect(t, s)
	p.register(1)
	p.register(2)
	require.True(t, p.boolean(wire.OpPing, intFrame(2)))
	registered := func() (ids []int64) { return s.Status().RegisteredNonCUDAInstanceIDs }
	require.Equal(t, []int64{1, 2}, registered())
	s.sweep(time.Now().Add(s.opt.WorkerReapTimeout + time.Second))
	require.Equal(t, []int64{1}, registered())
	s.sweep(time.Now().Add(s.opt.WorkerRegistrationGrace + time.Second))
	require.Empty(t, registered())
	lay, _ := s.instances.model(testModel, 1)
	require.Nil(t, lay)
	require.Zero(t, p.lookup(keyOf("a", prompt(1, testChunk))), "lookups of a model without workers count 0")
}

// A client that dies between PREPARE and COMMIT gives its slots back within
// the grace, and others can store the same chunks.
func TestDeadClientGivesItsSlotsBack(t *testing.T) {
	s := startServer(t, func(o *Options) { shared(t)(o); o.ConnectionGrace = 50 * time.Millisecond })
	dead, other := connect(t, s), connect(t, s)
	dead.register(1)
	other.register(2)
	tokens := prompt(1, 3*testChunk)
	k := keyOf("a", tokens)
	require.Len(t, dead.prepareStore(k, 1).Slots, 3)
	require.Empty(t, other.prepareStore(k, 2).Slots, "somebody is writing them")
	dead.close()
	testutil.Eventually(t, "the slots are back", func() bool { return s.cache.Stats().Reserved == 0 })
	require.Zero(t, s.cache.Stats().UsedBytes)
	other.store(s, k, 2, tokens)
	require.Equal(t, 3, other.lookup(k))
}

// A worker that was silent for too long but whose process may live (SIGSTOP)
// still owns the memory in its hands: nobody gets it, its late commit is
// refused, and then it is free.
func TestSilentWorkersSlotsAreKeptApart(t *testing.T) {
	s := startServer(t, shared(t))
	stopped, other := connect(t, s), connect(t, s)
	stopped.register(1)
	require.True(t, stopped.boolean(wire.OpPing, intFrame(1)))
	tokens := prompt(1, 2*testChunk)
	k := keyOf("a", tokens)
	held := stopped.prepareStore(k, 1).Slots
	require.Len(t, held, 2)
	s.sweep(time.Now().Add(s.opt.WorkerReapTimeout + time.Second))
	require.EqualValues(t, 2, s.cache.Stats().Quarantined)

	other.register(2)
	other.store(s, k, 2, tokens) // the keys are free for others, in other memory
	copy(s.arena.Bytes()[held[0].Offset:], make([]byte, testObject))
	copy(s.arena.Bytes()[held[1].Offset:], make([]byte, testObject))
	require.Equal(t, 2, other.lookup(k))
	requirePattern(t, s, other.prepareRetrieve(k, 2), tokens[0])
	require.True(t, other.commitRetrieve(k, 2))

	// It wakes up, registers again, and commits what it prepared before: the
	// same name must not publish a newer reservation either.
	stopped.register(1)
	require.Empty(t, stopped.prepareStore(k, 1).Slots)
	require.False(t, stopped.commitStore(k, 1))
	require.Zero(t, s.cache.Stats().Quarantined)
	require.False(t, stopped.commitStore(k, 1))
}

// The same for one that read.
func TestSilentReadersMemoryIsKept(t *testing.T) {
	s := startServer(t, shared(t))
	p := connect(t, s)
	p.register(1)
	require.True(t, p.boolean(wire.OpPing, intFrame(1)))
	tokens := prompt(1, 2*testChunk)
	k := keyOf("a", tokens)
	p.store(s, k, 1, tokens)
	require.Equal(t, 2, p.lookup(k))
	r := p.prepareRetrieve(k, 1)
	requirePattern(t, s, r, tokens[0])
	s.sweep(time.Now().Add(s.opt.WorkerReapTimeout + time.Second))
	p.none(wire.OpClear, boolFrame(true))
	require.Zero(t, p.lookup(k))
	require.NotZero(t, s.cache.Stats().UsedBytes, "it may still read")
	requirePattern(t, s, r, tokens[0])
	require.False(t, p.commitRetrieve(k, 1))
	require.Zero(t, s.cache.Stats().UsedBytes)
}

// An expired reservation does not stand in the way of others, and its commit
// publishes nothing.
func TestExpiredReservation(t *testing.T) {
	s := startServer(t, func(o *Options) { shared(t)(o); o.L1.WriteTTL = 20 * time.Millisecond })
	slow, other := connect(t, s), connect(t, s)
	slow.register(1)
	other.register(2)
	tokens := prompt(1, testChunk)
	k := keyOf("a", tokens)
	require.Len(t, slow.prepareStore(k, 1).Slots, 1)
	testutil.Eventually(t, "others get slots", func() bool { return len(other.prepareStore(k, 2).Slots) == 1 })
	require.False(t, slow.commitStore(k, 1))
	require.Zero(t, slow.lookup(k), "neither of the two has published")
}

// A connection that has ended takes the hits of its requests with it.
func TestDeadSchedulersHitsYield(t *testing.T) {
	s := startServer(t, func(o *Options) {
		shared(t)(o)
		o.ConnectionGrace = 20 * time.Millisecond
		o.SessionGrace = 50 * time.Millisecond
	})
	worker, sched := connect(t, s), connect(t, s)
	worker.register(1)
	tokens := prompt(1, testChunk)
	k := keyOf("a", tokens)
	worker.store(s, k, 1, tokens)
	require.Equal(t, 1, sched.lookup(k))
	sched.close()
	testutil.Eventually(t, "the hold is gone", func() bool { return s.cache.Stats().LeaseHolds == 0 })
	active, _ := s.sessions.counts()
	require.Zero(t, active)
}

// A client that chose its identity and comes back under it is the same one.
func TestClientsComeAndGo(t *testing.T) {
	c := newClients()
	now := time.Now()
	p, q := &zmtp.Peer{}, &zmtp.Peer{}
	a, b := c.attach([]byte("a"), p), c.attach([]byte("b"), q)
	a.disconnected(p, now)
	require.True(t, a.isGone())
	require.False(t, b.isGone())
	require.Same(t, a, c.attach([]byte("a"), q))
	require.False(t, a.isGone())
	a.disconnected(p, now) // an earlier one
	require.False(t, a.isGone())
	a.disconnected(q, now)
	c.sweep(time.Minute, now.Add(time.Second))
	require.Same(t, a, c.get([]byte("a")))
	c.sweep(time.Second, now.Add(time.Hour))
	require.Nil(t, c.get([]byte("a")))
	require.Same(t, b, c.get([]byte("b")))
}

func TestConflictingLayoutIsRefused(t *testing.T) {
	s := startServer(t, nil)
	p := connect(t, s)
	p.register(1)
	c := wire.EngineDrivenContext{InstanceID: 2, Model: testModel, WorldSize: 1, BlockSize: testChunk, NumLayers: 1, HiddenDim: 64, DType: "float16"}
	_, refused := p.call(wire.OpRegisterEngineDriven, wire.AppendEngineDrivenContext(nil, &c))
	require.True(t, refused, "another dtype under the same model name")
	require.False(t, p.boolean(wire.OpPing, intFrame(2)), "it tries again at its next heartbeat")
	// The same worker may come back with another layout; its former objects
	// are not found under the new one.
	tokens := prompt(1, testChunk)
	k := keyOf("a", tokens)
	require.True(t, p.commitPickle(k, picklesOf(t, tokens[0], 1)))
	require.Equal(t, 1, p.lookup(k))
	c.InstanceID = 1
	_, refused = p.call(wire.OpRegisterEngineDriven, wire.AppendEngineDrivenContext(nil, &c))
	require.False(t, refused)
	k.RequestID = "b"
	require.Zero(t, p.lookup(k), "its bytes have another form")
}

func TestDegradedRegistration(t *testing.T) {
	s := startServer(t, func(o *Options) { o.OnRegisterFailure = RegisterDegrade })
	p := connect(t, s)
	p.register(1)
	tokens := prompt(1, testChunk)
	k := keyOf("a", tokens)
	require.True(t, p.commitPickle(k, picklesOf(t, tokens[0], 1)))
	c := wire.EngineDrivenContext{InstanceID: 2, Model: testModel, WorldSize: 1, BlockSize: testChunk, NumLayers: 1, HiddenDim: 64, DType: "float16"}
	_, refused := p.call(wire.OpRegisterEngineDriven, wire.AppendEngineDrivenContext(nil, &c))
	require.False(t, refused, "the engine starts")
	require.Zero(t, p.lookup(k), "but its model's lookups count 0")
	require.False(t, p.boolean(wire.OpPing, intFrame(2)))
	require.True(t, p.boolean(wire.OpPing, intFrame(2)))
	p.none(wire.OpUnregisterEngineDriven, intFrame(2))
	k.RequestID = "b"
	require.Equal(t, 1, p.lookup(k))
}

func TestHealthFollowsTheLoopAndTheGoroutines(t *testing.T) {
	s := startServer(t, nil)
	ok, reason := s.Health()
	require.True(t, ok, reason)
	s.health.lastAnswer.Store(time.Now().Add(-time.Minute).UnixNano())
	ok, reason = s.Health()
	require.False(t, ok)
	require.Contains(t, reason, "probe")
	testutil.Eventually(t, "the probe heals it", func() bool { ok, _ := s.Health(); return ok })
	s.tasks.run("short-lived", func(<-chan struct{}) {})
	testutil.Eventually(t, "an ended goroutine shows", func() bool { ok, _ := s.Health(); return !ok })
}
