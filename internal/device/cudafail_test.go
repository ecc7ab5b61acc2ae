//go:build linux && cgo

package device

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/cudatest"
	"github.com/lmcache-go/lmcache-go/internal/fakecuda"
)

// life is the whole life of an instance: a store that waits for its engine, a
// load, and the end. It returns the first error and what Done heard.
type life struct {
	t    *testing.T
	f    *fakecuda.Fake
	drv  *cuda.Driver
	pool []byte
	// Bytes of the engine.
	engine []byte
	handle [64]byte
	told   []error
	events [][]byte
}

func newLife(t *testing.T, o fakecuda.Options) *life {
	t.Helper()
	l := &life{t: t, pool: mapPool(t, 1<<20)}
	l.drv, l.f = cudatest.Fake(t, o)
	l.handle, l.engine = l.f.Export(7000, 1<<20)
	for i := range l.engine {
		l.engine[i] = byte(i*7 + i>>8)
	}
	return l
}

// plan has runs and a 2-D copy.
func (l *life) plan() *copyplan.Plan {
	p := copyplan.Acquire()
	for i := range int64(600) {
		p.AddRun(copyplan.Run{Engine: i * 1024, Object: (599 - i) * 512, Bytes: 512})
	}
	p.Patterns = append(p.Patterns, copyplan.Pattern{
		Engine: 700 << 10, Object: 400 << 10, Width: 100,
		Rows: copyplan.Dim{N: 40, Engine: 4096, Object: 100}, Heads: copyplan.Dim{N: 1}, Slots: copyplan.Dim{N: 1},
	})
	p.Bytes += 4000
	return p
}

// want is the pool after a store.
func (l *life) want() []byte {
	b := make([]byte, len(l.pool))
	l.plan().Copy(copyplan.Store, [][]byte{l.engine}, b, copyplan.Pos{}, copyplan.Pos{Op: 601})
	return b
}

func (l *life) live() (err error) {
	clear(l.pool)
	d, err := NewCUDA(l.drv, l.drv.Devices()[0].UUID, CUDAOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	pin, err := l.drv.PinHost(l.drv.Devices()[0], l.pool)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pin.Unpin()) }()
	m, err := d.Open(CUDAIPCPrefix+hex.EncodeToString(l.handle[:])+":0", 1<<20)
	if err != nil {
		return err
	}
	defer m.Close()
	s, err := d.NewStream("stores")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(l.t.Context())) }()
	for i := range 3 {
		event, fire := l.f.ExportEvent(7000)
		after := event[:]
		if i == 1 {
			fire() // before it comes
		}
		done := make(chan error, 2)
		plan := l.plan()
		begun := make(chan []byte, 2)
		ack, err := s.Submit(&Job{
			Direction: copyplan.Store, Plan: plan, Engine: []Memory{m}, Pool: l.pool, After: after,
			Begun: func(event []byte) { begun <- event }, Done: func(err error) { done <- err },
		})
		if i != 1 {
			if err == nil && (ack != nil || len(begun) > 0) {
				l.t.Error("the answer came before the engine let the copy begin")
			}
			fire()
		}
		if err != nil {
			if len(done) > 0 {
				l.t.Error("Done of a job that was refused")
			}
			return err
		}
		err = finished(l.t, done)
		l.told = append(l.told, err)
		if unbegun := errors.Is(err, ErrUnbegun); ack == nil && unbegun == (len(begun) == 1) || len(begun) > 1 || ack != nil && len(begun) > 0 {
			l.t.Errorf("job %d: answer %d at once, %d later; it ended with %v", i, len(ack), len(begun), err)
		}
		if err != nil {
			return err
		}
		if ack == nil {
			ack = <-begun
		}
		l.events = append(l.events, ack)
	}
	return nil
}

// TestCUDAFailures fails each call of the driver in turn, through the whole
// life of an instance: everything is told, nothing hangs, nothing is left
// behind, and a copy that is called complete is.
func TestCUDAFailures(t *testing.T) {
	l := newLife(t, fakecuda.Options{})
	require.NoError(t, l.live())
	require.Equal(t, l.want(), l.pool)
	for i, e := range l.events {
		if !l.f.Fired([64]byte(e)) {
			t.Errorf("answer %d did not fire", i)
		}
	}
	cudatest.Clean(t, l.f)

	// A failure to give something back cannot be made good.
	gives := []string{"Destroy", "Free", "Release", "Unregister", "Close", "Unload"}
	calls := map[string]int{}
	for _, name := range functions {
		if n := l.f.Calls(name); n > 0 && !slices.ContainsFunc(gives, func(s string) bool { return strings.Contains(name, s) }) {
			calls[name] = n
		}
	}
	if len(calls) < 12 {
		t.Fatalf("only %v", calls)
	}
	var left fakecuda.Live
	for name, n := range calls {
		for i := 1; i <= min(n, 12); i++ {
			l.told, l.events = nil, nil
			l.f.Fail(name, i, int(cuda.OutOfMemory))
			err := l.live()
			l.f.Fail("", 0, 0)
			if err == nil && !bytes.Equal(l.pool, l.want()) {
				t.Errorf("%s %d: complete, and bytes are missing", name, i)
			}
			if err != nil && !errors.Is(err, cuda.OutOfMemory) {
				t.Errorf("%s %d: %v", name, i, err)
			}
			if live := l.f.Live(); live != left {
				// It is also called to give things back.
				if name != "cuCtxSetCurrent" {
					t.Errorf("%s %d: left behind %+v after %v", name, i, live, err)
				}
				left = live
			}
		}
	}
}

// The functions that this package has called by way of package cuda.
var functions = []string{
	"cuDevicePrimaryCtxSetFlags_v2", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle",
	"cuIpcGetEventHandle", "cuIpcOpenEventHandle", "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuEventDestroy_v2",
	"cuStreamCreate", "cuStreamDestroy_v2", "cuStreamWaitValue64_v2", "cuStreamWriteValue64_v2", "cuStreamSynchronize", "cuMemHostRegister_v2",
	"cuMemHostUnregister", "cuMemHostGetDevicePointer_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetAddressRange_v2", "cuMemsetD8Async",
	"cuMemcpyAsync", "cuMemcpy2DAsync_v2", "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2",
}

// Drivers before 13.0 and before 12.8 copy the same.
func TestCUDAOldDrivers(t *testing.T) {
	for _, o := range []fakecuda.Options{
		{Version: 12080, Without: []string{"cuMemcpyBatchAsync_v2"}},
		{Version: 12040, Without: []string{"cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync"}},
	} {
		t.Run(fmt.Sprint(o.Version), func(t *testing.T) {
			l := newLife(t, o)
			require.NoError(t, l.live())
			require.Equal(t, l.want(), l.pool)
			if got, want := l.drv.BatchCopies(), 2-len(o.Without); got != want {
				t.Errorf("batches of version %d, want %d", got, want)
			}
			cudatest.Clean(t, l.f)
		})
	}
}

func TestCUDARefusesMemory(t *testing.T) {
	l := newLife(t, fakecuda.Options{})
	_, err := NewCUDA(l.drv, "11111111-2222-3333-4444-555555555555", CUDAOptions{})
	require.ErrorIs(t, err, cuda.ErrNoSuchDevice)
	d, err := NewCUDA(l.drv, l.drv.Devices()[0].UUID, CUDAOptions{})
	require.NoError(t, err)
	good := hex.EncodeToString(l.handle[:])
	f := func(key string, n int64, want error) {
		t.Helper()
		if m, err := d.Open(key, n); !errors.Is(err, want) {
			t.Errorf("Open(%.40s, %d) = %v, %v, want %v", key, n, m, err, want)
		}
	}
	f("vllm_segment", 1, ErrName)
	f(CUDAIPCPrefix+good, 1, ErrName)
	f(CUDAIPCPrefix+good+":-1", 1, ErrName)
	f(CUDAIPCPrefix+good[2:]+":0", 1, ErrName)
	f(CUDAIPCPrefix+"zz"+good[2:]+":0", 1, ErrName)
	f(CUDAIPCPrefix+strings.Repeat("00", 64)+":0", 1, ErrOpen)
	f(CUDAIPCPrefix+good+":0", 1<<20+1, ErrShort)
	f(CUDAIPCPrefix+good+":4096", 1<<20-4095, ErrShort)
	f(CUDAIPCPrefix+good+":2000000", 0, ErrShort)
	f(CUDAIPCPrefix+good+":0", -1, ErrShort)
	f(CUDAExpandablePrefix+"0963:0", 1, cuda.ErrHandle)
	m, err := d.Open(CUDAIPCPrefix+good+":4096", 1<<20-4096)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20-4096, m.SizeBytes())
	require.NoError(t, d.Close()) // and with it what is open
	m.Close()
	cudatest.Clean(t, l.f)
}

// BenchmarkCUDASubmit is a store of 32 chunks of 512 pieces each, from Submit to
// the last call of the driver, without the driver's own time and the copying.
func BenchmarkCUDASubmit(b *testing.B) {
	drv, f := cudatest.Fake(b, fakecuda.Options{})
	f.NoCopies()
	d, err := NewCUDA(drv, drv.Devices()[0].UUID, CUDAOptions{})
	require.NoError(b, err)
	handle, _ := f.Export(7000, 1<<30)
	m, err := d.Open(CUDAIPCPrefix+hex.EncodeToString(handle[:])+":0", 1<<30)
	require.NoError(b, err)
	pool := mapPool(b, 1<<30)
	pin, err := drv.PinHost(drv.Devices()[0], pool)
	require.NoError(b, err)
	s, err := d.NewStream("stores")
	require.NoError(b, err)
	p := copyplan.Acquire()
	for i := range int64(32 * 512) {
		p.AddRun(copyplan.Run{Engine: (i * 7919 % (32 * 512)) << 16, Object: i << 16, Bytes: 1 << 16})
	}
	done := make(chan error, 1)
	job := &Job{Direction: copyplan.Store, Plan: p, Engine: []Memory{m}, Pool: pool, Done: func(err error) { done <- err }}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Submit(job); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	m.Close()
	require.NoError(b, d.Close())
	require.NoError(b, pin.Unpin())
}
