package wire

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// benchKey is a scheduler's key with n tokens of a vocabulary of 128256.
func benchKey(n int) []byte {
	r := rand.New(rand.NewPCG(1, 1))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = r.Uint32N(128256)
	}
	return AppendKey(nil, &Key{
		Model: "meta-llama/Llama-3.1-8B-Instruct", WorldSize: 1, Tokens: AppendTokens(nil, tokens), TokenCount: n,
		End: n, RequestID: "cmpl-0123456789abcdef0123456789abcdef-0", NumKVReaders: 1,
	})
}

func BenchmarkDecodeKey(b *testing.B) {
	for _, n := range []int{256, 32768, 131072} {
		frame := benchKey(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var k Key
			b.SetBytes(int64(len(frame)))
			b.ReportAllocs()
			for b.Loop() {
				if err := DecodeKey(frame, &k, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	// Without the token list, which the server's own scanner takes.
	frame := benchKey(32768)
	b.Run("fields", func(b *testing.B) {
		var k Key
		size := 0
		if err := DecodeKey(frame, &k, func(rest []byte, n int) (int, error) {
			var err error
			size, err = SkipTokens(rest, n)
			return size, err
		}); err != nil {
			b.Fatal(err)
		}
		scan := func([]byte, int) (int, error) { return size, nil }
		b.ReportAllocs()
		for b.Loop() {
			if err := DecodeKey(frame, &k, scan); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkParseOp(b *testing.B) {
	for name, frame := range map[string][]byte{"id": {8}, "name": AppendString(nil, "subscribe_kv_events")} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := ParseOp(frame); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecodeBlockIDs(b *testing.B) {
	ids := make([]int64, 2048)
	for i := range ids {
		ids[i] = int64(i * 37)
	}
	frame := AppendBlockIDs(nil, [][]int64{ids})
	var dst [][]int64
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = DecodeBlockIDs(frame, dst); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendPrepareStore(b *testing.B) {
	slots := make([]Slot, 128)
	chunks := make([]int, len(slots))
	for i := range slots {
		slots[i] = Slot{Offset: int64(i) << 25, Length: 1 << 25, Shape: []int64{2, 32, 256, 1024}, DType: "bfloat16"}
		chunks[i] = i
	}
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendPrepareStore(dst[:0], slots, chunks, true)
	}
}
