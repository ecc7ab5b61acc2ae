package mpserver

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// The experiments that were made with the reference's L1, through the protocol:
// a pool of 10737418 bytes and objects of 262144, so that 40 fit.

const (
	labChunk  = 256
	labObject = 262144
)

// lab is a server of that size whose store's clock and turns a test moves.
type lab struct {
	*peer
	s     *Server
	ticks chan time.Time
	ahead atomic.Int64 // how far the store's clock is before the real one
}

func newLab(t *testing.T, change func(*Options)) *lab {
	t.Helper()
	l := &lab{ticks: make(chan time.Time)}
	l.s = startServer(t, func(o *Options) {
		o.HTTPPort, o.ChunkSize, o.L1.SizeBytes, o.L1.ShmName = 0, labChunk, 10737418, shmName(t)
		o.l1Ticks = l.ticks
		o.l1Now = func() time.Time { return time.Now().Add(time.Duration(l.ahead.Load())) }
		if change != nil {
			change(o)
		}
	})
	l.peer = connect(t, l.s)
	c := wire.EngineDrivenContext{InstanceID: 4242, Model: testModel, WorldSize: 1, BlockSize: 16, NumLayers: 4, HiddenDim: 64, DType: "bfloat16"}
	_, refused := l.call(wire.OpRegisterEngineDriven, wire.AppendEngineDrivenContext(nil, &c))
	require.False(t, refused)
	return l
}

// key is the key of the first n chunks of the prompt with that seed.
func (l *lab) key(id string, seed uint64, n int) wire.Key {
	tokens := prompt(seed, n*labChunk)
	k := keyOf(id, tokens)
	k.End = len(tokens)
	return k
}

// put stores n chunks of a prompt.
func (l *lab) put(seed uint64, n int) {
	l.t.Helper()
	k := l.key(fmt.Sprint("put", seed, n), seed, n)
	require.NotEmpty(l.t, l.prepareStore(k, 4242).Slots)
	require.True(l.t, l.commitStore(k, 4242))
}

// hit is what a lookup finds; its holds end at once.
func (l *lab) hit(seed uint64, n int) int {
	l.t.Helper()
	k := l.key(fmt.Sprint("hit", seed, n), seed, n)
	found := l.lookup(k)
	l.none(wire.OpFreeLookupLocks, keyFrame(scheduler(k)), intFrame(1))
	return found
}

// turn is one turn of the background loop, and returns after it.
func (l *lab) turn() {
	l.ticks <- time.Now()
	l.ticks <- time.Now() // taken when the first turn is over
}

// l1 is storage_manager.l1_manager of /status.
func (l *lab) l1() map[string]any {
	l.t.Helper()
	return get(l.t, l.s, "/status")["storage_manager"].(map[string]any)["l1_manager"].(map[string]any)
}

func (l *lab) count(key string) int {
	l.t.Helper()
	return int(l.l1()[key].(float64))
}

// TestLabEviction: 33 objects are above the watermark; one turn evicts a fifth,
// the chunks at the end of the request that was used longest ago.
func TestLabEviction(t *testing.T) {
	l := newLab(t, nil)
	for seed := range uint64(4) {
		l.put(seed+1, 8)
	}
	require.Equal(t, 8, l.hit(1, 8))
	l.turn()
	require.Equal(t, 32, l.count("total_object_count"), "exactly 0.78 of the pool")
	l.put(5, 1)
	require.Equal(t, 33, l.count("total_object_count"))
	require.InDelta(t, 0.8056, l.l1()["memory_usage_ratio"], 0.0001)
	l.turn()
	require.Equal(t, 27, l.count("total_object_count"))
	l.turn()
	require.Equal(t, 27, l.count("total_object_count"), "below the watermark nothing happens")
	require.Equal(t, 8, l.hit(1, 8))
	require.Equal(t, 2, l.hit(2, 8))
	require.Equal(t, 8, l.hit(3, 8))
	require.Equal(t, 8, l.hit(4, 8))
	m := series(t, l.s)
	require.Equal(t, "6", m[`lmcache_mp_l1_evicted_chunks_total{l1_tag="_default"}`])
	require.Equal(t, "1", m[`lmcache_mp_l1_eviction_loop_triggered_total`])
}

// TestLabCapacity: 40 objects and not one more; where the reference drops a store
// that does not fit, ours makes room for it.
func TestLabCapacity(t *testing.T) {
	l := newLab(t, nil)
	l.put(1, 40)
	require.Equal(t, 40*labObject, l.count("memory_used_bytes"))
	l.put(2, 15)
	require.Equal(t, 40, l.count("total_object_count"))
	require.Equal(t, 15, l.hit(2, 15))
	require.Equal(t, 25, l.hit(1, 40), "the prefix survives")

	l = newLab(t, func(o *Options) { o.L1.EvictionPolicy, o.L1.ShmName = EvictNone, o.L1.ShmName+"-noop" })
	l.put(1, 40)
	require.False(t, l.prepareStore(l.key("full", 2, 1), 4242).Present)
	require.False(t, l.commitStore(l.key("full", 2, 1), 4242), "the reference answers true and has stored nothing")
	require.Equal(t, 40, l.hit(1, 40))
}

// TestLabClear: an unforced clear leaves what a request holds, a forced one
// leaves nothing.
func TestLabClear(t *testing.T) {
	for _, from := range []string{"http", "rpc"} {
		l := newLab(t, func(o *Options) { o.L1.ShmName += from })
		clearL1 := func(force bool) {
			t.Helper()
			if from == "rpc" {
				l.none(wire.OpClear, boolFrame(force))
				return
			}
			status, _, body := ask(t, l.s, "POST", "/cache/clear", fmt.Sprintf(`{"tier":"l1","force":%v}`, force))
			require.Equal(t, 200, status, body)
		}
		l.put(1, 25)
		l.put(2, 4)
		held := l.key("held", 2, 4)
		require.Equal(t, 4, l.lookup(held))
		require.Equal(t, 4, l.count("read_locked_count"))
		clearL1(false)
		require.Equal(t, 4, l.count("total_object_count"))
		require.True(t, l.prepareRetrieve(held, 4242).Success, "the pending retrieve is honoured")
		require.True(t, l.commitRetrieve(held, 4242))

		again := l.key("again", 2, 4)
		require.Equal(t, 4, l.lookup(again))
		staged := l.key("staged", 3, 2)
		require.Len(t, l.prepareStore(staged, 4242).Slots, 2)
		require.Equal(t, []int{6, 2, 2}, []int{l.count("total_object_count"), l.count("write_locked_count"), l.count("staging_object_count")})
		clearL1(true)
		require.Zero(t, l.count("total_object_count"))
		require.False(t, l.prepareRetrieve(again, 4242).Success, "and after a forced one it is not")
		require.False(t, l.commitStore(staged, 4242), "what was being written is not published")
		require.Zero(t, l.hit(3, 2))
		require.Zero(t, l.count("memory_used_bytes"))
	}
}

// TestLabReadTTL: a retrieve after the read TTL fails although the object is there.
func TestLabReadTTL(t *testing.T) {
	l := newLab(t, func(o *Options) { o.L1.ReadTTL = 2 * time.Second })
	l.put(1, 2)
	k := l.key("late", 1, 2)
	require.Equal(t, 2, l.lookup(k))
	l.ahead.Add(int64(2200 * time.Millisecond))
	require.False(t, l.prepareRetrieve(k, 4242).Success)
	require.Equal(t, 2, l.count("total_object_count"))
	in := l.key("in time", 1, 2)
	require.Equal(t, 2, l.lookup(in))
	l.ahead.Add(int64(1800 * time.Millisecond))
	require.True(t, l.prepareRetrieve(in, 4242).Success)
	l.ahead.Add(int64(time.Hour)) // and from there on no clock matters
	require.True(t, l.commitRetrieve(in, 4242))
}

// TestLabDoublePrepare: while a chunk is in one writer's hands nobody else gets it.
func TestLabDoublePrepare(t *testing.T) {
	l := newLab(t, nil)
	first, second := l.key("first", 1, 3), l.key("second", 1, 4)
	require.Len(t, l.prepareStore(first, 4242).Slots, 3)
	r := l.prepareStore(second, 4242)
	require.True(t, r.Present)
	require.Equal(t, []int{3}, r.ChunkIndices, "only the chunk that nobody has")
	require.Empty(t, l.prepareStore(first, 4242).Slots, "not even the same request twice")
	require.True(t, l.commitStore(first, 4242))
	require.False(t, l.commitStore(first, 4242), "the second commit has nothing")
	require.Equal(t, 3, l.hit(1, 4))
	require.True(t, l.commitStore(second, 4242))
	require.Equal(t, 4, l.hit(1, 4))
}

// TestLabCommitAfterExpiry: a commit after the write TTL publishes nothing, and
// nobody else's buffer either; the reference answers true to it.
func TestLabCommitAfterExpiry(t *testing.T) {
	l := newLab(t, func(o *Options) { o.L1.WriteTTL = 2 * time.Second })
	slow, quick := l.key("slow", 1, 2), l.key("quick", 1, 2)
	a := l.prepareStore(slow, 4242)
	require.Len(t, a.Slots, 2)
	l.ahead.Add(int64(2200 * time.Millisecond))
	b := l.prepareStore(quick, 4242)
	require.Len(t, b.Slots, 2, "the keys are free again")
	for _, x := range a.Slots {
		for _, y := range b.Slots {
			require.NotEqual(t, x.Offset, y.Offset, "but not the memory that the slow one may still write to")
		}
	}
	require.False(t, l.commitStore(slow, 4242))
	require.Zero(t, l.hit(1, 2))
	require.True(t, l.commitStore(quick, 4242))
	require.Equal(t, 2, l.hit(1, 2))
	testutil.Eventually(t, "both chunks are counted", func() bool { return series(t, l.s)[`lmcache_go_expired_leases_total{kind="write"}`] == "2" })
}

// TestLabSalts: a salted copy is another object.
func TestLabSalts(t *testing.T) {
	l := newLab(t, nil)
	for _, salt := range []string{"", "tenantA"} {
		k := l.key("r"+salt, 1, 4)
		k.Salt = salt
		require.Len(t, l.prepareStore(k, 4242).Slots, 4)
		require.True(t, l.commitStore(k, 4242))
	}
	require.Equal(t, []int{8, 8 * labObject}, []int{l.count("total_object_count"), l.count("memory_used_bytes")})
	require.InDelta(t, 4*labObject/float64(1<<30), get(t, l.s, "/quota/_default")["current_usage_gb"], 1e-12)
}

// TestLabPolicies: the other policies serve, and are told by their names.
func TestLabPolicies(t *testing.T) {
	policy := func(l *lab) any {
		return get(l.t, l.s, "/status")["storage_manager"].(map[string]any)["eviction_controller"].(map[string]any)["eviction_policy"]
	}
	l := newLab(t, func(o *Options) { o.L1.EvictionPolicy = EvictARC })
	require.Equal(t, "ARC", policy(l))
	l.put(1, 8)
	require.Equal(t, 8, l.hit(1, 8))
	for seed := range uint64(20) {
		l.put(100+seed, 4) // twice the pool, and each once
	}
	require.Equal(t, 8, l.hit(1, 8), "what was found again stays")

	l = newLab(t, func(o *Options) { o.L1.EvictionPolicy, o.L1.ShmName = EvictIsolated, o.L1.ShmName+"-isolated" })
	require.Equal(t, "IsolatedLRU", policy(l))
	salted := func(salt string, seed uint64, n int) {
		t.Helper()
		k := l.key(fmt.Sprint(salt, seed), seed, n)
		k.Salt = salt
		require.Len(t, l.prepareStore(k, 4242).Slots, n)
		require.True(t, l.commitStore(k, 4242))
	}
	usage := func(salt string) int {
		t.Helper()
		return int(get(t, l.s, "/quota/"+salt)["current_usage_gb"].(float64)*(1<<30)+0.5) / labObject
	}
	status, _, _ := ask(t, l.s, "PUT", "/quota/small", fmt.Sprintf(`{"limit_gb":%v}`, 10*labObject/float64(1<<30)))
	require.Equal(t, 200, status)
	salted("large", 1, 20)
	for seed := range uint64(5) {
		salted("small", 10+seed, 4)
		require.LessOrEqual(t, usage("small"), 10)
	}
	require.Equal(t, 20, usage("large"), "the other tenant lost nothing")
	l.turn()
	l.turn()
	require.Equal(t, 7, usage("small"), "below the watermark of its quota")
	status, _, _ = ask(t, l.s, "DELETE", "/quota/small", "")
	require.Equal(t, 200, status)
	salted("small", 50, 10)
	require.Equal(t, 17, usage("small"), "without a quota there is no limit")
}
