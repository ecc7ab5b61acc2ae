//go:build linux && cgo

package mpserver

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/fakecuda"
	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// driverServer runs a server on a driver without a GPU.
func driverServer(t *testing.T, change func(*Options)) (*Server, *fakecuda.Fake, *cuda.Driver) {
	t.Helper()
	f := fakecuda.New(fakecuda.Options{Devices: 2})
	t.Cleanup(f.Close)
	drv, err := cuda.Load(cuda.LoadOptions{Symbol: f.Symbol})
	require.NoError(t, err)
	s := startServer(t, func(o *Options) {
		o.gpuDriver = func() (gpuDriver, error) { return cudaDriver{drv}, nil }
		if change != nil {
			change(o)
		}
	})
	return s, f, drv
}

// exporter makes a worker whose memory a process of that pid has exported.
func exporter(t *testing.T, s *Server, f *fakecuda.Fake, drv *cuda.Driver, gpu, pid int, id int64, hnd bool) *engine {
	t.Helper()
	e := &engine{peer: connect(t, s), tb: t, s: s, id: id, hnd: hnd, blockSlots: 4, blocks: 64, groups: oneGroup, world: 1}
	size := 0
	for _, g := range e.groups {
		size += g.layers * e.blocks * e.blockSlots * g.rowBytes()
	}
	handle, mem := f.Export(pid, int64(size))
	e.mem, e.uuid, e.handle = mem, drv.Devices()[gpu].UUID, append([]byte{3, 'c'}, handle[:]...)
	return e
}

// nothingLeft waits until the driver has given everything back.
func nothingLeft(t *testing.T, f *fakecuda.Fake) {
	t.Helper()
	testutil.Eventually(t, "the driver has nothing of ours", func() bool {
		l := f.Live()
		return l.Contexts+l.Streams+l.Mappings+l.Registrations+l.HostAllocations == 0
	})
}

// Through the driver's own calls: events of the client's process in, events of
// ours out, bytes where they belong, and nothing left.
func TestDriverRoundTrip(t *testing.T) {
	s, f, drv := driverServer(t, nil)
	a, b := exporter(t, s, f, drv, 0, 101, 1, false), exporter(t, s, f, drv, 1, 102, 2, true)
	a.registerKV()
	b.registerKV()
	tokens := prompt(1, 2*testChunk)
	ids := a.ids(4, 2)
	a.write(tokens[0], ids, 0, 2*testChunk)
	event, fire := f.ExportEvent(101)
	uid := a.sendStore(a.keyOf("a", tokens), ids, string(event[:]))
	testutil.Eventually(t, "the store waits", func() bool { return s.instances.copied(1).driven.pending() == 1 })
	fire()
	answer, ok := a.answer(uid)
	require.True(t, ok)
	require.Len(t, answer, 64)
	testutil.Eventually(t, "the client sees our event", func() bool { return f.Fired([64]byte([]byte(answer))) })
	require.Equal(t, 2, b.lookup(b.keyOf("b", tokens)), "another engine, of another layout and GPU")
	b.wipe()
	event, fire = f.ExportEvent(102)
	fire()
	at := b.ids(32, 2)
	answer, ok = b.answer(b.sendRetrieve(b.keyOf("b", tokens), at, 0, string(event[:])))
	require.True(t, ok)
	testutil.Eventually(t, "the client sees our event", func() bool { return f.Fired([64]byte([]byte(answer))) })
	b.requireKV(tokens[0], at, 0, 2*testChunk)
	b.end("b")
	got := s.Status().Go
	require.Len(t, got.GPUs, 2)
	require.Equal(t, "cuda:0", got.GPUs[0].Device)
	for _, e := range []*engine{a, b} {
		e.none(wire.OpUnregisterKVCache, intFrame(e.id))
	}
	nothingLeft(t, f)
}

// Every GPU of the status has its gauges, which follow what the server has on it.
func TestGPUGauges(t *testing.T) {
	var list []GPUInfo
	s, f, drv := driverServer(t, func(o *Options) {
		o.HTTPPort = 0
		o.gpuInventory = func() ([]GPUInfo, error) { return list, nil }
	})
	for i, d := range drv.Devices() {
		list = append(list, GPUInfo{UUID: d.UUID, Name: d.Name, PCIAddress: d.PCIBusID, MemoryBytes: 1 << 37, UsedBytes: int64(i)<<30 - int64(1-i), NUMANode: -1})
	}
	idle, busy := list[0], list[1]
	want := func(m map[string]string, uuid, mapped string, one ...string) {
		t.Helper()
		require.Equal(t, mapped, m[`lmcache_go_gpu_mapped_bytes{uuid="`+uuid+`"}`])
		for i, name := range []string{"open", "mappings", "streams", "workers", "pending_copies", "quarantined_workers"} {
			require.Equal(t, one[i], m[`lmcache_go_gpu_`+name+`{uuid="`+uuid+`"}`], name)
		}
	}
	e := exporter(t, s, f, drv, 1, 101, 1, false)
	e.registerKV()
	event, fire := f.ExportEvent(101)
	uid := e.sendStore(e.keyOf("a", prompt(1, testChunk)), e.ids(4, 1), string(event[:]))
	testutil.Eventually(t, "the store waits", func() bool { return s.instances.copied(1).driven.pending() == 1 })
	m := series(t, s)
	require.Equal(t, "1", m[fmt.Sprintf(`lmcache_go_gpu_info{device="cuda:1",name=%q,pci_address=%q,uuid=%q}`, busy.Name, busy.PCIAddress, busy.UUID)])
	require.Equal(t, "1", m[fmt.Sprintf(`lmcache_go_gpu_info{device="",name=%q,pci_address=%q,uuid=%q}`, idle.Name, idle.PCIAddress, idle.UUID)])
	require.Equal(t, "1.37438953472e+11", m[`lmcache_go_gpu_memory_bytes{uuid="`+idle.UUID+`"}`])
	require.Equal(t, "1.073741824e+09", m[`lmcache_go_gpu_memory_used_bytes{uuid="`+busy.UUID+`"}`])
	require.NotContains(t, m, `lmcache_go_gpu_memory_used_bytes{uuid="`+idle.UUID+`"}`, "the driver did not tell")
	want(m, busy.UUID, fmt.Sprint(len(e.mem)), "1", "1", "2", "1", "1", "0")
	want(m, idle.UUID, "0", "0", "0", "0", "0", "0", "0")
	e.send(wire.AppendOp(nil, wire.OpUnregisterKVCache), intFrame(1))
	testutil.Eventually(t, "its copy is still on the way", func() bool {
		return series(t, s)[`lmcache_go_gpu_quarantined_workers{uuid="`+busy.UUID+`"}`] == "1"
	})
	fire()
	_, ok := e.answer(uid)
	require.True(t, ok)
	e.recv()
	m = series(t, s)
	for _, name := range []string{
		`lmcache_mp_num_submitted_stores_total{device="cuda:1"}`, `lmcache_mp_num_finished_stores_total{device="cuda:1"}`,
		`lmcache_go_transfer_bytes_total{device="cuda:1",direction="store"}`,
	} {
		require.Contains(t, m, name, "the label of the info")
	}
	nothingLeft(t, f)
	testutil.Eventually(t, "the GPU is closed", func() bool { return series(t, s)[`lmcache_go_gpu_open{uuid="`+busy.UUID+`"}`] == "0" })
	want(series(t, s), busy.UUID, "0", "0", "0", "0", "0", "0", "0")
}

// Whatever call of the driver fails: every request is answered, nothing is
// left of it, and the same worker is served afterwards.
func TestDriverCallsThatFail(t *testing.T) {
	s, f, drv := driverServer(t, func(o *Options) { o.PendingLookupTimeout = 5 * time.Second })
	e := exporter(t, s, f, drv, 0, 101, 1, false)
	seq := uint32(0)
	// life is all that a worker does; it says how far it came.
	life := func() (registered, stored, loaded bool) {
		seq++
		tokens, ids := prompt(uint64(seq), testChunk), e.ids(4, 1)
		fired := func() string {
			event, fire := f.ExportEvent(101)
			fire()
			return string(event[:])
		}
		_, refused := e.call(wire.OpRegisterKVCache, e.registration()...)
		if refused {
			return false, false, false
		}
		id := fmt.Sprint("life ", seq)
		_, stored = e.answer(e.sendStore(e.keyOf(id, tokens), ids, fired()))
		if e.lookup(e.keyOf(id, tokens)) == 1 {
			_, loaded = e.answer(e.sendRetrieve(e.keyOf(id, tokens), ids, 0, fired()))
		}
		e.end(id)
		e.none(wire.OpUnregisterKVCache, intFrame(e.id))
		return true, stored, loaded
	}
	registered, stored, loaded := life()
	require.True(t, registered && stored && loaded)
	nothingLeft(t, f)
	for _, call := range []string{
		"cuDevicePrimaryCtxRetain", "cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2", "cuIpcOpenMemHandle_v2", "cuMemGetAddressRange_v2",
		"cuStreamCreate", "cuEventCreate", "cuIpcOpenEventHandle", "cuStreamWaitEvent", "cuMemcpyBatchAsync_v2", "cuMemcpyAsync", "cuMemcpy2DAsync_v2",
		"cuEventRecord", "cuIpcGetEventHandle", "cuEventSynchronize",
	} {
		for nth := 1; ; nth++ {
			before := f.Calls(call)
			f.Fail(call, nth, int(cuda.OutOfMemory))
			registered, stored, loaded := life()
			hit := f.Calls(call)-before >= nth
			f.Fail("", 0, 0)
			if !hit {
				require.True(t, registered && stored && loaded, "%s: nothing failed", call)
				break
			}
			nothingLeft(t, f)
			st := s.cache.Stats()
			require.Zero(t, st.Reserved+st.Filling+st.TransferObjects, "after call %d of %s", nth, call)
		}
	}
}

// A transfer is answered when its engine has come to its event and the copies
// are queued, and one that never gets there is refused in time.
func TestDriverAnswersWhenTheCopyBegins(t *testing.T) {
	s, f, drv := driverServer(t, func(o *Options) { o.copyLimit = 300 * time.Millisecond })
	e := exporter(t, s, f, drv, 0, 101, 1, false)
	e.registerKV()
	ids, tokens := e.ids(4, 1), prompt(1, testChunk)
	e.write(tokens[0], ids, 0, testChunk)
	event, fire := f.ExportEvent(101)
	uid := e.sendStore(e.keyOf("a", tokens), ids, string(event[:]))
	testutil.Eventually(t, "the store waits", func() bool { return s.instances.copied(1).driven.pending() == 1 })
	fire()
	answer, ok := e.answer(uid)
	require.True(t, ok)
	require.Len(t, answer, 64)
	require.Equal(t, 1, e.lookup(e.keyOf("b", tokens)))

	never, _ := f.ExportEvent(101)
	answer, ok = e.answer(e.sendRetrieve(e.keyOf("b", tokens), ids, 0, string(never[:])))
	require.False(t, ok)
	require.Empty(t, answer)
	_, ok = e.answer(e.sendStore(e.keyOf("c", prompt(2, testChunk)), ids, string(never[:])))
	require.False(t, ok)
	require.Zero(t, e.lookup(e.keyOf("d", prompt(2, testChunk))), "nothing of it is kept")
	require.Zero(t, s.cache.Stats().TransferObjects)
	e.none(wire.OpUnregisterKVCache, intFrame(e.id))
	nothingLeft(t, f)
}

// A worker that dies before its event fires gives its memory back within the
// grace of its connection, whatever it had on its way; all others go on, and
// its successor too.
func TestDriverWorkerThatDies(t *testing.T) {
	s, f, drv := driverServer(t, func(o *Options) { o.ConnectionGrace = 50 * time.Millisecond })
	dead, other := exporter(t, s, f, drv, 0, 101, 1, false), exporter(t, s, f, drv, 0, 102, 2, false)
	dead.registerKV()
	other.registerKV()
	tokens, theirs := prompt(1, testChunk), prompt(2, testChunk)
	ids := other.ids(4, 1)
	fired := func(pid int) string {
		event, fire := f.ExportEvent(pid)
		fire()
		return string(event[:])
	}
	transfer := func(e *engine, uid []byte) {
		t.Helper()
		_, ok := e.answer(uid)
		require.True(t, ok)
	}
	other.write(theirs[0], ids, 0, testChunk)
	transfer(other, other.sendStore(other.keyOf("a", theirs), ids, fired(102)))
	require.Equal(t, 1, other.lookup(dead.keyOf("b", theirs)))
	event, _ := f.ExportEvent(101)
	dead.sendStore(dead.keyOf("c", tokens), ids, string(event[:]))
	dead.sendRetrieve(dead.keyOf("b", theirs), ids, 0, string(event[:]))
	testutil.Eventually(t, "both wait for its event", func() bool { return s.instances.copied(1).driven.pending() == 2 })
	require.Equal(t, 2, f.Live().Mappings)
	dead.close()
	testutil.Eventually(t, "its memory is given back", func() bool { return f.Live().Mappings == 1 })
	testutil.Eventually(t, "it is forgotten", func() bool {
		in := s.Status().Go.Instances
		return len(in) == 1 && in[0].InstanceID == 2
	})
	require.Zero(t, other.lookup(other.keyOf("d", tokens)), "nothing of the dead is published")
	require.Equal(t, 1, other.lookup(other.keyOf("e", theirs)))
	transfer(other, other.sendRetrieve(other.keyOf("e", theirs), ids, 0, fired(102)))
	back := exporter(t, s, f, drv, 0, 103, 1, false)
	back.registerKV()
	transfer(back, back.sendStore(back.keyOf("f", tokens), ids, fired(103)))
	require.Equal(t, 1, back.lookup(back.keyOf("g", tokens)))
	for _, e := range []*engine{other, back} {
		e.none(wire.OpUnregisterKVCache, intFrame(e.id))
	}
	nothingLeft(t, f)
}
