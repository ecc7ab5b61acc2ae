package metrics

import (
	"sync"
	"time"

	vm "github.com/VictoriaMetrics/metrics"
)

// maxReused bounds the objects whose latest access is remembered (lmcache 0.5.6,
// v1/mp_observability/subscribers/metrics/sm_lifecycle.py has a cap as well).
const maxReused = 1 << 16

// gapBounds are OpenTelemetry's defaults, which the reference leaves these
// histograms with.
var gapBounds = []float64{0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000}

// realReuse tells how far apart the accesses to one object are, in time and in
// accesses of the same salt: what a pool of which size would have hit. Unlike
// [lifecycle] it goes on over the end of an object: one that is stored again
// counts from there.
type realReuse struct {
	set *vm.Set
	by  *table[string, *gaps] // by salt
	mu  sync.Mutex
	at  map[ObjectID]access // guarded by mu
}

type gaps struct{ seconds, objects *vm.PrometheusHistogram }

// access is when, and as the how-manieth of its salt.
type access struct {
	when  time.Time
	count uint64
}

func newRealReuse(s *vm.Set, limit int) *realReuse {
	return &realReuse{set: s, by: newTable[string, *gaps](limit), at: map[ObjectID]access{}}
}

// written and read note accesses to an object of the sample. count is how many
// accesses its salt had before.
func (r *realReuse) written(id ObjectID, now time.Time, count uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(id, access{now, count})
}

func (r *realReuse) read(id ObjectID, now time.Time, count uint64) {
	if id.Group != 0 {
		return // read together with the first group of its chunk
	}
	r.mu.Lock()
	last, ok := r.at[id]
	r.note(id, access{now, count})
	r.mu.Unlock()
	if !ok {
		return
	}
	g := r.gaps(id.Salt)
	g.seconds.Update(now.Sub(last.when).Seconds())
	if count >= last.count {
		g.objects.Update(float64(count - last.count))
	}
}

// note remembers the latest access. At the limit an object makes room, and it
// does not matter which. mu is held.
func (r *realReuse) note(id ObjectID, a access) {
	if _, ok := r.at[id]; !ok && len(r.at) >= maxReused {
		for other := range r.at {
			delete(r.at, other)
			break
		}
	}
	r.at[id] = a
}

func (r *realReuse) gaps(salt string) *gaps {
	build := func(salt string) *gaps {
		h := func(name string) *vm.PrometheusHistogram {
			return r.set.GetOrCreatePrometheusHistogramExt(series(name, "cache_salt", salt), gapBounds)
		}
		return &gaps{seconds: h(nameRealReuseSeconds), objects: h(nameRealReuseObjects)}
	}
	if usable(salt) {
		if g, ok := r.by.get(salt, func() (string, *gaps) { return cloneString(salt), build(salt) }); ok {
			return g
		}
	}
	return build(Other)
}

// accesses is how many chunks of a salt were stored and read so far.
func (m *Metrics) accesses(salt string) uint64 { return m.l1Write.value(salt) + m.l1Read.value(salt) }

// value is the count of a salt.
func (c *saltCounters) value(salt string) uint64 {
	if salt == "" {
		return c.none.Get()
	}
	if v, ok := c.by.lookup(salt); ok {
		return v.Get()
	}
	if over := c.over.Load(); over != nil {
		return over.Get()
	}
	return 0
}
