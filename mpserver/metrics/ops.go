package metrics

import (
	"sync/atomic"
	"time"

	vm "github.com/VictoriaMetrics/metrics"
)

// Op counts one kind of request. Keep the handle that [Metrics.Op] returns in
// the row of the dispatch table: its methods look nothing up but the reason.
type Op struct {
	m        *Metrics
	name     string
	requests *vm.Counter
	duration atomic.Pointer[vm.PrometheusHistogram] // made on first use: 22 series each
}

// durationBounds cover an answer on the loop (10 µs) to a copy that is about to
// be given up.
var durationBounds = []float64{1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}

// Op returns the counters of the operation of that name; the same handle for
// the same name.
func (m *Metrics) Op(name string) *Op {
	op, ok := m.ops.get(name, func() (string, *Op) { return name, m.newOp(name) })
	if !ok {
		op = m.newOp(Other) // the same series, though not the same handle
	}
	return op
}

func (m *Metrics) newOp(name string) *Op {
	return &Op{
		m:        m,
		name:     name,
		requests: m.set.GetOrCreateCounter(series(nameRequests, "op", name)),
	}
}

// Count counts an answered request whose time is not worth measuring: one that
// the loop answered on the spot.
func (o *Op) Count() { o.requests.Inc() }

// Done counts an answered request that took d from arrival to answer.
func (o *Op) Done(d time.Duration) {
	o.requests.Inc()
	h := o.duration.Load()
	if h == nil {
		h = o.m.set.GetOrCreatePrometheusHistogramExt(series(nameDuration, "op", o.name), durationBounds)
		o.duration.Store(h)
	}
	h.Update(d.Seconds())
}

// Failed counts a request that was answered as the operation's failure. It
// counts beside [Op.Count] or [Op.Done], not instead of them. The reason is one
// of a few words of the server ("no_space", "queue_full", "panic", …).
func (o *Op) Failed(reason string) {
	o.m.count(event{name: nameFailures, label1: "op", value1: o.name, label2: "reason", value2: reason}, 1)
}

// Dropped counts a message that could not be answered (too few frames, no
// operation, …); reason is one of a few words of the server.
func (m *Metrics) Dropped(reason string) {
	m.count(event{name: nameDropped, label1: "reason", value1: reason}, 1)
}

// Panicked counts a contained panic; where names the place ("handler", "loop", …).
func (m *Metrics) Panicked(where string) {
	m.count(event{name: namePanics, label1: "where", value1: where}, 1)
}

// TimedOut counts a wait that ended without a result; kind is one of a few
// words ("PendingLookup", "Retrieve", …) and becomes exception_type, the
// reference's label.
func (m *Metrics) TimedOut(kind string) {
	m.count(event{name: nameTimeouts, label1: "exception_type", value1: kind}, 1)
}

// InstanceEvent counts a worker that came or went: "registered", "unregistered",
// "reaped", "disconnected", "refused", ….
func (m *Metrics) InstanceEvent(what string) {
	m.count(event{name: nameInstanceEvents, label1: "event", value1: what}, 1)
}
