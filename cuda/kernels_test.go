//go:build linux && cgo

package cuda_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/cudatest"
)

// bench is device memory, a stream, and a way to look at the memory.
type bench struct {
	t    testing.TB
	c    *cuda.Context
	s    *cuda.Stream
	a, b *cuda.Buffer
	host *cuda.HostBuffer
}

func newBench(t testing.TB, n int64) *bench {
	t.Helper()
	x := &bench{t: t, c: retain(t, cudatest.Driver(t))}
	var err error
	x.s, err = x.c.NewStream()
	require.NoError(t, err)
	x.a, err = x.c.Alloc(n)
	require.NoError(t, err)
	x.b, err = x.c.Alloc(n)
	require.NoError(t, err)
	x.host, err = x.c.AllocHost(n)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, x.s.Wait())
		require.NoError(t, x.host.Free())
		require.NoError(t, x.a.Free())
		require.NoError(t, x.b.Free())
		require.NoError(t, x.s.Destroy())
		require.NoError(t, x.c.Release())
	})
	return x
}

// write fills a with random bytes and returns them.
func (x *bench) write() []byte {
	x.t.Helper()
	b := x.host.Bytes()
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; i+8 <= len(b); i += 8 {
		v := r.Uint64()
		copy(b[i:], []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24), byte(v >> 32), byte(v >> 40), byte(v >> 48), byte(v >> 56)})
	}
	require.NoError(x.t, x.s.Copy(x.a.Address, x.host.Address, x.a.SizeBytes))
	require.NoError(x.t, x.s.Wait())
	return bytes.Clone(b)
}

// read returns b.
func (x *bench) read() []byte {
	x.t.Helper()
	require.NoError(x.t, x.s.Copy(x.host.Address, x.b.Address, x.b.SizeBytes))
	require.NoError(x.t, x.s.Wait())
	return x.host.Bytes()
}

// time of f on the device, in milliseconds, the best of four.
func (x *bench) time(f func()) (best float64) {
	x.t.Helper()
	begin, err := x.c.NewEvent(cuda.EventOptions{Timing: true})
	require.NoError(x.t, err)
	end, err := x.c.NewEvent(cuda.EventOptions{Timing: true})
	require.NoError(x.t, err)
	defer func() { _, _ = begin.Destroy(), end.Destroy() }()
	for i := range 4 {
		require.NoError(x.t, begin.Record(x.s))
		f()
		require.NoError(x.t, end.Record(x.s))
		require.NoError(x.t, end.Wait())
		ms, err := end.Since(begin)
		require.NoError(x.t, err)
		if i == 0 || ms < best {
			best = ms
		}
	}
	return best
}

func report(format string, a ...any) { fmt.Fprintf(os.Stderr, "    "+format+"\n", a...) }

// The kernel copies pieces of every alignment, some longer than a thread block
// takes at once.
func TestPull(t *testing.T) {
	x := newBench(t, 1<<20)
	want := x.write()
	p, err := x.c.NewPuller(64)
	require.NoError(t, err)
	defer p.Close()
	var dst, src, size []uint64
	moved := make([]byte, len(want))
	at := uint64(0)
	for i, n := range []uint64{16, 4096, 8, 24, 4, 1, 3, 70000, 200 << 10, 65536, 12, 513} {
		from := (uint64(i)*7919*16 + uint64(i%3)*4) % (700 << 10)
		if i%2 == 0 {
			at = (at + 15) / 16 * 16
		}
		dst, src, size = append(dst, x.b.Address+at), append(src, x.a.Address+from), append(size, n)
		copy(moved[at:], want[from:from+n])
		at += n
	}
	for _, o := range []cuda.PullOptions{{}, {Blocks: 1, Threads: 32}, {Blocks: 200, Threads: 7}} {
		require.NoError(t, x.s.Fill(x.b.Address, 0, x.b.SizeBytes))
		require.NoError(t, p.Pull(x.s, dst, src, size, o))
		if got := x.read(); !bytes.Equal(got, moved) {
			t.Errorf("%+v: wrong bytes", o)
		}
	}
	require.NoError(t, p.Pull(x.s, nil, nil, nil, cuda.PullOptions{}))
	require.ErrorIs(t, p.Pull(x.s, dst[:1], src[:1], []uint64{65 * 65536}, cuda.PullOptions{}), cuda.ErrHandle)
	require.ErrorIs(t, p.Pull(x.s, dst, src, size[:1], cuda.PullOptions{}), cuda.ErrHandle)
	_, err = x.c.NewPuller(0)
	require.ErrorIs(t, err, cuda.ErrHandle)
}

// The kernel agrees with three loops.
func TestTranspose(t *testing.T) {
	x := newBench(t, 1<<20)
	want := x.write()
	for _, s := range [][4]int{{1, 1, 1, 16}, {3, 8, 16, 512}, {5, 2, 16, 128}, {2, 8, 16, 36}, {1, 3, 5, 7}, {16, 4, 64, 256}} {
		blocks, rows, columns, piece := s[0], s[1], s[2], s[3]
		out := make([]byte, blocks*rows*columns*piece)
		for b := range blocks {
			for r := range rows {
				for c := range columns {
					copy(out[((b*columns+c)*rows+r)*piece:][:piece], want[((b*rows+r)*columns+c)*piece:][:piece])
				}
			}
		}
		require.NoError(t, x.s.Transpose(x.b.Address, x.a.Address, int64(blocks), int64(rows), int64(columns), int64(piece)))
		if got := x.read(); !bytes.Equal(got[:len(out)], out) {
			t.Errorf("%v: wrong bytes", s)
		}
	}
}

// TestGPUKernels prints how fast they are.
func TestGPUKernels(t *testing.T) {
	cudatest.NeedGPU(t)
	const total = 1 << 30
	x := newBench(t, total)
	x.write()
	gb := func(ms float64) float64 { return total / ms / 1e6 }
	for _, s := range [][3]int64{{8, 16, 512}, {8, 16, 256}, {1, 16, 512}, {4, 64, 256}} {
		n := total / (s[0] * s[1] * s[2])
		ms := x.time(func() { require.NoError(t, x.s.Transpose(x.b.Address, x.a.Address, n, s[0], s[1], s[2])) })
		report("transpose of %d heads, %d tokens, %4d bytes: %.2f ms a GiB, %.0f GB/s", s[0], s[1], s[2], ms, gb(ms))
	}
	for _, piece := range []uint64{64 << 10, 8 << 10, 4 << 10} {
		n := total / piece
		dst, src, size := make([]uint64, n), make([]uint64, n), make([]uint64, n)
		for i, j := range rand.Perm(int(n)) {
			dst[i], src[i], size[i] = x.b.Address+uint64(i)*piece, x.a.Address+uint64(j)*piece, piece
		}
		p, err := x.c.NewPuller(int(n))
		require.NoError(t, err)
		for _, blocks := range []int{16, 32, 64, 132} {
			ms := x.time(func() { require.NoError(t, p.Pull(x.s, dst, src, size, cuda.PullOptions{Blocks: blocks})) })
			report("pull within the GPU, pieces of %2d KiB, %3d blocks: %.2f ms a GiB, %.0f GB/s", piece>>10, blocks, ms, gb(ms))
		}
		p.Close()
	}
}

// TestGPUPeers prints how fast a pull from another GPU's process is.
func TestGPUPeers(t *testing.T) {
	cudatest.NeedGPU(t)
	d := cudatest.Driver(t)
	if len(d.Devices()) < 2 {
		t.Skip("needs two GPUs")
	}
	const total = 1 << 30
	e := cudatest.StartExporter(t, total) // on device 0
	c, err := d.Retain(d.Devices()[1])
	require.NoError(t, err)
	defer c.Release() //nolint:errcheck // checked elsewhere
	m, err := c.OpenMemory(e.Memory)
	require.NoError(t, err)
	defer m.Release() //nolint:errcheck // checked elsewhere
	b, err := c.Alloc(total)
	require.NoError(t, err)
	s, err := c.NewStream()
	require.NoError(t, err)
	host, err := c.AllocHost(total)
	require.NoError(t, err)
	x := &bench{t: t, c: c, s: s, b: b, host: host}
	for _, piece := range []uint64{64 << 10, 32 << 10, 8 << 10} {
		n := total / piece
		dst, src, size := make([]uint64, n), make([]uint64, n), make([]uint64, n)
		order := rand.Perm(int(n))
		for i, j := range order {
			dst[i], src[i], size[i] = b.Address+uint64(i)*piece, m.Address+uint64(j)*piece, piece
		}
		p, err := c.NewPuller(int(n))
		require.NoError(t, err)
		for _, blocks := range []int{16, 32, 64} {
			ms := x.time(func() { require.NoError(t, p.Pull(s, dst, src, size, cuda.PullOptions{Blocks: blocks})) })
			report("pull from another GPU, pieces of %2d KiB, %3d blocks: %.2f ms a GiB, %.0f GB/s", piece>>10, blocks, ms, total/ms/1e6)
		}
		got := x.read()
		for i, j := range order {
			if bad := cudatest.Matches(got[uint64(i)*piece:uint64(i+1)*piece], 1, int64(uint64(j)*piece)); bad >= 0 {
				t.Fatalf("piece %d is wrong from byte %d on", i, bad)
			}
		}
		p.Close()
	}
}
