package connector

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/cudatest"
	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// gpuServer plays a server over a pipe: it keeps what a worker registers and
// the events of its transfers, and answers these with what the test says.
type gpuServer struct {
	tensors  []wire.DeviceWrapper
	requests chan []byte // events of stores and loads
	replies  chan []byte // events of their answers
}

func (g *gpuServer) serve(_ int64, c *zmtp.Conn) {
	requests(c, func(op wire.Op, m [][]byte) {
		switch op {
		case wire.OpGetChunkSize:
			answer(c, m[0], m[1], wire.AppendInt(nil, 256))
		case wire.OpGetExperimental:
			answer(c, m[0], m[1], wire.AppendStrings(nil, nil))
		case wire.OpPing:
			answer(c, m[0], m[1], wire.AppendBool(nil, true))
		case wire.OpStore, wire.OpRetrieve:
			event, err := wire.DecodeBytes(m[5])
			if err != nil {
				panic(err)
			}
			g.requests <- event
			answer(c, m[0], m[1], wire.AppendStoreReply(nil, <-g.replies, true))
		case wire.OpRegisterKVCache:
			var err error
			if g.tensors, err = wire.DecodeDeviceWrappers(m[3]); err != nil {
				panic(err)
			}
			answer(c, m[0], m[1])
		default:
			answer(c, m[0], m[1])
		}
	})
}

// A worker whose KV cache is on a GPU: the server gets the memory's handle and
// an event that fires when the engine has computed, and a transfer ends when
// the server's own event has fired.
func TestCUDAMemory(t *testing.T) {
	for name, kind := range map[string]cuda.SignalKind{"events": cuda.SignalEvent, "timelines": cuda.SignalTimeline} {
		t.Run(name, func(t *testing.T) {
			drv := cudatest.Driver(t)
			server := cudatest.StartExporter(t, 1<<20) // the server's side of the GPU
			ctx, err := drv.Retain(drv.Devices()[0])
			require.NoError(t, err)
			defer func() { require.NoError(t, ctx.Release()) }()
			stream, err := ctx.NewStream()
			require.NoError(t, err)
			defer func() { require.NoError(t, stream.Destroy()) }()
			mem, err := NewCUDAMemory(ctx, CUDAOptions{Stream: stream, IsolatedIPC: kind == cuda.SignalTimeline}, testLayers*testLayerBytes)
			require.NoError(t, err)
			defer func() { require.NoError(t, mem.Close()) }()
			require.NotZero(t, mem.Address(0))

			g := &gpuServer{requests: make(chan []byte), replies: make(chan []byte)}
			f := &fakeServer{serve: g.serve}
			w, err := NewWorker(t.Context(), WorkerOptions{Model: testModel, Client: Options{DialContext: f.dial}})
			require.NoError(t, err)
			defer func() { require.NoError(t, w.Close(t.Context())) }()
			require.NoError(t, w.Register(t.Context(), kvCaches(mem, false)))
			require.Equal(t, ModeLMCacheDriven, w.mode(mem), "auto")

			require.Len(t, g.tensors, testLayers)
			for i, tensor := range g.tensors {
				require.Equal(t, &wire.CUDARaw{Handle: mem.handles[0], SizeBytes: testLayers * testLayerBytes}, tensor.Source)
				require.Equal(t, drv.Devices()[0].UUID, tensor.Metadata.DeviceUUID)
				require.Equal(t, int64(i)*testLayerBytes/2, tensor.Metadata.StorageOffset)
			}

			// The engine has not computed yet.
			gate, err := ctx.Alloc(4096)
			require.NoError(t, err)
			defer func() { require.NoError(t, gate.Free()) }()
			side, err := ctx.NewStream()
			require.NoError(t, err)
			defer func() { require.NoError(t, side.Destroy()) }()
			require.NoError(t, side.Fill(gate.Address, 0, 4096))
			require.NoError(t, side.Wait())
			require.NoError(t, stream.WaitValue(gate.Address, 1))
			transfer := func(id string) []Transfer {
				k := schedulerKey(1, id, prompt(1, 256))
				blocks := make([]int64, 16)
				for i := range blocks {
					blocks[i] = int64(i) + 1
				}
				return []Transfer{{Key: k, Blocks: [][]int64{blocks}}}
			}
			w.Save(transfer("stored"))
			event := <-g.requests
			require.False(t, server.HasFired(event), "before the engine has computed")
			require.NoError(t, side.WriteValue(gate.Address, 1))
			server.Waits(event)

			// The server's copy is under way.
			g.replies <- server.Blocked(kind)
			awaitAnswer(t, w)
			require.Empty(t, w.Poll([]string{"stored"}).Sent)
			server.Fire()
			eventuallyPoll(t, w, func(p Progress) bool { return len(p.Sent) == 1 })

			w.Load(transfer("loaded"))
			<-g.requests
			g.replies <- nil // done already
			eventuallyPoll(t, w, func(p Progress) bool { return len(p.Received) == 1 && len(p.BadBlocks) == 0 })

			// What cannot be looked at is a failure, not a success.
			w.Load(transfer("odd"))
			<-g.requests
			g.replies <- make([]byte, 17)
			eventuallyPoll(t, w, func(p Progress) bool { return len(p.Received) == 1 && len(p.BadBlocks) == 16 })

			// One that is still under way at the end.
			w.Load(transfer("late"))
			<-g.requests
			g.replies <- server.Blocked(kind)
			awaitAnswer(t, w)
			require.Empty(t, w.Poll(nil).Received)
			server.Fire()
		})
	}
}

func TestCUDAMemoryNeedsAStream(t *testing.T) {
	_, err := NewCUDAMemory(nil, CUDAOptions{})
	require.ErrorIs(t, err, ErrConfig)
}

// awaitAnswer waits until the server has answered what is in flight.
func awaitAnswer(t *testing.T, w *Worker) {
	t.Helper()
	for _, f := range w.flights {
		<-f.call.Done()
	}
}

// eventuallyPoll polls until what ended is what is waited for.
func eventuallyPoll(t *testing.T, w *Worker, ok func(Progress) bool) {
	t.Helper()
	testutil.Eventually(t, "the end of a transfer", func() bool { return ok(w.Poll(nil)) })
}
