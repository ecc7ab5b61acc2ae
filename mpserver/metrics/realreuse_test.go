package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRealReuse(t *testing.T) {
	m := New(Options{MaxPairs: 2})
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	id := func(salt string) ObjectID { return ObjectID{Model: "m", Salt: salt} }
	// As the store tells it: the sample first, then the counts.
	write := func(salt string, s, n int) { m.ObjectStored(id(salt), at(s)); m.L1Written(salt, n) }
	read := func(salt string, s, n int) { m.ObjectRead(id(salt), at(s)); m.L1Read(salt, n) }
	write("", 0, 4)
	read("", 3, 4)
	m.L1Read("", 10)
	m.L1Read("another", 1000) // of another salt
	m.ObjectGone(id(""), at(10))
	read("", 60, 4) // it counts on
	write("", 70, 4)
	read("", 71, 4)
	write("a", 0, 1)
	read("a", 7, 1)
	group := id("")
	group.Group = 1
	m.ObjectRead(group, at(80))
	read("never written", 5, 1)
	got := scrape(t, m)
	f := func(salt string, count, seconds, objects float64) {
		t.Helper()
		label := fmt.Sprintf("{cache_salt=%q}", salt)
		require.Equal(t, []float64{count, seconds}, []float64{got["lmcache_mp_real_reuse_gap_seconds_count"+label], got["lmcache_mp_real_reuse_gap_seconds_sum"+label]}, salt)
		require.Equal(t, []float64{count, objects}, []float64{got["lmcache_mp_real_reuse_gap_objects_count"+label], got["lmcache_mp_real_reuse_gap_objects_sum"+label]}, salt)
	}
	f("", 3, 3+57+1, 4+14+4)
	f("a", 1, 7, 1)
	require.Equal(t, 2.0, got[`lmcache_mp_real_reuse_gap_seconds_bucket{cache_salt="",le="5"}`])

	// Salts past the limit share one series.
	for i := range 3 {
		salt := fmt.Sprint("late", i)
		write(salt, 0, 1)
		read(salt, 1, 1)
	}
	require.Equal(t, 3.0, scrape(t, m)[`lmcache_mp_real_reuse_gap_seconds_count{cache_salt="other"}`])
}

func TestRealReuseIsBounded(t *testing.T) {
	m := New(Options{})
	for i := range maxReused + 10 {
		var id ObjectID
		id.Rank = uint32(i)
		m.ObjectStored(id, time.Unix(0, 0))
	}
	require.Len(t, m.reuse.at, maxReused)
}
