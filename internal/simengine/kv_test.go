package simengine

import "testing"

// newSample is a cache with one request of some tokens.
func newSample(t testing.TB, o Options, hnd bool, tokens int) (*kv, *request) {
	t.Helper()
	k := newKV(&o, make([]byte, o.Layers*o.layerBytes()), hnd)
	c := Completion{Tokens: make([]uint32, tokens)}
	for i := range c.Tokens {
		c.Tokens[i] = uint32(i * 7 % 256)
	}
	r := newRequest(t.Context(), c, nil)
	for i := range (tokens + 15) / 16 {
		r.blocks[0] = append(r.blocks[0], int64(1+i*5%200))
	}
	k.compute(r, 0, tokens)
	return k, r
}

// readAll is the sum that a token is made of.
func readAll(k *kv, r *request) (x uint64) {
	for l := range k.o.Layers {
		for i, b := range r.blocks[0] {
			x += k.readBlock(l, b, i*16, min(16, len(r.Tokens)-i*16))
		}
	}
	return x
}

// Both layouts give the same answer, and every byte, and the place of every
// block, counts in it.
func TestEveryByteCounts(t *testing.T) {
	const tokens = 20
	o := Options{BlockTokens: 16, Blocks: 256, Layers: 2, Heads: 2, HeadSize: 3}
	n, rn := newSample(t, o, false, tokens)
	h, rh := newSample(t, o, true, tokens)
	want := readAll(n, rn)
	if got := readAll(h, rh); got != want || n.sample(rn) != h.sample(rh) {
		t.Fatalf("heads first: %x, tokens first: %x", got, want)
	}
	for _, k := range []*kv{n, h} {
		for l := range k.o.Layers {
			for pos := range tokens {
				for head := range k.o.Heads {
					row := k.row(l, head, rn.blocks[0], pos)
					for i := range row {
						row[i] ^= 0x10
						if readAll(k, rn) == want {
							t.Fatalf("layer %d, position %d, head %d, byte %d does not count", l, pos, head, i)
						}
						row[i] ^= 0x10
					}
				}
			}
		}
		b := rn.blocks[0]
		b[0], b[1] = b[1], b[0]
		if readAll(k, rn) == want {
			t.Error("two blocks in each other's place go unnoticed")
		}
		b[0], b[1] = b[1], b[0]
	}
}

func BenchmarkSample(b *testing.B) {
	k, r := newSample(b, Options{BlockTokens: 16, Blocks: 256, Layers: 4, Heads: 4, HeadSize: 32}, true, 1088)
	b.SetBytes(int64(1088 * 4 * 4 * k.rowBytes))
	b.ReportAllocs()
	for b.Loop() {
		k.sample(r)
	}
}
