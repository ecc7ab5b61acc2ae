package mpserver

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// An engine on a GPU hears at once, with an event; what it stored is found when
// the copy is done, and a lookup before that waits.
func TestGPURoundTrip(t *testing.T) {
	s, g := gpuServer(t, func(o *Options) { o.PendingLookupTimeout = time.Minute })
	e := onGPU(t, s, g, gpu0, 1, false)
	e.registerKV()
	require.Equal(t, []string{"open cuda:0", "pin"}, g.history())
	tokens := prompt(1, 2*testChunk)
	ids := e.ids(4, 2)
	e.write(tokens[0], ids, 0, 2*testChunk)

	fire := g.device(gpu0).AddEvent("forward")
	event, ok := e.answer(e.sendStore(e.keyOf("a", tokens), ids, "forward"))
	require.True(t, ok, "answered before the copy")
	require.NotEmpty(t, event)
	sched := connect(t, s)
	sched.none(wire.OpLookup, keyFrame(scheduler(e.keyOf("b", tokens))), intFrame(1))
	_, known := sched.tryQuery("b")
	require.False(t, known, "the lookup waits for the copy")
	fire()
	require.Equal(t, 2, sched.query("b"))

	e.wipe()
	fire = g.device(gpu0).AddEvent("next")
	at := e.ids(32, 2)
	event, ok = e.answer(e.sendRetrieve(e.keyOf("b", tokens), at, 0, "next"))
	require.True(t, ok)
	require.NotEmpty(t, event)
	require.NotZero(t, s.cache.Stats().LeaseHolds+s.cache.Stats().TransferObjects, "held until the copy is done")
	fire()
	testutil.Eventually(t, "the load is done", func() bool { return s.cache.Stats().TransferObjects == 0 })
	e.requireKV(tokens[0], at, 0, 2*testChunk)
	sched.end("b")
	idle(t, s)
}

// What is refused while copies are on their way is answered with an event
// behind them: the engine frees the blocks of all of them when it fires.
func TestGPURefusalsKeepTheOrder(t *testing.T) {
	s, g := gpuServer(t, nil)
	e := onGPU(t, s, g, gpu0, 1, false)
	e.registerKV()
	tokens := prompt(1, testChunk)
	ids := e.ids(4, 1)
	event, ok := e.answer(e.sendStore(e.keyOf("z", prompt(9, testChunk)), nil, ""))
	require.False(t, ok)
	require.Empty(t, event, "nothing is on its way")

	fire := g.device(gpu0).AddEvent("forward")
	_, ok = e.answer(e.sendStore(e.keyOf("a", tokens), ids, "forward"))
	require.True(t, ok)
	event, ok = e.answer(e.sendStore(e.keyOf("b", prompt(2, testChunk)), nil, ""))
	require.False(t, ok)
	require.NotEmpty(t, event)
	event, ok = e.answer(e.sendStore(e.keyOf("c", prompt(3, testChunk)), ids, "no such event"))
	require.False(t, ok)
	require.Empty(t, event)
	fire()
	testutil.Eventually(t, "the store is done", func() bool { return g.device(gpu0).Stats().Pending == 0 })
	require.Equal(t, 1, e.lookup(e.keyOf("d", tokens)))
	e.end("d")
}

// A transfer that failed in the middle is refused when what was queued of it
// cannot touch the engine's blocks any more, not before.
func TestGPUTransferThatBreaks(t *testing.T) {
	s, g := gpuServer(t, nil)
	e := onGPU(t, s, g, gpu0, 1, false)
	e.registerKV()
	tokens, ids := prompt(1, testChunk), e.ids(4, 1)
	fire := g.device(gpu0).AddEvent("forward")
	g.breakNext()
	uid := e.sendStore(e.keyOf("a", tokens), ids, "forward")
	e.silent(50 * time.Millisecond)
	fire()
	event, ok := e.answer(uid)
	require.False(t, ok)
	require.Empty(t, event)
	idle(t, s)
}

// Two engines of one model with other orders of heads and tokens read each
// other's objects.
func TestGPUEnginesOfTwoLayouts(t *testing.T) {
	s, g := gpuServer(t, nil)
	nhd, hnd := onGPU(t, s, g, gpu0, 1, false), onGPU(t, s, g, gpu1, 2, true)
	nhd.registerKV()
	hnd.registerKV()
	for i, pair := range [][2]*engine{{nhd, hnd}, {hnd, nhd}} {
		from, to := pair[0], pair[1]
		tokens := prompt(uint64(i), 2*testChunk)
		ids := from.ids(4, 2)
		from.write(tokens[0], ids, 0, 2*testChunk)
		require.True(t, from.storeKV(from.keyOf("a", tokens), ids))
		to.wipe()
		require.Equal(t, 2, to.lookup(to.keyOf("b", tokens)))
		at := to.ids(32, 2)
		require.True(t, to.retrieveKV(to.keyOf("b", tokens), at, 0))
		testutil.Eventually(t, "the load is done", func() bool { return s.cache.Stats().TransferObjects == 0 })
		to.requireKV(tokens[0], at, 0, 2*testChunk)
		to.end("b")
	}
	idle(t, s)
}

// A device lives as long as it has workers, the pool's registration as long as
// there is a device; both come back.
func TestGPUDevicesComeAndGo(t *testing.T) {
	s, g := gpuServer(t, nil)
	a, b, c := onGPU(t, s, g, gpu0, 1, false), onGPU(t, s, g, gpu0, 2, false), onGPU(t, s, g, gpu1, 3, false)
	for _, e := range []*engine{a, b, c} {
		e.registerKV()
	}
	leave := func(e *engine) { e.none(wire.OpUnregisterKVCache, intFrame(e.id)) }
	leave(a)
	leave(b)
	testutil.Eventually(t, "the first GPU is closed", func() bool { return len(g.history()) == 4 })
	require.Equal(t, []string{"open cuda:0", "pin", "open cuda:1", "close cuda:0"}, g.history())
	tokens := prompt(1, testChunk)
	ids := c.ids(4, 1)
	require.True(t, c.storeKV(c.keyOf("a", tokens), ids), "the other one goes on")
	a.registerKV()
	leave(a)
	leave(c)
	testutil.Eventually(t, "all are closed", func() bool { h := g.history(); return h[len(h)-1] == "unpin" })
	a.registerKV()
	require.Equal(t, "pin", g.history()[len(g.history())-1])
	require.Equal(t, 1, a.lookup(a.keyOf("b", tokens)), "what was stored stays")
	a.end("b")
}

// Registrations that cannot be served are refused with a reason, leave nothing
// behind, and do not keep later ones from working.
func TestGPURegistrationsThatFail(t *testing.T) {
	var log syncBuffer
	s, g := gpuServer(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	refused := func(e *engine, reason, text string, change func(ws []wire.DeviceWrapper)) {
		t.Helper()
		p := e.registration()
		if change != nil {
			ws, err := wire.DecodeDeviceWrappers(p[1])
			require.NoError(t, err)
			change(ws)
			p[1] = wire.AppendDeviceWrappers(nil, ws)
		}
		_, no := e.call(wire.OpRegisterKVCache, p...)
		require.True(t, no)
		var found bool
		for _, l := range s.failures.list(time.Now()) {
			if l.Reason == reason {
				found = true
				require.Contains(t, l.Message, text)
				require.NotEmpty(t, l.Remedy)
			}
		}
		require.True(t, found, "no failure of reason %s in %+v", reason, s.failures.list(time.Now()))
	}
	e := onGPU(t, s, g, gpu0, 1, false)
	unknown := onGPU(t, s, g, "00000000-0000-4000-8000-00000000dead", 2, false)
	refused(unknown, "gpu_unknown", "does not see", nil)
	refused(e, "registration", "several devices", func(ws []wire.DeviceWrapper) { ws[1].Metadata.DeviceUUID = gpu1 })
	refused(e, "gpu_memory_kind", "use_vmm_api", func(ws []wire.DeviceWrapper) {
		ws[0].Source = &wire.CUDAVMM{AllocSizeBytes: 1 << 20, SizeBytes: 1 << 20}
	})
	g.fail(nil, errTold)
	refused(e, "gpu_pin", "as told", nil)
	g.fail(errTold, nil)
	refused(e, "registration", "as told", nil)
	g.fail(nil, nil)
	handle := e.handle
	e.handle = append([]byte{3, 'c'}, make([]byte, 64)...)
	refused(e, "registration", "no cudaipc", nil)
	e.handle = handle
	testutil.Eventually(t, "nothing is open", func() bool { return len(s.gpus.devices()) == 0 && g.openDevices() == 0 })
	e.registerKV()
	require.Contains(t, log.String(), "level=ERROR")
}

// A driver that does not come back holds up its own registration only, which is
// refused in time; what it opens late is closed again.
func TestGPUDriverThatHangs(t *testing.T) {
	s, g := gpuServer(t, func(o *Options) { o.registerLimit = 200 * time.Millisecond })
	hang := make(chan struct{})
	g.hangOn(hang)
	e := onGPU(t, s, g, gpu0, 1, false)
	other := connect(t, s)
	uid := e.send(wire.AppendOp(nil, wire.OpRegisterKVCache), e.registration()...)
	_, refused := other.call(wire.OpNoop)
	require.False(t, refused)
	frames := e.recv()
	require.Equal(t, uid, frames[0])
	require.NotEqual(t, wire.AppendOp(nil, wire.OpRegisterKVCache), frames[1], "a refusal names another operation")
	close(hang)
	testutil.Eventually(t, "the device is closed", func() bool { return len(s.gpus.devices()) == 0 })
	g.hangOn(nil)
	e.registerKV()
}

// A worker that dies with its event unfired keeps its own streams and memory and
// nothing else: others go on, on the same GPU too, and it can come back.
func TestGPUWorkerThatDies(t *testing.T) {
	s, g := gpuServer(t, func(o *Options) {
		o.ConnectionGrace, o.retireLimit, o.DrainTimeout = 50*time.Millisecond, 50*time.Millisecond, 200*time.Millisecond
	})
	dead, other := onGPU(t, s, g, gpu0, 1, false), onGPU(t, s, g, gpu0, 2, false)
	dead.registerKV()
	other.registerKV()
	fire := g.device(gpu0).AddEvent("lost")
	t.Cleanup(fire)
	tokens, theirs := prompt(1, testChunk), prompt(2, testChunk)
	ids := other.ids(4, 1)
	_, ok := dead.answer(dead.sendStore(dead.keyOf("a", tokens), ids, "lost"))
	require.True(t, ok)
	dead.close()
	testutil.Eventually(t, "the dead one is quarantined", func() bool {
		st := s.Status().Go
		for _, in := range st.Instances {
			if in.InstanceID == 1 && in.State == "quarantined" && in.Transport == "cuda:0" {
				return st.GPUs[0].QuarantinedWorkers == 1 && st.GPUs[0].Workers == 1 && st.GPUs[0].Mappings == 2
			}
		}
		return false
	})
	other.write(theirs[0], ids, 0, testChunk)
	require.True(t, other.storeKV(other.keyOf("b", theirs), ids))
	require.Equal(t, 1, other.lookup(other.keyOf("b", theirs)))
	other.end("b")
	back := onGPU(t, s, g, gpu0, 1, false)
	back.registerKV()
	require.True(t, back.storeKV(back.keyOf("c", prompt(3, testChunk)), ids))
	// The event fires after all: what was copied is not used.
	fire()
	testutil.Eventually(t, "the quarantine ends", func() bool {
		for _, in := range s.Status().Go.Instances {
			if in.State == "quarantined" {
				return false
			}
		}
		return true
	})
	require.Zero(t, other.lookup(other.keyOf("d", tokens)), "nothing of the dead is published")
	other.end("d")
	testutil.Eventually(t, "all is given back", func() bool { return s.cache.Stats().TransferObjects == 0 })
}

// UNREGISTER with copies behind an event that does not fire is answered in
// bounded time.
func TestGPUUnregisterOfAStuckWorker(t *testing.T) {
	s, g := gpuServer(t, func(o *Options) { o.retireLimit, o.DrainTimeout = 50*time.Millisecond, 200*time.Millisecond })
	e := onGPU(t, s, g, gpu0, 1, false)
	e.registerKV()
	fire := g.device(gpu0).AddEvent("lost")
	t.Cleanup(fire)
	_, ok := e.answer(e.sendStore(e.keyOf("a", prompt(1, testChunk)), e.ids(4, 1), "lost"))
	require.True(t, ok)
	e.none(wire.OpUnregisterKVCache, intFrame(1))
	event, ok := e.answer(e.sendStore(e.keyOf("b", prompt(2, testChunk)), e.ids(4, 1), ""))
	require.False(t, ok)
	require.Empty(t, event)
	fire()
}

// Checksums of a worker on a GPU go through the pool, which is all that the
// device reaches, and leave nothing there.
func TestGPUChecksums(t *testing.T) {
	s, g := gpuServer(t, withHTTP)
	e := onGPU(t, s, g, gpu0, 1, false)
	for i := range e.mem {
		e.mem[i] = byte(i*131 + i>>8)
	}
	const bb, layer = 4 * 8 * 2, 16 * 4 * 8 * 2 // 16 blocks of 4 rows of 8 float16
	e.kvTensors("float16", "NHD", 2, 16, 4, 8)
	block := func(l, b int) []byte { return e.mem[l*layer+b*bb:][:bb] }
	status, answer := checksums(t, s, `{"instance_id": 1, "block_ids": [3, 5], "chunk_size": 2}`)
	require.Equal(t, http.StatusOK, status, "%s", answer)
	require.Contains(t, string(answer["chunk_checksums"]), md5Hex(block(0, 3), block(0, 5), block(1, 3), block(1, 5)))
	testutil.Eventually(t, "the buffer is given back", func() bool { st := s.cache.Stats(); return st.Reserved+st.Filling == 0 && st.UsedBytes == 0 })
}

// The status lists what the machine has and what the server has of it.
func TestGPUsInStatus(t *testing.T) {
	s, g := gpuServer(t, nil)
	e := onGPU(t, s, g, gpu1, 1, false)
	e.registerKV()
	got := s.Status().Go
	require.Empty(t, got.GPUsUnknown)
	require.Equal(t, []httpapi.GPU{
		{UUID: gpu0, Name: "NVIDIA H200", PCIAddress: "00000000:18:00.0", MemoryBytes: 1 << 37, UsedBytes: 1 << 30, PCIeGen: 5, PCIeWidth: 16},
		{
			Device: "cuda:1", UUID: gpu1, Name: "NVIDIA H200", PCIAddress: "00000000:2A:00.0", MemoryBytes: 1 << 37, PCIeGen: 5, PCIeWidth: 16, NUMANode: 1,
			Open: true, MappedBytes: int64(len(e.mem)), Mappings: 1, Streams: 2, Workers: 1,
		},
	}, got.GPUs)
}

// A library that hangs does not hold up the status, nor one that fails.
func TestInventoryThatHangs(t *testing.T) {
	hang := make(chan struct{})
	s := startServer(t, func(o *Options) {
		o.gpuInventory = func() ([]GPUInfo, error) { <-hang; return nil, errTold }
	})
	require.Contains(t, s.Status().Go.GPUsUnknown, "did not answer")
	close(hang)
	testutil.Eventually(t, "the reason is told", func() bool { return s.Status().Go.GPUsUnknown == errTold.Error() })
	require.NotNil(t, s.Status().Go.GPUs)
}
