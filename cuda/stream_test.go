//go:build linux && cgo

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/cudatest"
	"github.com/lmcache-go/lmcache-go/internal/fakecuda"
)

// A request waits in its stream for another process, in both schemes, and is
// answered in a scheme that the other process reads.
func TestSubmitWaitsAndAnswers(t *testing.T) {
	for _, kind := range []cuda.SignalKind{cuda.SignalEvent, cuda.SignalTimeline} {
		t.Run(kind.String(), func(t *testing.T) {
			x := newBench(t, 1<<20)
			e := cudatest.StartExporter(t, 1<<20)
			peer, err := x.c.OpenMemory(e.Memory)
			require.NoError(t, err)
			done, err := x.c.NewEvent(cuda.EventOptions{Timing: true})
			require.NoError(t, err)
			begin, err := x.c.NewEvent(cuda.EventOptions{Timing: true})
			require.NoError(t, err)
			after, err := cuda.ParseSignal(e.Blocked(kind))
			require.NoError(t, err)
			r, err := x.s.Submit(&cuda.Request{
				Direction: cuda.ToHost, After: after, Answer: kind, Done: done, Begin: begin,
				Dst: []uint64{x.host.Address, x.host.Address + 4096}, Src: []uint64{peer.Address + 8192, peer.Address}, Size: []uint64{4096, 4096},
				Rects: []cuda.Rect{{Dst: x.host.Address + 8192, DstPitch: 64, Src: peer.Address + 16384, SrcPitch: 1024, Width: 64, Height: 100}},
			})
			require.NoError(t, err)
			if ok, err := done.Done(); ok || err != nil {
				t.Errorf("done before the other process: %v, %v", ok, err)
			}
			if ok, err := x.s.Idle(); ok || err != nil {
				t.Errorf("idle: %v, %v", ok, err)
			}
			if answer := r.Answer.AppendTo(nil); e.HasFired(answer) {
				t.Error("answered before the other process")
			} else {
				e.Fire()
				e.Waits(answer)
			}
			require.NoError(t, done.Wait())
			if r.Copies != 3 || !r.Queued || r.Unmarked {
				t.Errorf("got %+v", r)
			}
			x.s.Close(&r)
			b := x.host.Bytes()
			if cudatest.Matches(b[:4096], 1, 8192) >= 0 || cudatest.Matches(b[4096:8192], 1, 0) >= 0 || cudatest.Matches(b[8192+99*64:8192+100*64], 1, 16384+99*1024) >= 0 {
				t.Error("the copies did not arrive")
			}
			if ms, err := done.Since(begin); err != nil || ms < 0 || ms > 60e3 {
				t.Errorf("%v ms, %v", ms, err)
			}
			require.NoError(t, begin.Destroy())
			require.NoError(t, done.Destroy())
			// What an engine has reached long ago, and what cannot be.
			r, err = x.s.Submit(&cuda.Request{After: cuda.Signal{Kind: cuda.SignalTimeline}})
			require.NoError(t, err)
			x.s.Close(&r)
			_, err = x.s.Submit(&cuda.Request{Dst: make([]uint64, 1)})
			require.ErrorIs(t, err, cuda.ErrHandle)
			e.Stop()
			require.NoError(t, peer.Release())
		})
	}
}

// Places in the timeline are used again, and their numbers go on.
func TestTimelinePlaces(t *testing.T) {
	d, f := cudatest.Fake(t, fakecuda.Options{})
	c := retain(t, d)
	var last cuda.Signal
	for i := range 3 {
		s, err := c.NewStream()
		require.NoError(t, err)
		for range 4 {
			r, err := s.Submit(&cuda.Request{Answer: cuda.SignalTimeline})
			require.NoError(t, err)
			if a := r.Answer; i > 0 && (a.Offset != last.Offset || a.Buffer != last.Buffer || a.Sequence != last.Sequence+1) || a.Offset == 0 {
				t.Errorf("got %+v after %+v", a, last)
			}
			last = r.Answer
		}
		require.NoError(t, s.Wait())
		require.NoError(t, s.Destroy())
	}
	f.Fail("cuStreamCreate", 2, int(cuda.OutOfMemory))
	require.NoError(t, c.Release())
	c = retain(t, d)
	s, err := c.NewStream()
	require.NoError(t, err)
	_, err = s.Submit(&cuda.Request{Answer: cuda.SignalTimeline})
	require.ErrorIs(t, err, cuda.OutOfMemory)
	require.NoError(t, s.Destroy())
	require.NoError(t, c.Release())
	cudatest.Clean(t, f)
}

func TestEventsAndPeers(t *testing.T) {
	d, f := cudatest.Fake(t, fakecuda.Options{Devices: 2, MemoryBytes: 1 << 30})
	a := retain(t, d)
	b, err := d.Retain(d.Devices()[1])
	require.NoError(t, err)
	require.NoError(t, a.EnablePeer(b))
	f.Fail("cuCtxEnablePeerAccess", 1, int(cuda.PeerAccessEnabled))
	require.NoError(t, a.EnablePeer(b))
	f.Fail("cuCtxEnablePeerAccess", 1, int(cuda.NotSupported))
	require.ErrorIs(t, a.EnablePeer(b), cuda.NotSupported)
	x, err := a.Alloc(1 << 20)
	require.NoError(t, err)
	free, total, err := a.MemoryInfo()
	require.NoError(t, err)
	if total != 1<<30 || free != 1<<30-1<<20 {
		t.Errorf("%d of %d bytes are free", free, total)
	}
	_, err = a.Alloc(1 << 30)
	require.ErrorIs(t, err, cuda.OutOfMemory)
	require.NoError(t, x.Free())

	e, err := a.NewEvent(cuda.EventOptions{Interprocess: true})
	require.NoError(t, err)
	h, err := e.Handle()
	require.NoError(t, err)
	_, err = a.OpenEvent(h) // one's own
	require.ErrorIs(t, err, cuda.InvalidContext)
	require.NoError(t, e.Destroy())
	local, err := a.NewEvent(cuda.EventOptions{})
	require.NoError(t, err)
	_, err = local.Handle()
	require.ErrorIs(t, err, cuda.InvalidHandle)
	require.NoError(t, local.Destroy())
	require.NoError(t, a.Release())
	require.NoError(t, b.Release())
	cudatest.Clean(t, f)
}
