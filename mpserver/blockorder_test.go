package mpserver

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/mpserver/torchpickle"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// registerCopier registers an engine-driven worker of the model of oneGroup.
func (p *peer) registerCopier(instance int64) {
	p.t.Helper()
	c := wire.EngineDrivenContext{InstanceID: instance, Model: testModel, WorldSize: 1, BlockSize: testChunk, NumLayers: 2, HiddenDim: 32, DType: "uint8", UseMLA: true}
	_, refused := p.call(wire.OpRegisterEngineDriven, wire.AppendEngineDrivenContext(nil, &c))
	require.False(p.t, refused)
}

// tokenMajor is the object of one chunk of oneGroup as engine-driven workers
// know it.
func tokenMajor(seed uint32, chunk int) []byte {
	g := oneGroup[0]
	out := make([]byte, 0, g.objectBytes())
	for layer := range g.layers {
		for tok := chunk * testChunk; tok < (chunk+1)*testChunk; tok++ {
			for head := range g.heads {
				for i := range g.headBytes {
					out = append(out, content(seed, tok, 0, layer, head, i))
				}
			}
		}
	}
	return out
}

// Engines of one model whose blocks have heads and tokens in another order, or
// another size, load each other's objects.
func TestEnginesOfEveryOrderShareObjects(t *testing.T) {
	share := func(t *testing.T, s *Server) {
		t.Helper()
		var engines []*engine
		for i, hnd := range []bool{false, true, true} {
			e := newEngine(t, s, int64(i+1), hnd, oneGroup)
			if i == 2 {
				e.blockSlots, e.blocks = 8, 32 // the same memory in larger blocks
			}
			e.registerKV()
			engines = append(engines, e)
		}
		for w, writer := range engines {
			tokens := prompt(uint64(w+1), 3*testChunk)
			ids := writer.ids(2, 3)
			writer.write(tokens[0], ids, 0, 3*testChunk)
			require.True(t, writer.storeKV(writer.keyOf("w", tokens), ids))
			for _, reader := range engines {
				n, to := reader.blockSlots, reader.ids(4, 3)
				for _, skip := range []int{0, n, testChunk + n} {
					reader.wipe()
					k := reader.keyOf("r", tokens)
					require.Equal(t, 3, reader.lookup(k))
					require.True(t, reader.retrieveKV(k, to, skip))
					reader.requireKV(tokens[0], [][]int64{to[0][skip/n:]}, skip, 3*testChunk)
					require.Equal(t, skip, reader.wrong(0, tokens[0], to[0], 0, 3*testChunk))
					reader.end("r")
				}
			}
		}
		idle(t, s)
	}
	onDevices(t, nil, share)
	t.Run("a device that only copies", func(t *testing.T) {
		s, _ := fakeServer(t, device.FakeOptions{CopiesOnly: true}, nil)
		share(t, s)
	})
}

// Workers that copy themselves read the objects of engines whose heads come
// first as slots in their own order, which live until they have committed.
func TestSlotsOfHeadMajorObjects(t *testing.T) {
	s := startServer(t, shared(t))
	e, p := newEngine(t, s, 1, true, oneGroup), connect(t, s)
	e.registerKV()
	p.registerCopier(2)
	tokens := prompt(1, 3*testChunk)
	ids := e.ids(4, 3)
	e.write(tokens[0], ids, 0, 2*testChunk)
	k := e.keyOf("a", tokens)
	k.End = 2 * testChunk
	require.True(t, e.storeKV(k, ids))
	// The third chunk is one of their own.
	k.Start, k.End = 2*testChunk, 3*testChunk
	r := p.prepareStore(k, 2)
	require.Len(t, r.Slots, 1)
	copy(s.arena.Bytes()[r.Slots[0].Offset:], tokenMajor(tokens[0], 2))
	require.True(t, p.commitStore(k, 2))
	used := s.cache.Stats().UsedBytes

	k.Start, k.RequestID = 0, "b"
	read := func() {
		t.Helper()
		got := p.prepareRetrieve(k, 2)
		require.True(t, got.Success)
		require.Len(t, got.Slots, 3)
		for i, sl := range got.Slots {
			require.Equal(t, tokenMajor(tokens[0], i), s.arena.Bytes()[sl.Offset:sl.Offset+sl.Length], "chunk %d", i)
		}
	}
	require.Equal(t, 3, p.lookup(k))
	require.Equal(t, 3, p.lookup(k))
	read()
	read()
	require.Greater(t, s.cache.Stats().UsedBytes, used)
	require.True(t, p.commitRetrieve(k, 2))
	require.True(t, p.commitRetrieve(k, 2))
	require.Equal(t, used, s.cache.Stats().UsedBytes)
	p.end("b")
	idle(t, s)

	// What lies in the hands of a worker that leaves is given back.
	require.Equal(t, 3, p.lookup(k))
	read()
	p.none(wire.OpUnregisterEngineDriven, intFrame(2))
	require.Equal(t, used, s.cache.Stats().UsedBytes)
	p.end("b")
	idle(t, s)

	// The engine reads the objects of the workers too.
	e.wipe()
	require.Equal(t, 3, e.lookup(k))
	require.True(t, e.retrieveKV(k, ids, 0))
	e.requireKV(tokens[0], ids, 0, 3*testChunk)
	e.end("b")
	idle(t, s)
}

func TestPickleOfHeadMajorObjects(t *testing.T) {
	s := startServer(t, nil)
	e, p := newEngine(t, s, 1, true, oneGroup), connect(t, s)
	e.registerKV()
	p.registerCopier(2)
	tokens := prompt(1, 2*testChunk)
	ids := e.ids(4, 2)
	e.write(tokens[0], ids, 0, 2*testChunk)
	k := e.keyOf("a", tokens)
	require.True(t, e.storeKV(k, ids))
	require.Equal(t, 2, p.lookup(k))
	r := p.prepareRetrieve(k, 2)
	require.True(t, r.Success)
	got, err := torchpickle.Parse(r.Data)
	require.NoError(t, err)
	require.Len(t, got, 2)
	for i := range got {
		b := make([]byte, got[i].NumBytes())
		require.NoError(t, got[i].CopyTo(b))
		require.Equal(t, tokenMajor(tokens[0], i), b, "chunk %d", i)
	}
	p.end("a")
	idle(t, s)
}

// Without room for reordered copies the hit is refused as a whole, and its
// holds end.
func TestNoRoomToReorder(t *testing.T) {
	s := startServer(t, func(o *Options) {
		shared(t)(o)
		o.L1.SizeBytes, o.L1.EvictionPolicy = 3*4096, EvictNone
	})
	e, p := newEngine(t, s, 1, true, oneGroup), connect(t, s)
	e.registerKV()
	p.registerCopier(2)
	tokens := prompt(1, 2*testChunk)
	k := e.keyOf("a", tokens)
	require.True(t, e.storeKV(k, e.ids(4, 2)))
	require.Equal(t, 2, p.lookup(k))
	require.False(t, p.prepareRetrieve(k, 2).Success)
	idle(t, s)
	p.end("a")
}

// Rows of one size may be split into other heads: such engines share nothing,
// instead of finding what they cannot load.
func TestOtherHeadsAreOtherObjects(t *testing.T) {
	s := startServer(t, nil)
	four, two := newEngine(t, s, 1, true, oneGroup), newEngine(t, s, 2, true, []kvGroup{{layers: 2, heads: 2, headBytes: 16}})
	four.registerKV()
	tokens := prompt(1, testChunk)
	ids := four.ids(4, 1)
	require.True(t, four.storeKV(four.keyOf("a", tokens), ids))
	_, refused := two.call(wire.OpRegisterKVCache, two.registration()...)
	require.True(t, refused, "beside each other")
	four.none(wire.OpUnregisterKVCache, intFrame(1))
	two.registerKV()
	require.Zero(t, two.lookup(two.keyOf("b", tokens)))
	two.write(tokens[0], ids, 0, testChunk)
	require.True(t, two.storeKV(two.keyOf("b", tokens), ids))
	require.Equal(t, 1, two.lookup(two.keyOf("b", tokens)))
	require.True(t, two.retrieveKV(two.keyOf("b", tokens), ids, 0))
	two.requireKV(tokens[0], ids, 0, testChunk)
	two.none(wire.OpUnregisterKVCache, intFrame(2))
	four.registerKV()
	require.Equal(t, 1, four.lookup(four.keyOf("c", tokens)), "its own are still there")
	require.True(t, four.retrieveKV(four.keyOf("c", tokens), ids, 0))
	idle(t, s)
}
