package pd

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/cudatest"
	"github.com/lmcache-go/lmcache-go/nixl"
)

// A reader maps a producer's GPU memory and pulls blocks by a kernel, against
// the fake driver and on a real GPU alike.
func TestPullByKernel(t *testing.T) {
	drv := cudatest.Driver(t)
	dev := drv.Devices()[0]
	c, err := drv.Retain(dev)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Release()) }()
	const blocks, size = 40, 80 << 10 // larger than a piece
	e := cudatest.StartExporter(t, blocks*size)
	buf, err := c.Alloc(blocks * size)
	require.NoError(t, err)
	defer func() { require.NoError(t, buf.Free()) }()

	p := &Peer{mem: nixl.VRAM, opts: Options{CUDA: c}.withDefaults()}
	g := &gpuPuller{ctx: c, blocks: 4}
	const far = 0x7f00_0000_0000 // where the producer has it
	offer := (&Options{SharedGPU: []SharedGPU{{Handle: e.Memory, Addr: far, Bytes: blocks * size}}}).directOffer()
	d := p.openDirect(offer, &AgentMetadata{})
	require.NotNil(t, d)
	defer d.close()
	var spans []span
	for i, id := range rand.New(rand.NewPCG(1, 2)).Perm(blocks) {
		spans = append(spans, span{uintptr(buf.Address) + uintptr(i*size), far + uintptr(id*size), size})
	}
	job, ok := d.prepare(spans)
	require.True(t, ok)
	require.NoError(t, g.pull(t.Context(), job.spans))
	got := download(t, c, buf)
	for i, s := range spans {
		require.Equal(t, e.Read(int64(s.remote-far), size), got[i*size:(i+1)*size], "block %d", i)
	}
	_, ok = d.prepare([]span{{uintptr(buf.Address), far + blocks*size - 1, 2}})
	require.False(t, ok)
	g.close()
	require.ErrorIs(t, g.pull(t.Context(), job.spans), ErrClosed)

	short := (&Options{SharedGPU: []SharedGPU{{Handle: e.Memory, Addr: far, Bytes: 1 << 40}}}).directOffer()
	require.Nil(t, p.openDirect(short, &AgentMetadata{}), "more than there is")
	host := &Peer{mem: nixl.DRAM, opts: p.opts}
	require.Nil(t, host.openDirect(offer, &AgentMetadata{}), "into host memory")
}

func download(t testing.TB, c *cuda.Context, b *cuda.Buffer) (out []byte) {
	t.Helper()
	staged(t, c, b.SizeBytes, func(s *cuda.Stream, h *cuda.HostBuffer) {
		require.NoError(t, s.Copy(h.Address, b.Address, b.SizeBytes))
		require.NoError(t, s.Wait())
		out = append([]byte(nil), h.Bytes()...)
	})
	return out
}

func upload(t testing.TB, c *cuda.Context, b *cuda.Buffer, fill func([]byte)) {
	t.Helper()
	staged(t, c, b.SizeBytes, func(s *cuda.Stream, h *cuda.HostBuffer) {
		fill(h.Bytes())
		require.NoError(t, s.Copy(b.Address, h.Address, b.SizeBytes))
		require.NoError(t, s.Wait())
	})
}

// staged calls f with a stream and pinned memory.
func staged(t testing.TB, c *cuda.Context, size int64, f func(*cuda.Stream, *cuda.HostBuffer)) {
	t.Helper()
	s, err := c.NewStream()
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Destroy()) }()
	h, err := c.AllocHost(size)
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Free()) }()
	f(s, h)
}

// gpuCache is a KV cache of one layer in GPU memory.
type gpuCache struct {
	ctx    *cuda.Context
	buf    *cuda.Buffer
	handle cuda.MemHandle
	blocks int
	block  int
}

var driver = sync.OnceValues(func() (*cuda.Driver, error) { return cuda.Load(cuda.LoadOptions{}) })

// newGPUCache takes a device by its ordinal, the last one when there are fewer.
func newGPUCache(ordinal, blocks, blockBytes int) (*gpuCache, error) {
	drv, err := driver()
	if err != nil {
		return nil, err
	}
	all := drv.Devices()
	c, err := drv.Retain(all[min(ordinal, len(all)-1)])
	if err != nil {
		return nil, err
	}
	g := &gpuCache{ctx: c, blocks: blocks, block: blockBytes}
	if g.buf, err = c.Alloc(int64(blocks) * int64(blockBytes)); err != nil {
		return nil, err
	}
	g.handle, err = g.buf.Handle()
	return g, err
}

func (g *gpuCache) options() Options {
	ordinal, addr := g.ctx.Device().Ordinal, uintptr(g.buf.Address)
	return Options{
		Library: testLib, Model: testModel(2), BlockTokens: 16, Host: "127.0.0.1", CUDA: g.ctx,
		Memory:    []nixl.Region{nixl.CUDAMemory(addr, int(g.buf.SizeBytes), ordinal)},
		Regions:   []Region{{Name: "model.layers.0.self_attn.attn", Addr: addr, BlockBytes: g.block, Blocks: g.blocks}},
		SharedGPU: []SharedGPU{{Handle: g.handle, Addr: addr, Bytes: g.buf.SizeBytes}},
	}
}

func (g *gpuCache) close(t testing.TB) {
	t.Helper()
	require.NoError(t, g.buf.Free())
	require.NoError(t, g.ctx.Release())
}

// TestPullBetweenGPUs reads KV from another process's GPU memory, through NIXL
// and by the kernel, checks all bytes and logs what each reaches. The producer
// has the second GPU where there is one.
func TestPullBetweenGPUs(t *testing.T) {
	cudatest.NeedGPU(t)
	needLib(t)
	for _, c := range []struct{ blocks, bytes int }{{16 << 10, 64 << 10}, {64 << 10, 8 << 10}} {
		t.Run(fmt.Sprintf("%d of %d KiB", c.blocks, c.bytes>>10), func(t *testing.T) {
			far := startChild(t, childConfig{Blocks: c.blocks, Bytes: c.bytes, Seed: 7, GPU: 2})
			to, err := newGPUCache(0, c.blocks, c.bytes)
			require.NoError(t, err)
			defer to.close(t)
			order := make([]int64, c.blocks)
			for i, id := range rand.New(rand.NewPCG(5, 6)).Perm(c.blocks) {
				order[i] = int64(id)
			}
			f := func(name string, change func(*Options)) {
				t.Helper()
				o := to.options()
				change(&o)
				p, err := New(o)
				require.NoError(t, err)
				defer func() { require.NoError(t, p.Close()) }()
				upload(t, to.ctx, to.buf, func(b []byte) { clear(b) })
				best, direct := time.Hour, false
				for range 4 {
					res, err := p.Pull(t.Context(), "x", far.Params, [][]int64{order})
					require.NoError(t, err)
					best, direct = min(best, res.Transfer), res.Direct
				}
				got := download(t, to.ctx, to.buf)
				for i, id := range order { // producer block i went to our block id
					for j := range c.bytes {
						at := i*c.bytes + j
						if want := byte(at*31 + at>>8*7 + at>>16*13 + 7); got[int(id)*c.bytes+j] != want {
							t.Fatalf("%s: byte %d of block %d is %d, want %d", name, j, id, got[int(id)*c.bytes+j], want)
						}
					}
				}
				t.Logf("%-44s %7.1f GB/s  direct %v", name, float64(c.blocks)*float64(c.bytes)/best.Seconds()/1e9, direct)
			}
			f("NIXL, no threads (its default)", func(o *Options) { o.NoDirect, o.UCX.Threads = true, -1 })
			f("NIXL, 4 threads (as vLLM)", func(o *Options) { o.NoDirect, o.UCX.Threads = true, 4 })
			f("NIXL, threads chosen by package nixl", func(o *Options) { o.NoDirect = true })
			f("kernel, 16 multiprocessors", func(o *Options) { o.PullBlocks = 16 })
			f("kernel, 32 multiprocessors (default)", func(*Options) {})
			f("kernel, 64 multiprocessors", func(o *Options) { o.PullBlocks = 64 })
			far.end(t)
		})
	}
}
