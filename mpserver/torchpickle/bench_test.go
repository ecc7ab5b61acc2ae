package torchpickle

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// benchList is a pickle of count tensors of mib MiB, and its pieces.
func benchList(tb testing.TB, count, mib int) (e *Encoder, chunks [][]byte, data []byte) {
	tb.Helper()
	e, err := NewEncoder(mustDType(tb, "bfloat16"), []int64{2, int64(mib), 256, 1024})
	require.NoError(tb, err)
	require.Equal(tb, mib<<20, e.ChunkBytes())
	for i := range count {
		chunks = append(chunks, pattern(e.ChunkBytes(), i))
	}
	return e, chunks, e.Append(nil, chunks)
}

var benchSizes = []struct{ count, mib int }{{4, 1}, {2, 32}}

func BenchmarkParse(b *testing.B) {
	for _, s := range benchSizes {
		b.Run(fmt.Sprintf("%dx%dMiB", s.count, s.mib), func(b *testing.B) {
			_, _, data := benchList(b, s.count, s.mib)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for _, v := range loadTorch(b).Good {
		if v.Name == "kv_chunk_p4" { // three tensors as torch writes them
			b.Run("torch", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := Parse(v.Pickle); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkParseCopy is the whole of a COMMIT_STORE's data plane.
func BenchmarkParseCopy(b *testing.B) {
	for _, s := range benchSizes {
		b.Run(fmt.Sprintf("%dx%dMiB", s.count, s.mib), func(b *testing.B) {
			_, chunks, data := benchList(b, s.count, s.mib)
			b.SetBytes(int64(s.count * s.mib << 20))
			b.ReportAllocs()
			for b.Loop() {
				got, err := Parse(data)
				if err != nil {
					b.Fatal(err)
				}
				for i := range got {
					if err := got[i].CopyTo(chunks[i]); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, s := range benchSizes {
		b.Run(fmt.Sprintf("%dx%dMiB", s.count, s.mib), func(b *testing.B) {
			e, chunks, dst := benchList(b, s.count, s.mib)
			b.SetBytes(int64(s.count * s.mib << 20))
			b.ReportAllocs()
			for b.Loop() {
				dst = e.Append(dst[:0], chunks)
			}
		})
	}
}

// BenchmarkGather copies a transposed view: the slow way.
func BenchmarkGather(b *testing.B) {
	x := Tensor{
		DType: mustDType(b, "bfloat16"), Data: pattern(1<<20, 1),
		Shape: []int64{256, 8, 256}, Stride: []int64{256, 65536, 1},
	}
	dst := make([]byte, x.NumBytes())
	b.SetBytes(int64(len(dst)))
	b.ReportAllocs()
	for b.Loop() {
		if err := x.CopyTo(dst); err != nil {
			b.Fatal(err)
		}
	}
}

// TestAllocations: parsing allocates the result and nothing per tensor;
// copying and encoding into a buffer with room allocate nothing.
func TestAllocations(t *testing.T) {
	e, chunks, data := benchList(t, 4, 1)
	f := func(what string, want float64, do func()) {
		t.Helper()
		do() // fills the pool
		if got := testing.AllocsPerRun(50, do); got > want {
			t.Errorf("%s: got %v allocations, want at most %v", what, got, want)
		}
	}
	// The result is two; under the race detector sync.Pool drops parsers at
	// random, hence the room.
	room := 0.0
	if raceEnabled {
		room = 30
	}
	f("parse", 2+room, func() {
		if _, err := Parse(data); err != nil {
			t.Fatal(err)
		}
	})
	hundred, err := NewEncoder(mustDType(t, "uint8"), []int64{1})
	require.NoError(t, err)
	many := make([][]byte, 100)
	for i := range many {
		many[i] = []byte{1}
	}
	list := hundred.Append(nil, many)
	f("parse 100", 2+room, func() {
		if _, err := Parse(list); err != nil {
			t.Fatal(err)
		}
	})
	got, err := Parse(data)
	require.NoError(t, err)
	f("copy", 0, func() {
		if err := got[0].CopyTo(chunks[0]); err != nil {
			t.Fatal(err)
		}
	})
	dst := make([]byte, 0, e.Size(4))
	f("encode", 0, func() { e.Append(dst, chunks) })
}
