package metrics

import (
	"runtime"
	"sync/atomic"

	vm "github.com/VictoriaMetrics/metrics"
)

// Options configures a registry. The zero value works.
type Options struct {
	// InstanceID is the value of target_info's service_instance_id.
	InstanceID string
	// Version is told by lmcache_go_build_info. Default "unknown".
	Version string
	// MaxModels bounds the model names that get series of their own. Default 64.
	MaxModels int
	// MaxPairs bounds the (model, salt) pairs, and also the salts, that get
	// series of their own. Default 512. A scrape carries about 1.2 kB per pair.
	MaxPairs int
	// SampleRate is the share of engines' blocks that are followed. Default 0.
	SampleRate float64
	// Hide leaves every lmcache_ series out of the exposition
	// (`--disable-metrics`); process and target_info series stay.
	Hide bool
}

// Metrics is one registry. Make it with [New]; all methods are safe for
// concurrent use.
type Metrics struct {
	opts Options
	set  *vm.Set

	l1Write, l1Read, l1Evicted *saltCounters
	models                     *table[string, string] // names that have series of their own
	pairs                      *table[pair, *lookupCounters]
	pairsOver                  *table[string, *lookupCounters] // by model, salt Other
	modelOps                   *table[modelEvent, *vm.Counter]
	ops                        *table[string, *Op]
	events                     *table[event, *vm.Counter]
	speeds                     *table[speedKey, *vm.PrometheusHistogram]
	loaded                     *table[loadKey, *vm.Counter]
	gauges                     atomic.Pointer[func() Gauges]
	life                       *lifecycle
	reuse                      *realReuse
	blocks                     *blocks
}

// New returns an empty registry.
func New(o Options) *Metrics {
	if o.MaxModels <= 0 {
		o.MaxModels = 64
	}
	if o.MaxPairs <= 0 {
		o.MaxPairs = 512
	}
	if o.Version == "" {
		o.Version = "unknown"
	}
	s := vm.NewSet()
	m := &Metrics{
		opts:      o,
		set:       s,
		l1Write:   newSaltCounters(s, nameL1Write, o.MaxPairs),
		l1Read:    newSaltCounters(s, nameL1Read, o.MaxPairs),
		l1Evicted: newSaltCounters(s, nameL1Evicted, o.MaxPairs),
		models:    newTable[string, string](o.MaxModels),
		pairs:     newTable[pair, *lookupCounters](o.MaxPairs),
		pairsOver: newTable[string, *lookupCounters](o.MaxModels + 1),
		modelOps:  newTable[modelEvent, *vm.Counter](16 * (o.MaxModels + 1)),
		ops:       newTable[string, *Op](128),
		events:    newTable[event, *vm.Counter](512),
		speeds:    newTable[speedKey, *vm.PrometheusHistogram](o.MaxModels),
		loaded:    newTable[loadKey, *vm.Counter](o.MaxPairs),
		life:      newLifecycle(s),
		reuse:     newRealReuse(s, o.MaxPairs),
		blocks:    newBlocks(s, o.SampleRate, o.MaxModels),
	}
	m.set.NewGauge(series(nameBuildInfo, "goversion", runtime.Version(), "version", o.Version), one)
	return m
}

func one() float64 { return 1 }

// event is one label set of a family with up to two labels of our own making:
// few values, never a client's.
type event struct{ name, label1, value1, label2, value2 string }

// count adds n to a family whose label values are ours. Past the bound of the
// table the values become [Other].
func (m *Metrics) count(e event, n int) {
	c, ok := m.events.get(e, func() (event, *vm.Counter) { return e, m.eventCounter(e) })
	if !ok {
		e.value1 = Other
		if e.value2 != "" {
			e.value2 = Other
		}
		c = m.eventCounter(e)
	}
	c.Add(n)
}

func (m *Metrics) eventCounter(e event) *vm.Counter {
	switch {
	case e.label1 == "":
		return m.set.GetOrCreateCounter(e.name)
	case e.label2 == "":
		return m.set.GetOrCreateCounter(series(e.name, e.label1, e.value1))
	default:
		return m.set.GetOrCreateCounter(series(e.name, e.label1, e.value1, e.label2, e.value2))
	}
}

// model returns the label value for a model name of a client.
func (m *Metrics) model(name string) string {
	if !usable(name) {
		return Other
	}
	v, ok := m.models.get(name, func() (string, string) {
		v := cloneString(name)
		return v, v
	})
	if !ok {
		return Other
	}
	return v
}
