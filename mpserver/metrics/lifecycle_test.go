package metrics

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLifecycle(t *testing.T) {
	m := New(Options{})
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	a, b := ObjectID{Model: "a"}, ObjectID{Model: "a", Rank: 1}
	m.ObjectStored(a, at(0))
	m.ObjectRead(a, at(4))  // gap 4
	m.ObjectRead(a, at(24)) // gap 20
	m.ObjectGone(a, at(100))
	m.ObjectGone(a, at(101))   // not there any more
	m.ObjectRead(b, at(101))   // never stored
	m.ObjectStored(a, at(110)) // back after 10
	m.ObjectStored(b, at(110))
	m.ObjectGone(b, at(120))
	m.ObjectGone(a, at(200)) // lived 90
	m.ObjectStored(ObjectID{Model: "x"}, at(419.9))
	got := scrape(t, m)
	f := func(name string, count, sum float64) {
		t.Helper()
		require.Equal(t, []float64{count, sum}, []float64{got[name+`_count{l1_tag="_default"}`], got[name+`_sum{l1_tag="_default"}`]}, name)
	}
	f("lmcache_mp_l1_chunk_lifetime_seconds", 3, 100+10+90)
	f("lmcache_mp_l1_chunk_idle_before_evict_seconds", 3, 76+10+90)
	f("lmcache_mp_l1_chunk_reuse_gap_seconds", 2, 24)
	f("lmcache_mp_l1_chunk_evict_reuse_gap_seconds", 1, 10)
	require.Equal(t, 1.0, got[`lmcache_mp_l1_chunk_reuse_gap_seconds_bucket{l1_tag="_default",le="5"}`])

	m.ObjectStored(a, at(600)) // both waited for 300 s: capped, and a is new again
	got = scrape(t, m)
	f("lmcache_mp_l1_chunk_evict_reuse_gap_seconds", 3, 10+300+300)
	require.Empty(t, m.life.gone)
	require.Empty(t, m.life.queue)
}

func TestLifecycleIsBounded(t *testing.T) {
	m := New(Options{})
	now := time.Unix(1000, 0)
	for i := range maxGone + 10 {
		id := ObjectID{Group: i}
		m.ObjectStored(id, now)
		m.ObjectGone(id, now)
	}
	require.Len(t, m.life.queue, maxGone)
	require.Len(t, m.life.gone, maxGone)
	require.Empty(t, m.life.alive)
}
