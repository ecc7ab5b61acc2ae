package device

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/cudatest"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

// cudaRig is a device on the fake driver or a real one, with a pinned pool.
type cudaRig struct {
	*CUDA
	t    testing.TB
	drv  *cuda.Driver
	pool []byte
}

func newCUDARig(t testing.TB, poolBytes int64, o CUDAOptions) *cudaRig {
	t.Helper()
	drv := cudatest.Driver(t)
	dev := drv.Devices()[0]
	d, err := NewCUDA(drv, dev.UUID, o)
	require.NoError(t, err)
	r := &cudaRig{CUDA: d, t: t, drv: drv, pool: mapPool(t, poolBytes)}
	pin, err := drv.PinHost(dev, r.pool)
	require.NoError(t, err)
	t.Cleanup(func() {
		if d.Stats().Stuck > 0 {
			return // nothing of this GPU can be given back any more
		}
		require.NoError(t, pin.Unpin())
		require.Zero(t, drv.Retained(dev), "the context is still held")
	})
	return r
}

// end closes the device, which must leave nothing.
func (r *cudaRig) end() {
	r.t.Helper()
	require.NoError(r.t, r.Close())
	st := r.Stats()
	if st.Pending != 0 || st.Mappings != 0 || st.StreamsActive != 0 || st.Stuck != 0 {
		r.t.Errorf("left behind: %+v", st)
	}
}

// mapPool is memory outside the Go heap, its pages present.
func mapPool(t testing.TB, n int64) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// shape is a cache as vLLM 0.33 lays it out: all layers in one storage.
type shape struct {
	name                        string
	layers, heads, slots, bytes int64 // bytes of a row of one head
	hnd, blocksFirst            bool
	chunk                       int // tokens
	blocks                      int64
}

func (s *shape) blockBytes() int64 { return s.heads * s.slots * s.bytes }

// gpuEngine is a process with a cache in the GPU's memory.
type gpuEngine struct {
	*cudatest.Exporter
	t      testing.TB
	s      shape
	layout *kvlayout.Layout
	begun  chan []byte // of the last job
	memory []Memory
	object int64 // bytes of one
}

func (r *cudaRig) engine(s shape) *gpuEngine {
	r.t.Helper()
	total := s.layers * s.blocks * s.blockBytes()
	x := cudatest.StartExporter(r.t, total)
	key := CUDAIPCPrefix + hex.EncodeToString(x.Memory[:]) + ":0"
	in := kvlayout.Input{Engine: kvlayout.EngineVLLM, Hints: kvlayout.Hints{KVLayout: "NHD"}, ChunkTokens: s.chunk}
	bb, row := s.blockBytes(), s.bytes/2
	for l := range s.layers {
		t := kvlayout.Tensor{DType: "float16", ElemBytes: 2, Storage: key, StorageBytes: total}
		stride := bb
		t.Offset = l * s.blocks * bb / 2
		if s.blocksFirst {
			stride, t.Offset = bb*s.layers, l*bb/2
		}
		t.Shape, t.Stride = []int64{s.blocks, s.slots, s.heads, row}, []int64{stride / 2, s.heads * row, row, 1}
		if s.hnd {
			t.Shape, t.Stride = []int64{s.blocks, s.heads, s.slots, row}, []int64{stride / 2, s.slots * row, row, 1}
		}
		in.Tensors = append(in.Tensors, t)
	}
	if s.hnd {
		in.Hints.KVLayout = "HND"
	}
	l, err := kvlayout.New(in)
	require.NoError(r.t, err)
	e := &gpuEngine{Exporter: x, t: r.t, s: s, layout: l, object: l.Object[0].Form.Bytes}
	for _, st := range l.Storages {
		m, err := r.Open(st.Key, st.Bytes)
		require.NoError(r.t, err)
		e.memory = append(e.memory, m)
	}
	return e
}

// blocksPerChunk is how many blocks an object holds.
func (e *gpuEngine) blocksPerChunk() int64 { return int64(e.s.chunk) / e.s.slots }

// ids are distinct blocks for so many chunks; adjacent ones run on.
func (e *gpuEngine) ids(chunks int, adjacent bool) []int64 {
	n := int64(chunks) * e.blocksPerChunk()
	ids := make([]int64, 0, n)
	if adjacent {
		for i := range n {
			ids = append(ids, i)
		}
		return ids
	}
	for _, i := range rand.Perm(int(e.s.blocks))[:n] {
		ids = append(ids, int64(i))
	}
	return ids
}

// plan copies chunks between ids and the pool from its start.
func (e *gpuEngine) plan(d Device, chunks int, ids []int64) *copyplan.Plan {
	p := copyplan.Acquire()
	objects := make([]copyplan.Object, chunks)
	for i := range objects {
		objects[i] = copyplan.Object{Chunk: i, Offset: int64(i) * e.object, Bytes: e.object}
	}
	require.NoError(e.t, p.Add(&copyplan.Request{Layout: e.layout, BlockIDs: [][]int64{ids}, Chunks: chunks}, objects, d.Traits().Plans))
	return p
}

// check compares the pool with what a seed's engine has in those blocks.
func (e *gpuEngine) check(pool []byte, seed uint64, ids []int64) {
	e.t.Helper()
	bb, bpc := e.s.blockBytes(), e.blocksPerChunk()
	for i, id := range ids {
		chunk, j := int64(i)/bpc, int64(i)%bpc
		for l := range e.s.layers {
			at := chunk*e.object + (l*bpc+j)*bb
			from := e.place(l, id)
			if bad := cudatest.Matches(pool[at:at+bb], seed, from); bad >= 0 {
				e.t.Fatalf("%s: block %d, layer %d: wrong from byte %d on", e.s.name, id, l, bad)
			}
		}
	}
}

// place is where a block lies in the storage.
func (e *gpuEngine) place(layer, id int64) int64 {
	if e.s.blocksFirst {
		return (id*e.s.layers + layer) * e.s.blockBytes()
	}
	return (layer*e.s.blocks + id) * e.s.blockBytes()
}

// submit runs a job and returns its event and where its end is told. The event
// is nil if the job has to wait; then e.begun tells it.
func (e *gpuEngine) submit(s Stream, pool []byte, dir copyplan.Direction, p *copyplan.Plan, after []byte) (event []byte, done chan error) {
	e.t.Helper()
	done = make(chan error, 1)
	begun := make(chan []byte, 1)
	e.begun = begun
	event, err := s.Submit(&Job{
		Direction: dir, Plan: p, Engine: e.memory, Pool: pool, After: after,
		Begun: func(event []byte) { begun <- event }, Done: func(err error) { done <- err },
	})
	require.NoError(e.t, err)
	return event, done
}

// finished waits for a job; the limit only ends a test that hangs.
func finished(t testing.TB, done chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(60 * time.Second):
		t.Fatal("the job does not end")
		return nil
	}
}

func report(format string, a ...any) { fmt.Fprintf(os.Stderr, "    "+format+"\n", a...) }

func poolAddress(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
