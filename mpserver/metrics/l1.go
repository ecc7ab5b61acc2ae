package metrics

import (
	"strings"
	"sync/atomic"

	vm "github.com/VictoriaMetrics/metrics"
)

// defaultTag is the l1_tag of a server with one L1 (lmcache 0.5.6,
// v1/distributed/config: the tag of the legacy flags).
const defaultTag = "_default"

// During says which operation ran out of room.
type During string

const (
	// DuringStore is a store by an engine.
	DuringStore During = "l1_store"
	// DuringPrefetch is a load from L2 into L1.
	DuringPrefetch During = "l2_prefetch"
)

// ReadFailure says why a retrieve did not get a chunk.
type ReadFailure string

const (
	// ReadNotFound is a chunk that is not there, or that nobody holds any more.
	ReadNotFound ReadFailure = "not_found"
	// ReadWriteLocked is a chunk whose store has not ended.
	ReadWriteLocked ReadFailure = "write_locked"
)

// saltCounters is a family whose series carry cache_salt only when there is one.
type saltCounters struct {
	set  *vm.Set
	name string
	none *vm.Counter
	over atomic.Pointer[vm.Counter] // the series of Other, made on first use
	by   *table[string, *vm.Counter]
}

func newSaltCounters(s *vm.Set, name string, limit int) *saltCounters {
	return &saltCounters{
		set:  s,
		name: name,
		none: s.NewCounter(series(name, "l1_tag", defaultTag)),
		by:   newTable[string, *vm.Counter](limit),
	}
}

func (c *saltCounters) add(salt string, n int) {
	if n <= 0 {
		return
	}
	if salt == "" {
		c.none.Add(n)
		return
	}
	if usable(salt) {
		v, ok := c.by.get(salt, func() (string, *vm.Counter) { return cloneString(salt), c.counter(salt) })
		if ok {
			v.Add(n)
			return
		}
	}
	over := c.over.Load()
	if over == nil {
		over = c.counter(Other)
		c.over.Store(over)
	}
	over.Add(n)
}

func (c *saltCounters) counter(salt string) *vm.Counter {
	return c.set.GetOrCreateCounter(series(c.name, "cache_salt", salt, "l1_tag", defaultTag))
}

// L1Written counts n chunks that were published.
func (m *Metrics) L1Written(salt string, n int) { m.l1Write.add(salt, n) }

// L1Read counts n read holds that were released.
func (m *Metrics) L1Read(salt string, n int) { m.l1Read.add(salt, n) }

// L1Evicted counts n chunks that left L1; reason is one of few words of the
// store ("demand", "watermark", "clear", …).
func (m *Metrics) L1Evicted(salt, reason string, n int) {
	if n <= 0 {
		return
	}
	m.l1Evicted.add(salt, n)
	m.count(event{name: nameEvictedBy, label1: "reason", value1: reason}, n)
}

// modelEvent is one label set of a family that carries a model name.
type modelEvent struct{ name, model, during, reason string }

func (m *Metrics) countModel(e modelEvent, n int) {
	if n <= 0 {
		return
	}
	e.model = m.model(e.model)
	c, ok := m.modelOps.get(e, func() (modelEvent, *vm.Counter) { return e, m.modelCounter(e) })
	if !ok {
		e.model = Other
		c = m.modelCounter(e)
	}
	c.Add(n)
}

func (m *Metrics) modelCounter(e modelEvent) *vm.Counter {
	if e.reason == "" {
		return m.set.GetOrCreateCounter(series(e.name, "during", e.during, "model_name", e.model))
	}
	return m.set.GetOrCreateCounter(series(e.name, "during", e.during, "model_name", e.model, "reason", e.reason))
}

// AllocationFailed counts n chunks that found no room.
func (m *Metrics) AllocationFailed(during During, model string, n int) {
	m.countModel(modelEvent{name: nameAllocFailure, model: model, during: string(during)}, n)
}

// ReadFailed counts n chunks that a retrieve asked for and did not get.
func (m *Metrics) ReadFailed(reason ReadFailure, model string, n int) {
	m.countModel(modelEvent{name: nameReadFailure, model: model, during: "l1_retrieve", reason: string(reason)}, n)
}

// LeaseExpired counts lookups whose holds ("read") or chunks whose reservations ("write") a time
// limit ended rather than their owner.
func (m *Metrics) LeaseExpired(kind string, n int) {
	if n > 0 {
		m.count(event{name: nameLeaseExpired, label1: "kind", value1: kind}, n)
	}
}

func cloneString(s string) string { return strings.Clone(s) }
