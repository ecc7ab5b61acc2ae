//go:build linux && cgo

package device

import (
	"context"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/cudatest"
	"github.com/lmcache-go/lmcache-go/internal/fakecuda"
	"github.com/lmcache-go/lmcache-go/internal/testutil"
)

// hung is a stream whose hardware does not go on until let.
func hung(t *testing.T, o CUDAOptions) (l *life, d *CUDA, m Memory, s Stream, let func()) {
	t.Helper()
	l = newLife(t, fakecuda.Options{})
	clear(l.pool)
	d, err := NewCUDA(l.drv, l.drv.Devices()[0].UUID, o)
	require.NoError(t, err)
	pin, err := l.drv.PinHost(l.drv.Devices()[0], l.pool)
	require.NoError(t, err)
	m, err = d.Open(CUDAIPCPrefix+hex.EncodeToString(l.handle[:])+":0", 1<<20)
	require.NoError(t, err)
	s, err = d.NewStream("hangs")
	require.NoError(t, err)
	ctx, err := l.drv.Retain(l.drv.Devices()[0]) // the test's own hold
	require.NoError(t, err)
	gate, err := ctx.Alloc(8)
	require.NoError(t, err)
	other, err := ctx.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.(*cudaStream).s.WaitValue(gate.Address, 1))
	return l, d, m, s, func() {
		require.NoError(t, other.WriteValue(gate.Address, 1))
		require.NoError(t, s.Close(t.Context()))
		m.Close()
		testutil.Eventually(t, "the device ends", func() bool { return d.Close() == nil })
		require.NoError(t, other.Destroy())
		require.NoError(t, gate.Free())
		require.NoError(t, pin.Unpin())
		require.NoError(t, ctx.Release())
		cudatest.Clean(t, l.f)
	}
}

// A GPU that does not go on keeps what it may touch, says so, and holds up
// nobody who closes; when it goes on after all, everything comes back.
func TestCUDAStuck(t *testing.T) {
	l, d, m, s, let := hung(t, CUDAOptions{CloseTimeout: 10 * time.Millisecond})
	done := make(chan error, 1)
	_, err := s.Submit(&Job{Direction: copyplan.Store, Plan: l.plan(), Engine: []Memory{m}, Pool: l.pool, Done: func(err error) { done <- err }})
	require.NoError(t, err)
	m.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Close(ctx), context.Canceled)
	err = d.Close()
	require.ErrorIs(t, err, ErrStuck)
	if st := d.Stats(); st.Stuck != 1 || st.Pending != 1 || st.Mappings != 1 || len(done) != 0 {
		t.Errorf("got %+v", st)
	}
	let()
	require.NoError(t, finished(t, done))
	require.Equal(t, l.want(), l.pool)
}

// A copy that fails in the middle, on a GPU that does not go on: it is told at
// once, and its end when it comes.
func TestCUDABegun(t *testing.T) {
	l, d, m, s, let := hung(t, CUDAOptions{DrainTimeout: time.Millisecond})
	for _, call := range []string{"cuMemcpyBatchAsync_v2", "cuEventRecord"} {
		done := make(chan error, 1)
		l.f.Fail(call, 2, int(cuda.OutOfMemory)) // the second batch; the mark behind the copies
		_, err := s.Submit(&Job{Direction: copyplan.Load, Plan: l.plan(), Engine: []Memory{m}, Pool: l.pool, Done: func(err error) { done <- err }})
		if !errors.Is(err, ErrBegun) || !errors.Is(err, cuda.OutOfMemory) {
			t.Errorf("%s: got %v", call, err)
		}
		defer func() {
			if err := finished(t, done); !errors.Is(err, cuda.OutOfMemory) {
				t.Errorf("%s: Done heard %v", call, err)
			}
		}()
	}
	if st := d.Stats(); st.Pending != 2 {
		t.Errorf("got %+v", st)
	}
	let()
}
