package device

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

// model is an engine of some layers with a segment each, and a pool that holds
// its whole cache.
type model struct {
	cache
	chunks int
	object int64
}

func newModel(b *testing.B, d *cpuRig, hint string, layers, chunks int, heads, width int64) *model {
	b.Helper()
	const slots = 16
	blocks := int64(chunks * 16)
	page := heads * slots * width
	in := kvlayout.Input{Engine: kvlayout.EngineVLLM, Hints: kvlayout.Hints{KVLayout: hint}, ChunkTokens: 256}
	for range layers {
		w := kvlayout.Tensor{
			DType: "bfloat16", ElemBytes: 2, Shape: []int64{blocks, slots, heads, width}, Stride: []int64{page, heads * width, width, 1},
			Storage: fmt.Sprint(SegmentPrefix, segmentNumber.Add(1)), StorageBytes: blocks * page * 2,
		}
		if hint == "HND" {
			w.Shape, w.Stride = []int64{blocks, heads, slots, width}, []int64{page, slots * width, width, 1}
		}
		in.Tensors = append(in.Tensors, w)
	}
	l, err := kvlayout.New(in)
	require.NoError(b, err)
	m := &model{cache: cache{layout: l}, chunks: chunks, object: l.Object[0].ObjectBytes()}
	for _, s := range l.Storages {
		d.create(s.Key, s.Bytes)
		e, err := d.Open(s.Key, s.Bytes)
		require.NoError(b, err)
		b.Cleanup(e.Close)
		m.engine = append(m.engine, e)
		// The device's own mapping, so that both copy the same mapped pages.
		m.bytes = append(m.bytes, e.(*mapped).seg.data)
	}
	name := fmt.Sprint(SegmentPrefix, segmentNumber.Add(1))
	m.pool = d.create(name, int64(chunks)*m.object)
	return m
}

// BenchmarkCopy compares a job of many chunks with plain memmove by as many
// goroutines, turn by turn: of the same pieces, and of everything in one go.
// The goal is 90 % of the former.
func BenchmarkCopy(b *testing.B) {
	for _, c := range []struct {
		name   string
		hint   string
		layers int
		heads  int64
		width  int64
		random bool
		form   bool
	}{
		{"64 KiB/random", "NHD", 32, 8, 256, true, false},
		{"64 KiB/sequential", "NHD", 32, 8, 256, false, false},
		{"8 KiB/random", "NHD", 80, 1, 256, true, false},
		{"64 KiB/reordered", "HND", 32, 8, 256, true, true},
	} {
		for _, dir := range []copyplan.Direction{copyplan.Store, copyplan.Load} {
			b.Run(c.name+"/"+dir.String(), func(b *testing.B) {
				d := newCPU(b, CPUOptions{})
				chunks := int(256 << 20 / (int64(c.layers) * 16 * c.heads * 16 * c.width * 2))
				m := newModel(b, d, c.hint, c.layers, chunks, c.heads, c.width)
				s := stream(b, d.CPU, "s")
				ids := make([]int64, chunks*16)
				perm := rand.Perm(len(ids))
				for i := range ids {
					ids[i] = int64(i)
					if c.random {
						ids[i] = int64(perm[i])
					}
				}
				form := m.layout.Object[0].Form
				if c.form {
					form = form.AsTokenMajor()
				}
				var objects []copyplan.Object
				for i := range chunks {
					objects = append(objects, copyplan.Object{Chunk: i, Offset: int64(i) * m.object, Bytes: m.object, Form: form})
				}
				p := copyplan.Acquire()
				require.NoError(b, p.Add(&copyplan.Request{Layout: m.layout, BlockIDs: [][]int64{ids}, Chunks: chunks}, objects, d.Traits().Plans))
				require.NoError(b, do(b, s, &Job{Direction: dir, Plan: p, Engine: m.engine, Pool: m.pool}))

				var pieces, whole, job time.Duration
				piece := 16 * c.heads * c.width * 2
				b.SetBytes(p.Bytes)
				for b.Loop() {
					start := time.Now()
					memmove(d.opts.Threads, m, dir, piece)
					pieces += time.Since(start)
					start = time.Now()
					memmove(d.opts.Threads, m, dir, int64(len(m.bytes[0])))
					whole += time.Since(start)
					start = time.Now()
					if err := do(b, s, &Job{Direction: dir, Plan: p, Engine: m.engine, Pool: m.pool}); err != nil {
						b.Fatal(err)
					}
					job += time.Since(start)
				}
				gb := float64(p.Bytes) * float64(b.N) / 1e9
				b.ReportMetric(gb/job.Seconds(), "GB/s")
				b.ReportMetric(gb/pieces.Seconds(), "memmove-pieces-GB/s")
				b.ReportMetric(gb/whole.Seconds(), "memmove-whole-GB/s")
			})
		}
	}
}

// memmove copies all of a model's layers to the pool, or back, in pieces and in
// order.
func memmove(threads int, m *model, dir copyplan.Direction, piece int64) {
	var wg sync.WaitGroup
	for n := range threads {
		wg.Go(func() {
			for l := n; l < len(m.bytes); l += threads {
				layer := m.bytes[l]
				pool := m.pool[l*len(layer):][:len(layer)]
				for at := int64(0); at < int64(len(layer)); at += piece {
					if dir == copyplan.Store {
						copy(pool[at:at+piece], layer[at:at+piece])
					} else {
						copy(layer[at:at+piece], pool[at:at+piece])
					}
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkSmallJob is the cost of a job beside its copy.
func BenchmarkSmallJob(b *testing.B) {
	d := newCPU(b, CPUOptions{})
	c := newCache(b, d.CPU, d.create)
	s := stream(b, d.CPU, "s")
	done := make(chan error, 1)
	j := c.job(b, d.CPU, copyplan.Store, 0, nil, func(err error) { done <- err }, 0, 1, 2, 3)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Submit(j); err != nil {
			b.Fatal(err)
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}
