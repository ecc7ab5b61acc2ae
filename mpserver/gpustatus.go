package mpserver

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
	"github.com/lmcache-go/lmcache-go/mpserver/metrics"
)

// GPUInfo is a GPU as the machine tells it, whether this process may use it or not.
type GPUInfo struct {
	// UUID in lower case without GPU-.
	UUID, Name, PCIAddress string
	MemoryBytes, UsedBytes int64 // UsedBytes -1 is unknown
	// PCIeGen is the link's best, an idle one is slower; PCIeWidth the lanes that it
	// has. 0 is unknown.
	PCIeGen, PCIeWidth int
	NUMANode           int // -1 is unknown
}

const (
	// inventoryEvery is how long a look at the machine's GPUs is good for.
	inventoryEvery = 5 * time.Second
	// inventoryWait is how long a status waits for the first look: the library
	// can hang with a broken driver. inventoryFresh is the same for a later one,
	// so that a scrape tells the present and not the time of the last scrape.
	inventoryWait  = time.Second
	inventoryFresh = 100 * time.Millisecond
)

// inventory is what the machine's GPUs looked like last.
type inventory struct {
	read  func() ([]GPUInfo, error)
	looks joiner

	mu   sync.Mutex
	list []GPUInfo     // guarded by mu
	err  error         // guarded by mu
	at   time.Time     // guarded by mu; zero before the first look
	busy chan struct{} // guarded by mu; closed when the look under way has ended
}

// get takes a look when the last one is old, and returns the last one when that
// takes too long.
func (v *inventory) get(ctx context.Context) ([]GPUInfo, error) {
	v.mu.Lock()
	if time.Since(v.at) >= inventoryEvery && v.busy == nil {
		busy := make(chan struct{})
		v.busy = busy
		v.looks.run(func() {
			list, err := v.read()
			v.mu.Lock()
			v.list, v.err, v.at, v.busy = list, err, time.Now(), nil
			v.mu.Unlock()
			close(busy)
		})
	}
	busy, first := v.busy, v.at.IsZero()
	v.mu.Unlock()
	if busy != nil {
		wait := inventoryFresh
		if first {
			wait = inventoryWait
		}
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		select {
		case <-busy:
		case <-ctx.Done():
			if first {
				return nil, errGPULate
			}
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.list), v.err
}

// close waits a moment for a look under way.
func (v *inventory) close() {
	ctx, cancel := context.WithTimeout(context.Background(), inventoryWait)
	defer cancel()
	v.looks.wait(ctx)
}

// describeGPUs fills in the machine's GPUs and what we have on them.
func (s *Server) describeGPUs(out *httpapi.GoStatus) {
	list, err := s.listGPUs()
	if err != nil {
		out.GPUsUnknown = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	out.GPUs = append(out.GPUs, list...)
}

// listGPUs is the machine's GPUs and what we have on them. With an error, which
// says why the machine's are not known, it lists those that we have open.
func (s *Server) listGPUs() ([]httpapi.GPU, error) {
	infos, err := s.inventory.get(s.abandon)
	byUUID := map[string]*httpapi.GPU{}
	for _, i := range infos {
		byUUID[i.UUID] = &httpapi.GPU{
			UUID: i.UUID, Name: i.Name, PCIAddress: i.PCIAddress, PCIeGen: i.PCIeGen, PCIeWidth: i.PCIeWidth, NUMANode: i.NUMANode,
			MemoryBytes: i.MemoryBytes, UsedBytes: i.UsedBytes,
		}
	}
	for _, u := range s.gpus.devices() {
		g := byUUID[u.uuid]
		if g == nil { // a slice of a GPU, or there is no inventory
			g = &httpapi.GPU{UUID: u.uuid, UsedBytes: -1, NUMANode: -1}
			byUUID[u.uuid] = g
		}
		st := u.dev.Stats()
		g.Device, g.Open = u.name, true
		g.MappedBytes, g.Mappings, g.Streams, g.PendingCopies = st.MappedBytes, st.Mappings, st.StreamsActive, st.Pending
		g.Workers, g.QuarantinedWorkers = s.instances.onGPU(u)
	}
	out := make([]httpapi.GPU, 0, len(byUUID))
	for _, g := range byUUID {
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b httpapi.GPU) int {
		return cmp.Or(cmp.Compare(a.PCIAddress, b.PCIAddress), cmp.Compare(a.UUID, b.UUID))
	})
	return out, err
}

// gpuGauges is the same for a scrape.
func (s *Server) gpuGauges() []metrics.GPU {
	list, _ := s.listGPUs() // GET /status says why there are none
	out := make([]metrics.GPU, 0, len(list))
	for i := range list {
		g := &list[i]
		out = append(out, metrics.GPU{
			UUID: g.UUID, Name: g.Name, PCIAddress: g.PCIAddress, Device: g.Device, MemoryBytes: g.MemoryBytes, UsedBytes: g.UsedBytes,
			Open: g.Open, MappedBytes: g.MappedBytes, Mappings: g.Mappings, Streams: g.Streams, PendingCopies: g.PendingCopies,
			Workers: g.Workers, QuarantinedWorkers: g.QuarantinedWorkers,
		})
	}
	return out
}

// onGPU counts the workers on a GPU, and those that have ended and still hold
// something of it.
func (t *instances) onGPU(u *gpu) (workers, quarantined int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, in := range t.byID {
		if in.driven != nil && in.driven.gpu == u {
			workers++
		}
	}
	for d := range t.closing {
		if d.gpu == u {
			quarantined++
		}
	}
	return workers, quarantined
}
