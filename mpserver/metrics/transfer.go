package metrics

import (
	"strconv"
	"time"

	vm "github.com/VictoriaMetrics/metrics"
)

// Direction of a copy of KV.
type Direction string

const (
	// Store is from an engine to L1.
	Store Direction = "store"
	// Retrieve is from L1 to an engine.
	Retrieve Direction = "retrieve"
)

// TransferBegun counts a copy that was handed to a device ("cpu", "cuda:0") or
// to a client (its transport: "shm", "pickle").
func (m *Metrics) TransferBegun(dir Direction, device string) {
	m.count(event{name: begun[dir], label1: "device", value1: device}, 1)
}

// TransferEnded counts the end of such a copy, good or bad, and the bytes that
// it moved.
func (m *Metrics) TransferEnded(dir Direction, device string, bytes int64) {
	m.count(event{name: ended[dir], label1: "device", value1: device}, 1)
	if bytes > 0 {
		m.count(event{name: nameTransferBytes, label1: "device", value1: device, label2: "direction", value2: string(dir)}, int(bytes))
	}
}

var (
	begun = map[Direction]string{Store: nameStoresSubmitted, Retrieve: nameLoadsSubmitted}
	ended = map[Direction]string{Store: nameStoresFinished, Retrieve: nameLoadsFinished}
)

// loadKey is the label set of the chunks-loaded family.
type loadKey struct {
	worker      int64
	model, salt string
}

// ChunksLoaded counts n chunks that the worker's instance id received.
func (m *Metrics) ChunksLoaded(workerID int64, model, salt string, n int) {
	if n <= 0 {
		return
	}
	k := loadKey{workerID, model, salt}
	c, ok := m.loaded.lookup(k)
	if !ok && usable(model) && usable(salt) {
		c, ok = m.loaded.get(k, func() (loadKey, *vm.Counter) {
			k := loadKey{workerID, cloneString(model), cloneString(salt)}
			return k, m.loadedCounter(strconv.FormatInt(workerID, 10), model, salt)
		})
	}
	if !ok {
		c = m.loadedCounter(Other, Other, Other)
	}
	c.Add(n)
}

func (m *Metrics) loadedCounter(worker, model, salt string) *vm.Counter {
	return m.set.GetOrCreateCounter(series(nameChunksLoaded, "cache_salt", salt, "model_name", model, "worker_id", worker))
}

// speedKey is the label set of the throughput families.
type speedKey struct {
	dir            Direction
	device, model  string
	engineInstance int64
}

// speedBounds are finer than the reference's, whose first bound above 0 is 5
// GB/s and hides everything that a shared-memory or PCIe copy does.
var speedBounds = []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 7.5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 250, 500}

// TransferSpeed records a copy of so many bytes that took d, without any wait for its turn.
func (m *Metrics) TransferSpeed(dir Direction, device string, engineID int64, model string, bytes int64, d time.Duration) {
	if d <= 0 || bytes <= 0 {
		return
	}
	k := speedKey{dir, device, m.model(model), engineID}
	h, ok := m.speeds.get(k, func() (speedKey, *vm.PrometheusHistogram) {
		return k, m.speedHistogram(k, strconv.FormatInt(engineID, 10))
	})
	if !ok {
		h = m.speedHistogram(k, Other)
	}
	h.Update(float64(bytes) / 1e9 / d.Seconds())
}

func (m *Metrics) speedHistogram(k speedKey, engine string) *vm.PrometheusHistogram {
	name := nameStoreThroughput
	if k.dir == Retrieve {
		name = nameLoadThroughput
	}
	return m.set.GetOrCreatePrometheusHistogramExt(series(name,
		"device", k.device, "engine_id", engine, "model_name", k.model), speedBounds)
}
