package connector

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/testutil"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// The engine of the tests: a scheduler and workers in one process, steps by
// hand, pages whose bytes are a function of rank, layer, plane, token and
// position.
const (
	testBlock  = 16
	testLayers = 3
	testBlocks = 256
	testRow    = 2 * 4 * 2 // heads, head size, bytes of float16
)

type engine struct {
	t       *testing.T
	sched   *Scheduler
	workers []*Worker
	mem     []Memory
	s       *trace   // of the scheduler with its first server
	more    []*trace // and with the others
	w       []*trace
	next    int64 // block to give out
	running map[*Request]*request
}

type engineOptions struct {
	urls  []string
	mode  TransferMode
	ranks int
	heap  bool // ordinary memory, for engine_driven
	hnd   bool
	cfg   func(*Config)
}

// newEngine starts an engine whose sockets are traced and checks the row "start".
func newEngine(t *testing.T, o engineOptions) *engine {
	t.Helper()
	ctx := t.Context()
	cfg := DefaultConfig()
	cfg.Servers, cfg.Mode, cfg.Timeout = o.urls, o.mode, 20*time.Second
	if o.cfg != nil {
		o.cfg(&cfg)
	}
	o.ranks = max(1, o.ranks)
	e := &engine{t: t, s: newTrace(), next: 1, running: make(map[*Request]*request)}
	par := Parallel{WorldSize: o.ranks}
	for rank := range o.ranks {
		tr := newTrace()
		w, err := NewWorker(ctx, WorkerOptions{Model: testModel, Config: cfg, Parallel: par, Rank: rank, Client: Options{DialContext: tr.dial}})
		require.NoError(t, err)
		mem := kvMemory(t, o.heap)
		e.workers, e.mem, e.w = append(e.workers, w), append(e.mem, mem), append(e.w, tr)
		t.Cleanup(func() { require.NoError(t, w.Close(context.Background())) })
		require.NoError(t, w.Register(ctx, kvCaches(mem, o.hnd)))
		register := "REGISTER_KV_CACHE"
		if o.mode != ModeLMCacheDriven {
			register = "REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT"
		}
		requireTrace(t, "worker", tr, "GET_CHUNK_SIZE", "GET_EXPERIMENTAL", register)
	}
	e.s.more = make(map[string]*trace)
	for _, url := range o.urls[1:] {
		tr := newTrace()
		e.more, e.s.more[hostPort(url)] = append(e.more, tr), tr
	}
	var err error
	e.sched, err = NewScheduler(ctx, SchedulerOptions{Model: testModel, Config: cfg, Parallel: par, BlockTokens: []int{testBlock}, Client: Options{DialContext: e.s.dial}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.sched.Close()) })
	for _, tr := range append([]*trace{e.s}, e.more...) {
		requireTrace(t, "scheduler", tr, "GET_CHUNK_SIZE")
	}
	return e
}

const testLayerBytes = 2 * testBlocks * testBlock * testRow

func kvMemory(t testing.TB, heap bool) Memory {
	t.Helper()
	if heap {
		return HostMemory{make([]byte, testLayers*testLayerBytes)}
	}
	m, err := NewSharedMemory(testLayers * testLayerBytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func kvCaches(m Memory, hnd bool) *Caches {
	c := &Caches{Memory: m, Hints: wire.LayoutHints{KVLayout: "NHD"}}
	shape := []int64{2, testBlocks, testBlock, 2, 4}
	if hnd {
		c.Hints.KVLayout, shape = "HND", []int64{2, testBlocks, 2, testBlock, 4}
	}
	for l := range testLayers {
		c.Tensors = append(c.Tensors, Tensor{DType: "float16", Shape: shape, Offset: int64(l) * testLayerBytes / 2})
	}
	return c
}

// request is a request with its blocks.
type request struct {
	Request
	blocks [][]int64
}

func newRequest(id string, tokens []uint32) *request {
	return &request{Request: Request{ID: id, Tokens: tokens, PromptTokens: len(tokens)}, blocks: [][]int64{nil}}
}

// match asks until there is an answer.
func (e *engine) match(r *request, computed int) int {
	e.t.Helper()
	for {
		n, ready := e.sched.Match(&r.Request, computed)
		if ready {
			return n
		}
		require.NoError(e.t, e.sched.Await(e.t.Context(), &r.Request))
	}
}

// grow gives r blocks for so many tokens and returns the new ones.
func (e *engine) grow(r *request, tokens int) [][]int64 {
	from := len(r.blocks[0])
	for len(r.blocks[0])*testBlock < tokens {
		r.blocks[0] = append(r.blocks[0], e.next)
		e.next = e.next%(testBlocks-1) + 1
	}
	return [][]int64{r.blocks[0][from:]}
}

// alloc gives blocks for the prompt and tells the scheduler.
func (e *engine) alloc(r *request, external int) {
	e.grow(r, len(r.Tokens))
	e.sched.Allocated(&r.Request, r.blocks, external)
}

// step runs a step: loads, the computation of the scheduled tokens, stores.
func (e *engine) step(s Step) Meta {
	m := e.sched.BuildMeta(&s)
	for rank, w := range e.workers {
		if m.Flush {
			require.NoError(e.t, w.Flush(e.t.Context()))
		}
		for i := range s.Scheduled {
			sc := &s.Scheduled[i]
			e.compute(rank, sc.Request, e.running[sc.Request].blocks[0], sc.Request.ComputedTokens, sc.Request.ComputedTokens+sc.Tokens)
		}
		w.Load(m.Loads)
		w.Save(m.Stores)
	}
	for i := range s.Scheduled {
		s.Scheduled[i].Request.ComputedTokens += s.Scheduled[i].Tokens
	}
	return m
}

// run schedules tokens of one request.
func (e *engine) run(r *request, kind Kind, tokens int) Meta {
	var added [][]int64
	if kind == Running {
		added = e.grow(r, r.ComputedTokens+tokens)
	}
	e.running[&r.Request] = r
	return e.step(Step{Scheduled: []Scheduled{{Request: &r.Request, Kind: kind, Tokens: tokens, NewBlocks: added}}})
}

// wait polls until nothing is in flight.
func (e *engine) wait(finished ...string) []Progress {
	e.t.Helper()
	out := make([]Progress, len(e.workers))
	for i, w := range e.workers {
		out[i] = w.Poll(finished)
		testutil.Eventually(e.t, "transfers", func() bool {
			p := w.Poll(nil)
			out[i].Sent = append(out[i].Sent, p.Sent...)
			out[i].Received = append(out[i].Received, p.Received...)
			out[i].BadBlocks = append(out[i].BadBlocks, p.BadBlocks...)
			out[i].Failed = append(out[i].Failed, p.Failed...)
			return len(w.flights) == 0
		})
	}
	return out
}

// finish ends a request and waits until its blocks are free.
func (e *engine) finish(r *request) {
	e.t.Helper()
	require.True(e.t, e.sched.Finish(&r.Request).KeepBlocks)
	for _, p := range e.wait(r.ID) {
		require.Equal(e.t, []string{r.ID}, p.Sent)
	}
	e.settle()
}

// settle waits until the servers have done all that the scheduler posted.
func (e *engine) settle() {
	e.t.Helper()
	for _, sv := range e.sched.servers {
		require.NoError(e.t, sv.client.Noop(e.t.Context()))
	}
}

// row is the address of a token's bytes.
func (e *engine) row(rank, layer, plane int, blocks []int64, pos int) []byte {
	at := layer*testLayerBytes + ((plane*testBlocks+int(blocks[pos/testBlock]))*testBlock+pos%testBlock)*testRow
	return e.mem[rank].Host()[0][at : at+testRow]
}

func pattern(dst []byte, rank, layer, plane int, token uint32, pos int) {
	for i := 0; i < len(dst); i += 8 {
		x := uint64(token)<<32 ^ uint64(pos)<<16 ^ uint64(rank)<<12 ^ uint64(layer)<<8 ^ uint64(plane)<<4 ^ uint64(i)
		binary.LittleEndian.PutUint64(dst[i:], x*0x9e3779b97f4a7c15)
	}
}

// compute fills the pages of tokens.
func (e *engine) compute(rank int, r *Request, blocks []int64, from, to int) {
	for pos := from; pos < min(to, len(r.Tokens)); pos++ {
		for layer := range testLayers {
			for plane := range 2 {
				pattern(e.row(rank, layer, plane, blocks, pos), rank, layer, plane, r.Tokens[pos], pos)
			}
		}
	}
}

// check compares pages with what compute would have made.
func (e *engine) check(r *request, from, to int) {
	e.t.Helper()
	want := make([]byte, testRow)
	for rank := range e.workers {
		for pos := from; pos < to; pos++ {
			for layer := range testLayers {
				for plane := range 2 {
					pattern(want, rank, layer, plane, r.Tokens[pos], pos)
					if got := e.row(rank, layer, plane, r.blocks[0], pos); string(got) != string(want) {
						e.t.Fatalf("rank %d layer %d plane %d position %d: got % x, want % x", rank, layer, plane, pos, got, want)
					}
				}
			}
		}
	}
}

// cold prefills r in one step and finishes it.
func (e *engine) cold(r *request) {
	e.t.Helper()
	require.Zero(e.t, e.match(r, 0), "nothing can be there")
	e.alloc(r, 0)
	e.run(r, New, len(r.Tokens))
	e.finish(r)
}

// awaitStored waits until another client finds chunks of a prompt: the
// reference shows a store a while after it acknowledged it.
func awaitStored(t *testing.T, url string, world int, tokens []uint32, chunk, chunks int) {
	t.Helper()
	c := dial(t, url, Options{})
	k := wire.Key{Model: testModel, WorldSize: world, Tokens: wire.AppendTokens(nil, tokens), TokenCount: len(tokens), End: len(tokens) / chunk * chunk, NumKVReaders: 1}
	n := 0
	testutil.Eventually(t, "the stored chunks", func() bool {
		n++
		k.RequestID = fmt.Sprintf("probe-%d", n)
		require.NoError(t, c.Lookup(t.Context(), &k, 1))
		got, done := 0, false
		for !done {
			var err error
			got, done, err = c.WaitPrefetch(t.Context(), k.RequestID, time.Second)
			require.NoError(t, err)
		}
		if got > 0 { // the real server cannot free what is not held
			held := k
			held.End = got * chunk
			c.FreeLookupLocks(&held, 1)
		}
		c.EndSession(k.RequestID)
		return got >= chunks
	})
	require.NoError(t, c.Noop(t.Context()))
}
