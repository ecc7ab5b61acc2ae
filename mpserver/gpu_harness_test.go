package mpserver

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/device"
)

const (
	gpu0 = "d5a55c39-9e1d-4f00-8000-000000000000"
	gpu1 = "d5a55c39-9e1d-4f00-8000-000000000001"
)

// testGPUs is a driver of two GPUs, whose devices are fakes that have events
// and only copy.
type testGPUs struct {
	t *testing.T

	mu       sync.Mutex
	memory   map[string][]byte
	devices  map[string]*device.Fake
	log      []string // what happened, in order
	failOpen error
	failPin  error
	hang     chan struct{} // opening memory waits for it
	// breakSubmit makes the next Submit fail in the middle.
	breakSubmit bool
	closed      bool
}

func newTestGPUs(t *testing.T) *testGPUs {
	return &testGPUs{t: t, memory: map[string][]byte{}, devices: map[string]*device.Fake{}}
}

func (g *testGPUs) addMemory(key string, b []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.memory[key] = b
	for _, d := range g.devices {
		d.AddMemory(key, b)
	}
}

func (g *testGPUs) fail(open, pin error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failOpen, g.failPin = open, pin
}

func (g *testGPUs) hangOn(c chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hang = c
}

func (g *testGPUs) breakNext() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.breakSubmit = true
}

func (g *testGPUs) openDevices() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.devices)
}

// device is the open device of a GPU.
func (g *testGPUs) device(uuid string) *device.Fake {
	g.t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.NotNil(g.t, g.devices[uuid], "GPU %s is not open", uuid)
	return g.devices[uuid]
}

func (g *testGPUs) history() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.log...)
}

func (g *testGPUs) note(format string, args ...any) {
	g.log = append(g.log, fmt.Sprintf(format, args...))
}

func (g *testGPUs) open(uuid string) (device.Device, string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	names := map[string]string{gpu0: "cuda:0", gpu1: "cuda:1"}
	switch {
	case g.failOpen != nil:
		return nil, "", g.failOpen
	case names[uuid] == "":
		return nil, "", fmt.Errorf("%w: %s", errUnknownGPU, uuid)
	}
	d := device.NewFake(device.FakeOptions{Async: true, CopiesOnly: true})
	for k, b := range g.memory {
		d.AddMemory(k, b)
	}
	g.devices[uuid] = d
	g.note("open %s", names[uuid])
	return &testGPU{Fake: d, g: g, uuid: uuid, name: names[uuid]}, names[uuid], nil
}

func (g *testGPUs) pin(uuid string, pool []byte) (func() error, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failPin != nil {
		return nil, g.failPin
	}
	g.note("pin")
	return func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.note("unpin")
		return nil
	}, nil
}

func (g *testGPUs) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errors.New("closed twice")
	}
	g.closed = true
	return nil
}

// testGPU is one of its devices. Streams and memories are the fake's.
type testGPU struct {
	*device.Fake
	g          *testGPUs
	uuid, name string
}

func (d *testGPU) Open(key string, sizeBytes int64) (device.Memory, error) {
	d.g.mu.Lock()
	hang := d.g.hang
	d.g.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return d.Fake.Open(key, sizeBytes)
}

// NewStream makes a stream whose jobs are on the hardware at once: calling them
// off changes nothing.
func (d *testGPU) NewStream(label string) (device.Stream, error) {
	st, err := d.Fake.NewStream(label)
	return hardStream{st, d.g}, err
}

type hardStream struct {
	device.Stream
	g *testGPUs
}

func (hardStream) Cancel(*device.Job) {}

// Submit fails in the middle where the test says so: what was queued runs.
func (s hardStream) Submit(j *device.Job) ([]byte, error) {
	event, err := s.Stream.Submit(j)
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	if err == nil && s.g.breakSubmit {
		s.g.breakSubmit = false
		return nil, fmt.Errorf("%w: as told", device.ErrBegun)
	}
	return event, err
}

func (d *testGPU) Close() error {
	err := d.Fake.Close()
	d.g.mu.Lock()
	defer d.g.mu.Unlock()
	delete(d.g.devices, d.uuid)
	d.g.note("close %s", d.name)
	return err
}

// gpuServer runs a server that sees two GPUs of the tests.
func gpuServer(t *testing.T, change func(*Options)) (*Server, *testGPUs) {
	t.Helper()
	g := newTestGPUs(t)
	s := startServer(t, func(o *Options) {
		o.gpuDriver = func() (gpuDriver, error) { return g, nil }
		o.gpuInventory = func() ([]GPUInfo, error) {
			return []GPUInfo{
				{UUID: gpu0, Name: "NVIDIA H200", PCIAddress: "00000000:18:00.0", MemoryBytes: 1 << 37, UsedBytes: 1 << 30, PCIeGen: 5, PCIeWidth: 16, NUMANode: 0},
				{UUID: gpu1, Name: "NVIDIA H200", PCIAddress: "00000000:2A:00.0", MemoryBytes: 1 << 37, PCIeGen: 5, PCIeWidth: 16, NUMANode: 1},
			}, nil
		}
		if change != nil {
			change(o)
		}
	})
	return s, g
}

// onGPU makes a worker whose cache is on a GPU.
func onGPU(t *testing.T, s *Server, g *testGPUs, uuid string, id int64, hnd bool) *engine {
	t.Helper()
	e := &engine{peer: connect(t, s), tb: t, s: s, id: id, hnd: hnd, blockSlots: 4, blocks: 64, groups: oneGroup, world: 1, gpus: g, uuid: uuid}
	e.newMemory()
	return e
}
