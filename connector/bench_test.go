package connector

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/mpserver"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// bench is an engine whose prompt of 8192 tokens is in the server.
type bench struct {
	sched  *Scheduler
	worker *Worker
	tokens []uint32
	blocks [][]int64
	n      int
}

const (
	benchTokens = 8192
	benchLayers = 4
	benchBlocks = benchTokens/testBlock + 1
)

// newBench starts one whose tokens have row bytes in each plane of a layer.
func newBench(tb testing.TB, mode TransferMode, row int64) *bench {
	tb.Helper()
	s := startServer(tb, func(o *mpserver.Options) { o.L1.SizeBytes = 256 << 20 })
	return newBenchAt(tb, s.Addr(), mode, row)
}

func newBenchAt(tb testing.TB, url string, mode TransferMode, row int64) *bench {
	tb.Helper()
	cfg := DefaultConfig()
	cfg.Servers, cfg.Mode = []string{url}, mode
	w, err := NewWorker(context.Background(), WorkerOptions{Model: testModel, Config: cfg})
	require.NoError(tb, err)
	layer := 2 * benchBlocks * testBlock * row
	mem, err := NewSharedMemory(benchLayers * layer)
	require.NoError(tb, err)
	c := &Caches{Memory: mem, Hints: wire.LayoutHints{KVLayout: "NHD"}}
	for l := range benchLayers {
		c.Tensors = append(c.Tensors, Tensor{DType: "bfloat16", Shape: []int64{2, benchBlocks, testBlock, 4, row / 8}, Offset: int64(l) * layer / 2})
	}
	require.NoError(tb, w.Register(context.Background(), c))
	sched, err := NewScheduler(context.Background(), SchedulerOptions{Model: testModel, Config: cfg, BlockTokens: []int{testBlock}})
	require.NoError(tb, err)
	tb.Cleanup(func() {
		require.NoError(tb, sched.Close())
		require.NoError(tb, w.Close(context.Background()))
		require.NoError(tb, mem.Close())
	})
	b := &bench{sched: sched, worker: w, tokens: prompt(1, benchTokens), blocks: [][]int64{nil}}
	for i := range benchTokens / testBlock {
		b.blocks[0] = append(b.blocks[0], int64(i+1))
	}
	r := b.request()
	require.NoError(tb, sched.Await(context.Background(), r))
	sched.Match(r, 0)
	sched.Allocated(r, b.blocks, 0)
	w.Save(sched.BuildMeta(&Step{Scheduled: []Scheduled{{Request: r, Kind: New, Tokens: benchTokens}}}).Stores)
	sched.Finish(r)
	b.drain()
	return b
}

func (b *bench) request() *Request {
	b.n++
	return &Request{ID: fmt.Sprint("request-", b.n), Tokens: b.tokens, PromptTokens: len(b.tokens)}
}

func (b *bench) drain() {
	for len(b.worker.flights) > 0 {
		b.worker.Poll(nil)
		runtime.Gosched()
	}
}

// cycle is lookup, load, end.
func (b *bench) cycle(tb testing.TB, load bool) {
	tb.Helper()
	r := b.request()
	if err := b.sched.Await(context.Background(), r); err != nil {
		tb.Fatal(err)
	}
	if n, _ := b.sched.Match(r, 0); n != benchTokens-1 {
		tb.Fatalf("a hit of %d tokens", n)
	}
	b.sched.Allocated(r, b.blocks, benchTokens-1)
	if !load {
		b.sched.Finish(r)
		return
	}
	m := b.sched.BuildMeta(&Step{})
	b.worker.Load(m.Loads)
	f := b.worker.flights[0]
	if f.done != nil {
		<-f.done
	} else {
		<-f.call.Done()
	}
	b.drain()
	b.sched.Finish(r)
}

// BenchmarkHit is lookup and load of an 8192-token hit. Machines are shared, so
// it also reports the best iteration, the best time of the same copy by one
// goroutine, and the difference: what lookup, query, retrieve and end cost in
// client and server. Small rows make the copy small, so that this shows.
func BenchmarkHit(b *testing.B) {
	for _, mode := range modes {
		for _, row := range []int64{16, 512} {
			b.Run(fmt.Sprintf("%s/%dKiB", mode, benchTokens*2*benchLayers*row>>10), func(b *testing.B) {
				e := newBench(b, mode, row)
				for range 3 {
					e.cycle(b, true)
				}
				best, copies := time.Duration(1<<62), copyTime(b, e, 20)
				b.SetBytes(benchTokens * 2 * benchLayers * row)
				b.ReportAllocs()
				for b.Loop() {
					begin := time.Now()
					e.cycle(b, true)
					best = min(best, time.Since(begin))
				}
				copies = min(copies, copyTime(b, e, 20))
				b.ReportMetric(float64(best.Nanoseconds()), "best-ns")
				b.ReportMetric(float64(copies.Nanoseconds()), "copy-ns")
				b.ReportMetric(float64((best - copies).Nanoseconds()), "overhead-ns")
			})
		}
	}
}

// copyTime is the best of n copies of the prompt by one goroutine.
func copyTime(tb testing.TB, e *bench, n int) time.Duration {
	tb.Helper()
	l, err := e.worker.caches.layout(e.worker.chunk)
	require.NoError(tb, err)
	storages, err := e.worker.caches.storages(l)
	require.NoError(tb, err)
	size := l.Object[0].ObjectBytes()
	chunks := benchTokens / e.worker.chunk
	pool := make([]byte, int64(chunks)*size)
	for i := range pool { // what is copied back are the bytes that are there
		pool[i] = byte(i)
	}
	objects := make([]copyplan.Object, chunks)
	for i := range objects {
		objects[i] = copyplan.Object{Chunk: i, Offset: int64(i) * size, Bytes: size}
	}
	best := time.Duration(1 << 62)
	for range n {
		p := copyplan.Acquire()
		begin := time.Now()
		require.NoError(tb, p.Add(&copyplan.Request{Layout: l, BlockIDs: e.blocks, Chunks: chunks}, objects, copyplan.Options{}))
		p.Copy(copyplan.Load, storages, pool, copyplan.Pos{}, p.End())
		best = min(best, time.Since(begin))
		p.Release()
	}
	return best
}

// BenchmarkLookup is lookup, query, free and end of a hit that is not loaded.
func BenchmarkLookup(b *testing.B) {
	e := newBench(b, ModeEngineDriven, 16)
	b.ReportAllocs()
	for b.Loop() {
		e.cycle(b, false)
	}
}

// BenchmarkClient is the same as BenchmarkHit with a server that answers at once
// and moves nothing: what the client itself costs, and the loopback.
func BenchmarkClient(b *testing.B) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer l.Close()
	hit, moved := wire.AppendInt(nil, benchTokens/256), wire.AppendStoreReply(nil, nil, true)
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer nc.Close()
				c, err := zmtp.Router(nc, 1<<20)
				for err == nil {
					var m [][]byte
					if m, err = c.Read(); err != nil {
						return
					}
					switch op, _ := wire.ParseOp(m[1]); op {
					case wire.OpGetChunkSize:
						answer(c, m[0], m[1], wire.AppendInt(nil, 256))
					case wire.OpGetExperimental:
						answer(c, m[0], m[1], []byte{0x90})
					case wire.OpPing:
						answer(c, m[0], m[1], []byte{0xc3})
					case wire.OpQueryPrefetchStatus:
						answer(c, m[0], m[1], hit)
					case wire.OpStore, wire.OpRetrieve:
						answer(c, m[0], m[1], moved)
					default:
						answer(c, m[0], m[1])
					}
				}
			}()
		}
	}()
	e := newBenchAt(b, "tcp://"+l.Addr().String(), ModeLMCacheDriven, 16)
	e.cycle(b, true)
	best := time.Duration(1 << 62)
	b.ReportAllocs()
	for b.Loop() {
		begin := time.Now()
		e.cycle(b, true)
		best = min(best, time.Since(begin))
	}
	b.ReportMetric(float64(best.Nanoseconds()), "best-ns")
}

// BenchmarkCall is one round trip.
func BenchmarkCall(b *testing.B) {
	s := startServer(b, nil)
	c := dial(b, s.Addr(), Options{})
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Noop(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecodeStep is what a step costs that neither loads nor stores.
func BenchmarkDecodeStep(b *testing.B) {
	e := newBench(b, ModeEngineDriven, 16)
	r := e.request()
	if err := e.sched.Await(context.Background(), r); err != nil {
		b.Fatal(err)
	}
	e.sched.Match(r, 0)
	e.sched.Allocated(r, e.blocks, 0)
	step := &Step{Scheduled: []Scheduled{{Request: r, Kind: Running, Tokens: 0}}}
	b.ReportAllocs()
	for b.Loop() {
		e.sched.BuildMeta(step)
	}
}

// Allocations do not grow with the prompt: tokens are encoded once into one
// buffer.
func TestAllocationsPerToken(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	s := startServer(t, nil)
	cfg := DefaultConfig()
	cfg.Servers = []string{s.Addr()}
	sched, err := NewScheduler(t.Context(), SchedulerOptions{Model: testModel, Config: cfg, BlockTokens: []int{16}})
	require.NoError(t, err)
	defer sched.Close()
	f := func(n int) float64 {
		tokens := prompt(1, n)
		return testing.AllocsPerRun(50, func() {
			r := &Request{ID: "r", Tokens: tokens, PromptTokens: n}
			if err := sched.Await(context.Background(), r); err != nil {
				t.Error(err)
			}
			sched.Match(r, 0)
			sched.Finish(r)
		})
	}
	short, long := f(256), f(65536)
	// A slice that grows by doubling, and a little for the server in this process.
	if long > short+40 {
		t.Errorf("%v allocations for 256 tokens, %v for 65536", short, long)
	}
}
