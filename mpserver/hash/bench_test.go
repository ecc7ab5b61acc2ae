package hash

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomTokens is n token ids of a vocabulary of 128256 (Llama 3).
func randomTokens(seed uint64, n int) []uint64 {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]uint64, n)
	for i := range out {
		out[i] = r.Uint64N(128256)
	}
	return out
}

func benchmarkFresh(b *testing.B, o Options, n int) {
	b.Helper()
	o.CacheBytes = -1
	h := newHasher(b, o)
	body := encode(randomTokens(1, n))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := h.Prompt(body, n); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkScan(b *testing.B) {
	const n = 32768
	body := encode(randomTokens(1, n))
	out := make([]byte, 4*n)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, _, err := gather32(body, n, out); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkChunkSum(b *testing.B) {
	var prev, dst Digest
	c := newBlake3Chain(256)
	b.ReportAllocs()
	for b.Loop() {
		c.sum(&prev, &dst)
	}
}

func BenchmarkUncached(b *testing.B) {
	for _, n := range []int{1024, 8192, 32768, 131072} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkFresh(b, Options{ChunkSize: 256}, n) })
	}
	b.Run("sha256_cbor/32768", func(b *testing.B) {
		benchmarkFresh(b, Options{Algorithm: SHA256CBOR, ChunkSize: 256}, 32768)
	})
}

// BenchmarkSeen asks for one prompt again and again.
func BenchmarkSeen(b *testing.B) {
	for _, n := range []int{1024, 8192, 32768, 131072} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := newHasher(b, Options{ChunkSize: 256})
			body := encode(randomTokens(1, n))
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := h.Prompt(body, n); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFresh asks for prompts that share nothing, more than fit the cache.
func BenchmarkFresh(b *testing.B) {
	const n = 32768
	h := newHasher(b, Options{ChunkSize: 256, CacheBytes: 8 << 20})
	bodies := make([][]byte, 128)
	for i := range bodies {
		bodies[i] = encode(randomTokens(uint64(i), n))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		if _, _, err := h.Prompt(bodies[i%len(bodies)], n); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSharedPrefix asks for 64 prompts by turns that share 30k tokens and
// differ in the last 2k.
func BenchmarkSharedPrefix(b *testing.B) {
	h := newHasher(b, Options{ChunkSize: 256})
	system := randomTokens(1, 30720)
	bodies := make([][]byte, 64)
	for i := range bodies {
		bodies[i] = encode(append(slices.Clone(system), randomTokens(uint64(i+2), 2048)...))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		if _, _, err := h.Prompt(bodies[i%len(bodies)], 32768); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGrowing asks for a prompt that has a chunk more each time, from 16k
// to 32k tokens; an iteration is one chunk.
func BenchmarkGrowing(b *testing.B) {
	const chunk, from, to = 256, 16384, 32768
	body := encode(randomTokens(1, to))
	h := newHasher(b, Options{ChunkSize: chunk})
	n := from
	b.ReportAllocs()
	for b.Loop() {
		if n == to {
			b.StopTimer()
			h, n = newHasher(b, Options{ChunkSize: chunk}), from
			b.StartTimer()
		}
		if _, _, err := h.Prompt(body, n); err != nil {
			b.Fatal(err)
		}
		n += chunk
	}
}

// BenchmarkSeenParallel is BenchmarkSeen from all processors, a prompt each.
func BenchmarkSeenParallel(b *testing.B) {
	const n = 8192
	h := newHasher(b, Options{ChunkSize: 256})
	body := encode(randomTokens(1, n))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, _, err := h.Prompt(body, n); err != nil {
				b.Error(err)
			}
		}
	})
}
