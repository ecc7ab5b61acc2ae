package metrics

import (
	"sync"
	"time"

	vm "github.com/VictoriaMetrics/metrics"
)

// ObjectID names an object of the sample whose life is followed.
type ObjectID struct {
	Hash                [32]byte
	Model, Salt, Layout string
	Group               int
	Rank                uint32
}

// Limits of what is remembered of the sample.
const (
	maxFollowed = 1 << 18
	maxGone     = 1 << 16
	// maxComeback is how long an object that has gone is waited for; one that
	// does not come back counts as that long (lmcache 0.5.6,
	// v1/mp_observability/subscribers/metrics/l1_lifecycle.py).
	maxComeback = 300 * time.Second
)

// Bounds of the histograms, in seconds, the reference's (server-surface 10.1).
var (
	lifeBounds     = []float64{1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400}
	comebackBounds = []float64{1, 5, 15, 30, 60, 120, 300}
)

// lifecycle follows a sample of the objects in L1.
type lifecycle struct {
	lifetime, idle, reuse, comeback *vm.PrometheusHistogram

	mu    sync.Mutex
	alive map[ObjectID]life      // guarded by mu
	gone  map[ObjectID]time.Time // guarded by mu
	queue []goneAt               // guarded by mu: gone, oldest first
}

type life struct{ born, used time.Time }

type goneAt struct {
	id ObjectID
	at time.Time
}

func newLifecycle(s *vm.Set) *lifecycle {
	h := func(name string, bounds []float64) *vm.PrometheusHistogram {
		return s.NewPrometheusHistogramExt(series(name, "l1_tag", defaultTag), bounds)
	}
	return &lifecycle{
		lifetime: h(nameLifetime, lifeBounds), idle: h(nameIdle, lifeBounds), reuse: h(nameReuse, lifeBounds), comeback: h(nameComeback, comebackBounds),
		alive: map[ObjectID]life{}, gone: map[ObjectID]time.Time{},
	}
}

// ObjectStored notes that an object of the sample was published.
func (m *Metrics) ObjectStored(id ObjectID, now time.Time) {
	m.reuse.written(id, now, m.accesses(id.Salt))
	l := m.life
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(now)
	if at, ok := l.gone[id]; ok {
		delete(l.gone, id)
		l.comeback.Update(min(now.Sub(at), maxComeback).Seconds())
	}
	if len(l.alive) < maxFollowed {
		l.alive[id] = life{now, now}
	}
}

// ObjectRead notes that a read of an object of the sample has ended.
func (m *Metrics) ObjectRead(id ObjectID, now time.Time) {
	m.reuse.read(id, now, m.accesses(id.Salt))
	l := m.life
	l.mu.Lock()
	defer l.mu.Unlock()
	if x, ok := l.alive[id]; ok {
		l.reuse.Update(now.Sub(x.used).Seconds())
		x.used = now
		l.alive[id] = x
	}
}

// ObjectGone notes that an object of the sample has left L1.
func (m *Metrics) ObjectGone(id ObjectID, now time.Time) {
	l := m.life
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(now)
	x, ok := l.alive[id]
	if !ok {
		return
	}
	delete(l.alive, id)
	l.lifetime.Update(now.Sub(x.born).Seconds())
	l.idle.Update(now.Sub(x.used).Seconds())
	if len(l.queue) < maxGone {
		l.gone[id] = now
		l.queue = append(l.queue, goneAt{id, now})
	}
}

// expire gives up on what has been gone for too long. mu is held.
func (l *lifecycle) expire(now time.Time) {
	n := 0
	for n < len(l.queue) && now.Sub(l.queue[n].at) >= maxComeback {
		// One that came back, or went again later, has its own entry.
		if g := l.queue[n]; l.gone[g.id].Equal(g.at) {
			delete(l.gone, g.id)
			l.comeback.Update(maxComeback.Seconds())
		}
		n++
	}
	if n > 0 {
		l.queue = append(l.queue[:0], l.queue[n:]...)
	}
}
