package hash

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// countInts returns how many integers body begins with.
func countInts(body []byte) int {
	n := 0
	for {
		_, _, w, err := readInt(body)
		if err != nil {
			return n
		}
		body = body[w:]
		n++
	}
}

// FuzzPrompt asks for prompts made of two pieces in several orders and lengths,
// and compares a hasher that remembers with one that does not.
func FuzzPrompt(f *testing.F) {
	g := loadGolden(f)
	lcg := encode(g.tokens(f, "lcg_600"))
	f.Add(lcg[:400], lcg[400:500], uint16(100), false)
	f.Add(lcg, encode(upTo(300)), uint16(1000), true)
	f.Add(encode(g.tokens(f, "big_values_48")), []byte{0xcf, 0, 0, 0, 1, 0, 0, 0, 0, 0xff, 0xd1}, uint16(3), false)
	f.Add([]byte{0xd0, 1, 0xd2, 0, 0, 0, 1, 0xd3}, []byte{0xc1, 0xa1, 'x'}, uint16(0), true)
	f.Fuzz(func(t *testing.T, a, b []byte, cut uint16, cbor bool) {
		o := Options{ChunkSize: 3, CacheBytes: 6 << 10}
		if cbor {
			o.Algorithm = SHA256CBOR
		}
		p := newPair(t, o)
		head := a[:min(int(cut), len(a))]
		for _, body := range [][]byte{
			a, b, a, append(append([]byte(nil), a...), b...), append(append([]byte(nil), head...), b...), head, b, a,
		} {
			n := countInts(body)
			for _, count := range []int{n, n / 2, n, n + 1, n - 1} {
				require.NoError(t, p.ask(body, count))
			}
			require.NoError(t, p.cached.check())
		}
	})
}
