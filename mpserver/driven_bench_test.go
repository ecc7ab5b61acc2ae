package mpserver

import (
	"context"
	"encoding/binary"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// benchEngine is a registered worker of a server without a loop: objects of
// 1 MiB in blocks of 8 KiB a layer, which never lie side by side.
func benchEngine(b *testing.B, dev device.Device, chunks int) *engine {
	b.Helper()
	s, err := New(Options{HTTPPort: -1, L1: L1Options{SizeBytes: 256 << 20}, device: dev})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	<-s.arena.Grown()
	e := &engine{
		tb: b, s: s, id: 1, blockSlots: 16, blocks: 2 + 2*16*chunks, world: 1,
		groups: []kvGroup{{layers: 8, heads: 8, headBytes: 64}},
	}
	e.newMemory()
	for i := range e.mem {
		e.mem[i] = byte(i)
	}
	e.do(b, wire.OpRegisterKVCache, e.registration()...)
	return e
}

// do runs a handler and waits for the reply's value.
func (e *engine) do(b *testing.B, op wire.Op, payloads ...[]byte) []byte {
	b.Helper()
	answers := make(chan []byte, 1)
	c := &client{tap: func(o *outgoing) { answers <- o.value }}
	r := &request{client: c, op: op, row: &table[op], payloads: payloads, received: time.Now()}
	out := r.row.handle(e.s, context.Background(), r)
	if out.kind != replyLater {
		if out.reason != "" {
			b.Fatal(out.reason)
		}
		return out.value
	}
	return <-answers
}

func (e *engine) transferOK(b *testing.B, op wire.Op, payloads ...[]byte) {
	b.Helper()
	if _, ok, err := wire.DecodeStoreReply(e.do(b, op, payloads...)); err != nil || !ok {
		b.Fatal(op, ok, err)
	}
}

// BenchmarkServerDriven is a STORE of new chunks, the LOOKUP that finds them and
// the RETRIEVE that loads them, without the socket, beside a plain copy of the
// same bytes by all processors.
func BenchmarkServerDriven(b *testing.B) {
	f := func(name string, chunks int, dev func() device.Device) {
		b.Run(name, func(b *testing.B) {
			e := benchEngine(b, dev(), chunks)
			tokens := prompt(1, chunks*256)
			tokens[0] = 70000 // five bytes on the wire, to be changed in place
			k := keyOf("bench", tokens)
			k.End = len(tokens)
			frame, ask := keyFrame(k), keyFrame(scheduler(k))
			tok, askTok := firstToken(b, frame), firstToken(b, ask)
			from, to := make([]int64, 16*chunks), make([]int64, 16*chunks)
			for i := range from {
				from[i], to[i] = int64(2+i^1), int64(2+16*chunks+i^1)
			}
			id, event, skip := intFrame(1), wire.AppendBytes(nil, nil), intFrame(0)
			src, dst := wire.AppendBlockIDs(nil, [][]int64{from}), wire.AppendBlockIDs(nil, [][]int64{to})
			bytes := int64(2 * chunks << 20)
			b.SetBytes(bytes)
			b.ReportAllocs()
			var store, load, plain time.Duration
			other := anonymous(b, len(e.mem))
			for i := uint32(1); b.Loop(); i++ {
				binary.BigEndian.PutUint32(tok, 1<<20+i)
				binary.BigEndian.PutUint32(askTok, 1<<20+i)
				begin := time.Now()
				e.transferOK(b, wire.OpStore, frame, id, src, event)
				store += time.Since(begin)
				e.do(b, wire.OpLookup, ask, id)
				if n, _, _ := e.s.sessions.status("bench", time.Now()); n != chunks {
					b.Fatalf("hit %d chunks", n)
				}
				begin = time.Now()
				e.transferOK(b, wire.OpRetrieve, frame, id, dst, event, skip)
				load += time.Since(begin)
				e.s.sessions.mu.Lock()
				e.s.sessions.lru.Purge()
				e.s.sessions.unlock()
				if i%4 == 0 { // a quarter of the time is enough to compare
					begin = time.Now()
					copyAll(other, e.mem)
					plain += time.Since(begin)
				}
			}
			n := float64(b.N * chunks)
			b.ReportMetric(float64(store.Nanoseconds())/n, "ns/chunk-stored")
			b.ReportMetric(float64(load.Nanoseconds())/n, "ns/chunk-loaded")
			if b.N >= 4 {
				copied := float64(b.N / 4 * len(e.mem))
				b.ReportMetric(float64(n*(1<<20))/float64(store.Nanoseconds()), "store-GB/s")
				b.ReportMetric(float64(n*(1<<20))/float64(load.Nanoseconds()), "load-GB/s")
				b.ReportMetric(copied/float64(plain.Nanoseconds()), "memmove-GB/s")
			}
		})
	}
	cpu := func() device.Device { return nil }
	fake := func() device.Device { return device.NewFake(device.FakeOptions{}) }
	f("cpu/1 chunk", 1, cpu)
	f("cpu/32 chunks", 32, cpu)
	f("fake/1 chunk", 1, fake)
	f("fake/32 chunks", 32, fake)
}

// anonymous is memory outside the Go heap.
func anonymous(b *testing.B, n int) []byte {
	b.Helper()
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, unix.Munmap(mem)) })
	clear(mem)
	return mem
}

// copyAll copies in pieces of 8 KiB, on all processors.
func copyAll(dst, src []byte) {
	const piece = 8 << 10
	threads := runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for n := range threads {
		wg.Go(func() {
			part := len(src) / threads / piece * piece
			for at := n * part; at < (n+1)*part; at += piece {
				copy(dst[at:at+piece], src[at:at+piece])
			}
		})
	}
	wg.Wait()
}
