package device

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/testutil"
)

// Shapes small enough for the fake, one of each kind of copy.
var smallShapes = []shape{
	{name: "runs", layers: 3, heads: 4, slots: 16, bytes: 512, chunk: 64, blocks: 16, hnd: true},
	{name: "patterns", layers: 5, heads: 2, slots: 16, bytes: 128, chunk: 64, blocks: 32},
	{name: "blocks first", layers: 4, heads: 2, slots: 16, bytes: 128, chunk: 64, blocks: 32, blocksFirst: true},
	{name: "mla", layers: 3, heads: 1, slots: 64, bytes: 1152, chunk: 256, blocks: 16},
}

// TestCUDAStoreAndLoad: both schemes of events, every kind of copy, checked in
// the engine's own memory.
func TestCUDAStoreAndLoad(t *testing.T) {
	for _, s := range smallShapes {
		for _, kind := range []cuda.SignalKind{cuda.SignalNone, cuda.SignalEvent, cuda.SignalTimeline} {
			t.Run(fmt.Sprintf("%s/%v", s.name, kind), func(t *testing.T) {
				r := newCUDARig(t, 4<<20, CUDAOptions{})
				defer r.end()
				e := r.engine(s)
				defer e.memory[0].Close()
				const chunks = 3
				ids := e.ids(chunks, false)
				after := func() []byte {
					if kind == cuda.SignalNone {
						return nil
					}
					return e.Fired(kind)
				}
				stores, loads := stream(t, r, "stores"), stream(t, r, "loads")
				event, done := e.submit(stores, r.pool, copyplan.Store, e.plan(r, chunks, ids), after())
				if event == nil {
					event = <-e.begun
				}
				e.Waits(event)
				require.NoError(t, finished(t, done))
				e.check(r.pool, 1, ids)
				if want := 64 + 17*int(kind/cuda.SignalTimeline); len(event) != want {
					t.Errorf("event of %d bytes, want %d", len(event), want)
				}

				e.Fill(2)
				back := e.ids(chunks, false)
				event, done = e.submit(loads, r.pool, copyplan.Load, e.plan(r, chunks, back), after())
				if event == nil {
					event = <-e.begun
				}
				e.Waits(event)
				require.NoError(t, finished(t, done))
				// What was in ids is in back now; the rest is untouched.
				words := int64(chunks) * e.object / 8
				if same, all := e.Same(2), e.Size/8; same != all-words {
					t.Errorf("%d of %d words are untouched, want %d", same, all, all-words)
				}
				for i, id := range back {
					for l := range s.layers {
						want := r.pool[int64(i)/e.blocksPerChunk()*e.object+(l*e.blocksPerChunk()+int64(i)%e.blocksPerChunk())*s.blockBytes():][:s.blockBytes()]
						if got := e.Read(e.place(l, id), s.blockBytes()); string(got) != string(want) {
							t.Fatalf("block %d, layer %d did not arrive", id, l)
						}
					}
				}
				st := r.Stats()
				if st.Stores != 1 || st.Loads != 1 || st.StoreBytes != uint64(words)*8 || st.Failed != 0 || st.Mappings != 1 || st.MappedBytes != e.Size {
					t.Errorf("got %+v", st)
				}
			})
		}
	}
}

// TestCUDABlocked: a job that waits for its engine does not hold up Submit, nor
// another stream, and tells nobody that it is done.
func TestCUDABlocked(t *testing.T) {
	for _, kind := range []cuda.SignalKind{cuda.SignalEvent, cuda.SignalTimeline} {
		t.Run(kind.String(), func(t *testing.T) {
			r := newCUDARig(t, 4<<20, CUDAOptions{})
			defer r.end()
			a, b := r.engine(smallShapes[0]), r.engine(smallShapes[0])
			waits, other := stream(t, r, "waits"), stream(t, r, "other")
			ids := a.ids(2, false)
			event, done := a.submit(waits, r.pool, copyplan.Store, a.plan(r, 2, ids), a.Blocked(kind))
			begun := a.begun
			_, second := a.submit(waits, r.pool, copyplan.Store, a.plan(r, 2, ids), nil)
			_, free := b.submit(other, r.pool[1<<20:], copyplan.Store, b.plan(r, 2, b.ids(2, false)), b.Fired(kind))
			require.NoError(t, finished(t, free))
			if event != nil || len(begun) > 0 || len(a.begun) > 0 {
				t.Error("answered before the engine came to its event")
			}
			if len(done) > 0 || len(second) > 0 {
				t.Error("done before the engine was")
			}
			// The one that was done is counted out just after it has said so.
			testutil.Eventually(t, "two jobs are left", func() bool { return r.Stats().Pending == 2 })
			if st := r.Stats(); st.Stuck != 0 {
				t.Errorf("got %+v", st)
			}
			a.Fire()
			a.Waits(<-begun)
			require.NoError(t, finished(t, done))
			require.NoError(t, finished(t, second))
			a.check(r.pool, 1, ids)
			require.NoError(t, waits.Close(t.Context()))
		})
	}
}

// TestCUDADeadEngine: an engine that died before its event takes nothing with
// it: its copies end, its memory is unmapped, and others go on.
func TestCUDADeadEngine(t *testing.T) {
	for _, kind := range []cuda.SignalKind{cuda.SignalEvent, cuda.SignalTimeline} {
		for _, dir := range []copyplan.Direction{copyplan.Store, copyplan.Load} {
			t.Run(fmt.Sprint(kind, "/", dir), func(t *testing.T) {
				r := newCUDARig(t, 4<<20, CUDAOptions{})
				defer r.end()
				a, b := r.engine(smallShapes[0]), r.engine(smallShapes[0])
				waits := stream(t, r, "waits")
				ids := a.ids(2, false)
				_, first := a.submit(waits, r.pool, dir, a.plan(r, 2, ids), a.Blocked(kind))
				begun := a.begun
				_, second := a.submit(waits, r.pool, dir, a.plan(r, 2, ids), nil)
				require.NoError(t, waits.Close(t.Context()))
				for _, done := range []chan error{first, second} {
					err := finished(t, done)
					require.ErrorIs(t, err, ErrClosed)
					require.ErrorIs(t, err, ErrUnbegun)
				}
				require.Empty(t, begun, "the engine was told of a copy that never began")
				a.memory[0].Close()
				testutil.Eventually(t, "its memory is unmapped", func() bool { return r.Stats().Mappings == 1 })

				other := stream(t, r, "other")
				_, free := b.submit(other, r.pool[1<<20:], copyplan.Store, b.plan(r, 2, b.ids(2, false)), b.Fired(kind))
				require.NoError(t, finished(t, free))
				b.memory[0].Close()
			})
		}
	}
}

// TestCUDACancel: a job that waits ends at once, and the next goes on.
func TestCUDACancel(t *testing.T) {
	r := newCUDARig(t, 4<<20, CUDAOptions{})
	defer r.end()
	a := r.engine(smallShapes[0])
	defer a.memory[0].Close()
	waits := stream(t, r, "waits")
	ids := a.ids(2, false)
	done := make(chan error, 1)
	job := &Job{Direction: copyplan.Store, Plan: a.plan(r, 2, ids), Engine: a.memory, Pool: r.pool, After: a.Blocked(cuda.SignalEvent), Done: func(err error) { done <- err }}
	_, err := waits.Submit(job)
	require.NoError(t, err)
	_, second := a.submit(waits, r.pool, copyplan.Store, a.plan(r, 2, ids), nil)
	waits.Cancel(job)
	require.ErrorIs(t, finished(t, done), ErrCanceled)
	require.NoError(t, finished(t, second))
	a.check(r.pool, 1, ids)
}
