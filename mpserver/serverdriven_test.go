package mpserver

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

var errTold = errors.New("as told")

// registered is an engine that is.
func registered(t *testing.T, s *Server, id int64) *engine {
	t.Helper()
	e := newEngine(t, s, id, false, oneGroup)
	e.registerKV()
	return e
}

// An engine whose event never fires holds up its own stores and nobody else.
// At the deadline they fail, their objects abort, and their keys are free.
func TestEventThatNeverFires(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, func(o *Options) {
		o.PendingLookupTimeout, o.copyLimit = 50*time.Millisecond, 700*time.Millisecond
	})
	dev.AddEvent("lost")
	stuck, other := registered(t, s, 1), registered(t, s, 2)
	tokens, theirs := prompt(1, 2*testChunk), prompt(2, 2*testChunk)
	ids := stuck.ids(4, 2)
	stuck.write(tokens[0], ids, 0, 2*testChunk)
	other.write(theirs[0], ids, 0, 2*testChunk)
	uid := stuck.sendStore(stuck.keyOf("a", tokens), ids, "lost")

	require.True(t, other.storeKV(other.keyOf("b", theirs), ids))
	other.wipe()
	require.Equal(t, 2, other.lookup(other.keyOf("b", theirs)))
	require.True(t, other.retrieveKV(other.keyOf("b", theirs), ids, 0))
	other.requireKV(theirs[0], ids, 0, 2*testChunk)
	other.end("b")
	// Its own loads go on too.
	at := stuck.ids(32, 2)
	require.Equal(t, 2, other.lookup(stuck.keyOf("c", theirs)))
	load := stuck.sendRetrieve(stuck.keyOf("c", theirs), at, 0, "")
	_, ok := stuck.answer(load)
	require.True(t, ok)
	stuck.requireKV(theirs[0], at, 0, 2*testChunk)
	other.end("c")

	require.Zero(t, other.lookup(other.keyOf("d", tokens)), "what is stuck counts as a miss after a while")
	_, ok = stuck.answer(uid)
	require.False(t, ok)
	idle(t, s)
	require.True(t, other.storeKV(other.keyOf("e", tokens), ids), "the keys are free again")
	require.Equal(t, 2, other.lookup(other.keyOf("e", tokens)))
	other.end("e")
	other.end("d")
}

// A lookup that meets copies in flight waits for them, and then counts them.
func TestLookupWaitsForCopies(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, func(o *Options) { o.PendingLookupTimeout = time.Minute })
	e, sched := registered(t, s, 1), connect(t, s)
	tokens := prompt(1, 2*testChunk)
	ids := e.ids(4, 2)
	k := e.keyOf("a", tokens)
	fire := dev.AddEvent("forward")
	uid := e.sendStore(k, ids, "forward")
	testutil.Eventually(t, "the copy is on its way", func() bool { return dev.Stats().Pending == 1 })
	for _, id := range []string{"q", "w", "gone"} {
		sched.none(wire.OpLookup, keyFrame(scheduler(e.keyOf(id, tokens))), intFrame(1))
	}
	_, known := sched.tryQuery("q")
	require.False(t, known)
	parked := sched.send(wire.AppendOp(nil, wire.OpWaitPrefetchStatus), strFrame("w"), wire.AppendFloat(nil, 60))
	sched.end("gone") // answered beside the wait
	fire()
	require.Equal(t, [][]byte{parked, wire.AppendOp(nil, wire.OpWaitPrefetchStatus), intFrame(2)}, sched.recv())
	require.Equal(t, 2, sched.query("q"))
	_, ok := e.answer(uid)
	require.True(t, ok)
	require.Zero(t, sched.query("gone"))
	testutil.Eventually(t, "the lookup that was ended holds nothing", func() bool { return s.cache.Stats().LeaseHolds == 4 })
	sched.end("q")
	sched.end("w")
}

// Answers of a worker's stores come in order, also of one that copies nothing
// or is refused: the engine takes the blocks of the first one back when it
// hears of the second.
func TestStoresAreAnsweredInOrder(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, nil)
	e := registered(t, s, 1)
	tokens, resident := prompt(1, testChunk), prompt(2, testChunk)
	ids := e.ids(4, 1)
	require.True(t, e.storeKV(e.keyOf("r", resident), ids))
	fire := dev.AddEvent("forward")
	first := e.sendStore(e.keyOf("a", tokens), ids, "forward")
	second := e.sendStore(e.keyOf("b", resident), ids, "")
	third := e.sendStore(e.keyOf("c", prompt(3, testChunk)), nil, "")
	e.silent(50 * time.Millisecond)
	fire()
	_, ok := e.answer(first)
	require.True(t, ok)
	_, ok = e.answer(second)
	require.True(t, ok, "resident")
	_, ok = e.answer(third)
	require.False(t, ok, "no block ids")
}

// Whichever copy of a store fails, nothing of it is published and its keys are
// free; whichever copy of a load fails, its holds end, and nothing writes to
// the engine any more when it hears of it.
func TestEveryCopyMayFail(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, nil)
	e := registered(t, s, 1)
	tokens := prompt(1, 2*testChunk)
	ids := e.ids(4, 2)
	e.write(tokens[0], ids, 0, 2*testChunk)
	k := e.keyOf("a", tokens)
	require.True(t, e.storeKV(k, ids))
	copies := dev.Copies()
	require.Greater(t, copies, 4)
	jobs := 1
	for n := 1; n <= copies; n++ {
		e.none(wire.OpClear, boolFrame(false))
		dev.FailCopy(n, errTold)
		require.False(t, e.storeKV(k, ids), "copy %d", n)
		jobs++
		require.Len(t, dev.Trace(), jobs, "answered while the copy ran")
		require.Zero(t, s.cache.Stats().UsedBytes, "copy %d", n)
		require.Zero(t, e.lookup(k), "copy %d", n)
	}
	require.True(t, e.storeKV(k, ids))
	jobs++
	for n := 1; n <= copies; n++ {
		require.Equal(t, 2, e.lookup(k))
		dev.FailCopy(n, errTold)
		require.False(t, e.retrieveKV(k, ids, 0), "copy %d", n)
		jobs++
		require.Len(t, dev.Trace(), jobs, "answered while the copy ran")
		idle(t, s)
	}
	e.wipe()
	require.Equal(t, 2, e.lookup(k))
	require.True(t, e.retrieveKV(k, ids, 0))
	e.requireKV(tokens[0], ids, 0, 2*testChunk)
	e.end("a")
	idle(t, s)
}

// A copy that takes too long is called off, and answered only then.
func TestLateCopiesAreCalledOff(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{CopyDelay: 20 * time.Millisecond}, func(o *Options) { o.copyLimit = 70 * time.Millisecond })
	e := registered(t, s, 1)
	tokens := prompt(1, 4*testChunk)
	ids := e.ids(4, 4)
	e.write(tokens[0], ids, 0, 4*testChunk)
	require.False(t, e.storeKV(e.keyOf("a", tokens), ids))
	done := dev.Trace()
	require.Len(t, done, 1, "answered while the copy ran")
	require.ErrorIs(t, done[0].Err, device.ErrCanceled)
	require.Less(t, done[0].Copies, done[0].Of)
	idle(t, s)
	require.Zero(t, s.cache.Stats().Resident)
}

// A worker that dies between its store and the event that the store waits for
// is dropped with its connection: its objects abort, its memory is let go of,
// and others store the same chunks.
func TestPeerDiesBeforeItsEvent(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, func(o *Options) { o.ConnectionGrace = time.Millisecond })
	dev.AddEvent("lost")
	dead, other := registered(t, s, 1), registered(t, s, 2)
	tokens := prompt(1, 2*testChunk)
	ids := dead.ids(4, 2)
	dead.sendStore(dead.keyOf("a", tokens), ids, "lost")
	dead.sendStore(dead.keyOf("b", prompt(2, testChunk)), ids, "")
	testutil.Eventually(t, "the copies are on their way", func() bool { return dev.Stats().Pending == 2 })
	dead.close()
	testutil.Eventually(t, "the worker is dropped", func() bool {
		s.sweep(time.Now())
		st := dev.Stats()
		return st.Pending == 0 && st.Mappings == 1 && st.StreamsActive == 2
	})
	testutil.Eventually(t, "nothing is left", func() bool { return s.cache.Stats().UsedBytes == 0 })
	other.write(tokens[0], ids, 0, 2*testChunk)
	require.True(t, other.storeKV(other.keyOf("c", tokens), ids))
	require.Equal(t, 2, other.lookup(other.keyOf("c", tokens)))
	other.end("c")
}

// UNREGISTER lets copies on their way finish, and is answered after them: the
// engine frees its memory then.
func TestUnregisterWaitsForCopies(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, nil)
	e, other := registered(t, s, 1), registered(t, s, 2)
	tokens := prompt(1, testChunk)
	fire := dev.AddEvent("forward")
	first := e.sendStore(e.keyOf("a", tokens), e.ids(4, 1), "forward")
	second := e.sendStore(e.keyOf("b", prompt(2, testChunk)), e.ids(8, 1), "")
	bye := e.send(wire.AppendOp(nil, wire.OpUnregisterKVCache), intFrame(1))
	e.silent(50 * time.Millisecond)
	require.True(t, other.storeKV(other.keyOf("c", prompt(3, testChunk)), other.ids(4, 1)), "others go on")
	fire()
	_, ok := e.answer(first)
	require.True(t, ok)
	_, ok = e.answer(second)
	require.True(t, ok)
	require.Equal(t, [][]byte{bye, wire.AppendOp(nil, wire.OpUnregisterKVCache)}, e.recv())
	require.Equal(t, 1, dev.Stats().Mappings)
	require.Equal(t, 1, other.lookup(other.keyOf("a", tokens)), "published")
	other.end("a")
	require.False(t, e.storeKV(e.keyOf("d", prompt(4, testChunk)), e.ids(4, 1)), "not registered any more")
}

// Many workers that unregister with copies that do not end hold up nobody.
func TestStuckUnregisters(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, func(o *Options) { o.Workers, o.retireLimit = 2, 300*time.Millisecond })
	dev.AddEvent("lost")
	other := registered(t, s, 100)
	var stuck []*engine
	for id := range int64(4) {
		e := registered(t, s, id)
		e.sendStore(e.keyOf("a", prompt(uint64(id+10), testChunk)), e.ids(4, 1), "lost")
		e.send(wire.AppendOp(nil, wire.OpUnregisterKVCache), intFrame(id))
		stuck = append(stuck, e)
	}
	require.True(t, other.storeKV(other.keyOf("b", prompt(1, testChunk)), other.ids(4, 1)))
	for _, e := range stuck {
		_, ok, err := wire.DecodeStoreReply(e.recv()[2])
		require.NoError(t, err)
		require.False(t, ok, "called off")
		require.Len(t, e.recv(), 2, "the answer to UNREGISTER")
	}
	idle(t, s)
	require.Equal(t, 1, dev.Stats().Mappings)
}

// A worker that was silent for too long is dropped with what it has on its
// way; what it copied meanwhile is not published, for it may not be its KV.
func TestReapWithCopiesInFlight(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, nil)
	dev.AddEvent("lost")
	e, other := registered(t, s, 1), registered(t, s, 2)
	require.True(t, e.boolean(wire.OpPing, intFrame(1)))
	tokens := prompt(1, testChunk)
	uid := e.sendStore(e.keyOf("a", tokens), e.ids(4, 1), "lost")
	testutil.Eventually(t, "the copy is on its way", func() bool { return dev.Stats().Pending == 1 })
	s.sweep(time.Now().Add(s.opt.WorkerReapTimeout + time.Second))
	_, ok := e.answer(uid)
	require.False(t, ok)
	require.False(t, e.boolean(wire.OpPing, intFrame(1)), "told to register again")
	idle(t, s)
	testutil.Eventually(t, "its memory is let go of", func() bool { return dev.Stats().Mappings == 1 })
	e.registerKV()
	require.True(t, e.storeKV(e.keyOf("a", tokens), e.ids(4, 1)))
	require.Equal(t, 1, other.lookup(other.keyOf("a", tokens)))
	other.end("a")
}

// A second registration of one id is served from the memory that it names, and
// answered when nothing of the first one is on its way.
func TestRegisterAgain(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, nil)
	dev.AddEvent("lost")
	e := registered(t, s, 1)
	e.registerKV()
	e.registerKV()
	st := dev.Stats()
	require.Equal(t, 1, st.Mappings)
	require.Equal(t, 2, st.StreamsActive)

	tokens := prompt(1, testChunk)
	ids := e.ids(4, 1)
	uid := e.sendStore(e.keyOf("a", tokens), ids, "lost")
	e.newMemory() // a worker that has started over
	again := e.send(wire.AppendOp(nil, wire.OpRegisterKVCache), e.registration()...)
	_, ok := e.answer(uid)
	require.False(t, ok, "what was on its way is called off")
	require.Equal(t, [][]byte{again, wire.AppendOp(nil, wire.OpRegisterKVCache)}, e.recv())
	require.Equal(t, 1, dev.Stats().Mappings)
	idle(t, s)
	e.write(tokens[0], ids, 0, testChunk)
	require.True(t, e.storeKV(e.keyOf("b", tokens), ids))
	e.wipe()
	require.Equal(t, 1, e.lookup(e.keyOf("b", tokens)))
	require.True(t, e.retrieveKV(e.keyOf("b", tokens), ids, 0))
	e.requireKV(tokens[0], ids, 0, testChunk)
	e.end("b")
}

// A storage that cannot be opened refuses the registration and leaves nothing.
func TestRegistrationThatCannotBeOpened(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, nil)
	e := newEngine(t, s, 1, false, oneGroup)
	dev.FailOpen(1)
	_, refused := e.call(wire.OpRegisterKVCache, e.registration()...)
	require.True(t, refused)
	require.Zero(t, dev.Stats().Mappings)
	require.False(t, e.boolean(wire.OpPing, intFrame(1)), "told to try again")
	e.registerKV()
}

// Without a driver GPU memory is refused, with what to do about it.
func TestGPUMemoryIsRefused(t *testing.T) {
	var buf syncBuffer
	s := startServer(t, func(o *Options) {
		o.Logger = slog.New(slog.NewTextHandler(&buf, nil))
		o.gpuDriver = func() (gpuDriver, error) { return nil, errTold }
	})
	e := newEngine(t, s, 1, false, oneGroup)
	d, _ := torchdtype.Lookup("uint8")
	r := e.registration()
	w := wire.DeviceWrapper{
		Source:   &wire.CUDARaw{SizeBytes: 1 << 20},
		Metadata: wire.TensorMetadata{DType: d, Shape: []int64{4, 4, 4, 8}, Stride: []int64{128, 32, 8, 1}, DeviceUUID: "d5a55c39-9e1d-0000-0000-000000000000"},
	}
	r[1] = wire.AppendDeviceWrappers(nil, []wire.DeviceWrapper{w, w})
	_, refused := e.call(wire.OpRegisterKVCache, r...)
	require.True(t, refused)
	require.Contains(t, buf.String(), "engine_driven")
	require.Contains(t, buf.String(), "instance_id=1")
	// The chunk size that would do is in the log too.
	e.blockSlots, e.blocks = 12, 16
	_, refused = e.call(wire.OpRegisterKVCache, e.registration()...)
	require.True(t, refused)
	require.Contains(t, buf.String(), "multiple of 12")
}

// syncBuffer is a buffer for a logger.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A device with events answers at once: the client waits by itself. Lookups
// wait for the copy; one that fails publishes nothing.
func TestDeviceWithEvents(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{Async: true}, func(o *Options) { o.PendingLookupTimeout = time.Minute })
	e, sched := registered(t, s, 1), connect(t, s)
	tokens := prompt(1, 2*testChunk)
	ids := e.ids(4, 2)
	e.write(tokens[0], ids, 0, 2*testChunk)
	fire := dev.AddEvent("forward")
	ev, ok := e.answer(e.sendStore(e.keyOf("a", tokens), ids, "forward"))
	require.True(t, ok)
	require.True(t, strings.HasPrefix(ev, "fake event"), "got %q", ev)
	k := e.keyOf("b", tokens)
	sched.none(wire.OpLookup, keyFrame(scheduler(k)), intFrame(1))
	_, known := sched.tryQuery("b")
	require.False(t, known)
	fire()
	require.Equal(t, 2, sched.query("b"))
	e.wipe()
	ev, ok = e.answer(e.sendRetrieve(k, ids, 0, ""))
	require.True(t, ok)
	require.NotEmpty(t, ev)
	testutil.Eventually(t, "the load is done", func() bool { return dev.Stats().Pending == 0 })
	e.requireKV(tokens[0], ids, 0, 2*testChunk)
	sched.end("b")

	bad := prompt(2, testChunk)
	dev.FailCopy(1, errTold)
	_, ok = e.answer(e.sendStore(e.keyOf("c", bad), ids, ""))
	require.True(t, ok)
	require.Zero(t, sched.lookup(e.keyOf("d", bad)))
	_, ok = e.answer(e.sendStore(e.keyOf("c", bad), ids, "no such event"))
	require.False(t, ok, "an event that cannot be opened")
	idle(t, s)
}

// At the stop, copies on their way finish within the drain time and are
// answered; the rest is called off and answered too.
func TestStopWithCopiesInFlight(t *testing.T) {
	f := func(name string, fires bool) {
		t.Run(name, func(t *testing.T) {
			s, dev := fakeServer(t, device.FakeOptions{}, func(o *Options) { o.DrainTimeout = 300 * time.Millisecond })
			fire := dev.AddEvent("forward")
			e := registered(t, s, 1)
			uid := e.sendStore(e.keyOf("a", prompt(1, testChunk)), e.ids(4, 1), "forward")
			testutil.Eventually(t, "the copy is on its way", func() bool { return dev.Stats().Pending == 1 })
			closed := make(chan error, 1)
			go func() { closed <- s.Close() }()
			testutil.Eventually(t, "it stops", s.draining.Load)
			if fires {
				fire()
			}
			_, ok := e.answer(uid)
			require.Equal(t, fires, ok)
			require.NoError(t, testutil.Receive(t, "the end", closed))
		})
	}
	f("they finish", true)
	f("they do not", false)
}

// A client that cuts its segment short loses its registration and nobody else
// anything.
func TestSegmentCutShort(t *testing.T) {
	s := startServer(t, nil)
	e, other := registered(t, s, 1), registered(t, s, 2)
	require.True(t, e.boolean(wire.OpPing, intFrame(1)))
	tokens := prompt(1, testChunk)
	ids := e.ids(4, 1)
	other.write(tokens[0], ids, 0, testChunk)
	require.True(t, other.storeKV(other.keyOf("a", tokens), ids))
	require.Equal(t, 1, other.lookup(e.keyOf("b", tokens)))
	require.NoError(t, os.Truncate(filepath.Join("/dev/shm", e.key), 0))
	require.False(t, e.retrieveKV(e.keyOf("b", tokens), ids, 0))
	require.False(t, e.storeKV(e.keyOf("c", prompt(2, testChunk)), ids))
	idle(t, s)
	require.False(t, e.boolean(wire.OpPing, intFrame(1)), "told to register again")
	e.newMemory()
	e.registerKV()
	require.Equal(t, 1, other.lookup(e.keyOf("d", tokens)))
	require.True(t, e.retrieveKV(e.keyOf("d", tokens), ids, 0))
	e.requireKV(tokens[0], ids, 0, testChunk)
	other.end("d")
	other.end("b")
}

// An engine that asks several servers may load less than our hit: a window
// ends elsewhere then.
func TestRetrieveOfAShorterHit(t *testing.T) {
	groups := []kvGroup{{layers: 1, heads: 2, headBytes: 8}, {layers: 1, heads: 2, headBytes: 8, window: testChunk}}
	s := startServer(t, func(o *Options) { o.SeparateObjectGroups = true })
	e := newEngine(t, s, 1, false, groups)
	e.registerKV()
	tokens := prompt(1, 4*testChunk)
	ids := e.ids(4, 4)
	e.write(tokens[0], ids, 0, 4*testChunk)
	k := e.keyOf("a", tokens)
	require.True(t, e.storeKV(k, ids))
	require.Equal(t, 4, e.lookup(k))
	tail := scheduler(k)
	tail.Start = 2 * testChunk
	e.none(wire.OpFreeLookupLocks, keyFrame(tail), intFrame(1))
	short := k
	short.End = 2 * testChunk
	e.wipe()
	require.True(t, e.retrieveKV(short, ids, 0))
	n := testChunk / e.blockSlots
	require.Zero(t, e.wrong(0, tokens[0], ids[0], 0, 2*testChunk))
	require.Zero(t, e.wrong(1, tokens[0], ids[1][n:], testChunk, 2*testChunk))
	e.end("a")
	idle(t, s)
}

// A panic at the end of a copy is that request's failure, and not the end of
// the device's thread, which takes the process with it.
func TestPanicAtTheEndOfACopy(t *testing.T) {
	s, _ := fakeServer(t, device.FakeOptions{}, nil)
	q, err := newCopyQueue(s.dev, "test")
	require.NoError(t, err)
	c := &copyJob{
		s: s, r: &request{op: wire.OpStore}, t: &blockTransfer{d: &serverDriven{dev: s.dev}}, q: q,
		job: device.Job{Plan: copyplan.Acquire()}, finish: func(error) string { panic("boom") },
	}
	require.Equal(t, "panic", c.settle(nil))
	require.NoError(t, q.stream.Close(t.Context()))
}

// A load whose event never fires is called off: nothing was written, and the
// hit is given back.
func TestLoadThatNeverBegins(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, func(o *Options) { o.copyLimit = 200 * time.Millisecond })
	dev.AddEvent("lost")
	e := registered(t, s, 1)
	tokens := prompt(1, 2*testChunk)
	ids := e.ids(4, 2)
	e.write(tokens[0], ids, 0, 2*testChunk)
	k := e.keyOf("a", tokens)
	require.True(t, e.storeKV(k, ids))
	e.wipe()
	require.Equal(t, 2, e.lookup(k))
	_, ok := e.answer(e.sendRetrieve(k, ids, 0, "lost"))
	require.False(t, ok)
	require.Equal(t, 2*testChunk, e.wrong(0, tokens[0], ids[0], 0, 2*testChunk))
	idle(t, s)
	require.Equal(t, 2, e.lookup(k), "it is still there")
	require.True(t, e.retrieveKV(k, ids, 0))
	e.end("a")
}

// CLEAR with force takes objects away from copies on their way, but not their
// memory: a store publishes nothing, a load gets its bytes.
func TestClearWithCopiesInFlight(t *testing.T) {
	s, dev := fakeServer(t, device.FakeOptions{}, nil)
	fireStore, fireLoad := dev.AddEvent("store"), dev.AddEvent("load")
	e, other := registered(t, s, 1), registered(t, s, 2)
	tokens, more := prompt(1, 2*testChunk), prompt(2, 2*testChunk)
	ids := e.ids(4, 2)
	e.write(tokens[0], ids, 0, 2*testChunk)
	k := e.keyOf("a", tokens)
	require.True(t, e.storeKV(k, ids))
	e.wipe()
	require.Equal(t, 2, e.lookup(k))
	load := e.sendRetrieve(k, ids, 0, "load")
	store := other.sendStore(other.keyOf("b", more), ids, "store")
	testutil.Eventually(t, "the copies are on their way", func() bool { return dev.Stats().Pending == 2 })
	other.send(wire.AppendOp(nil, wire.OpClear), boolFrame(true))
	require.Len(t, other.recv(), 2)
	require.Zero(t, s.cache.Stats().Resident)
	// Their memory is nobody else's.
	third := registered(t, s, 3)
	require.True(t, third.storeKV(third.keyOf("d", prompt(3, 2*testChunk)), ids))
	fireLoad()
	_, ok := e.answer(load)
	require.True(t, ok)
	e.requireKV(tokens[0], ids, 0, 2*testChunk)
	fireStore()
	_, ok = other.answer(store)
	require.False(t, ok, "what was cleared is not stored")
	require.Zero(t, other.lookup(other.keyOf("c", more)))
	e.end("a")
	idle(t, s)
}

// A copy that cannot be called off any more when its worker ends may complete:
// its result is not used.
func TestCopyThatOutlivesItsWorker(t *testing.T) {
	s, _ := fakeServer(t, device.FakeOptions{}, nil)
	q, err := newCopyQueue(s.dev, "test")
	require.NoError(t, err)
	var got error
	c := &copyJob{
		s: s, r: &request{op: wire.OpStore}, t: &blockTransfer{transfer: transfer{requestKey: &requestKey{}}, d: &serverDriven{dev: s.dev}}, q: q,
		job: device.Job{Plan: copyplan.Acquire()}, finish: func(err error) string { got = err; return copyReason(err) },
	}
	q.end()
	require.Equal(t, "unknown_instance", c.settle(nil))
	require.ErrorIs(t, got, errInstanceEnded)
	require.NoError(t, q.stream.Close(t.Context()))
}
