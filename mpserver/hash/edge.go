package hash

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"sort"
)

// edge is a run of whole chunks that one node of the [trie] stands for: their
// msgpack bytes and hashes. It never changes. Its slices may have spare capacity
// behind them, which only the one caller that claimed the node may write to.
type edge struct {
	raw  []byte   // bytes of the chunks of this edge
	ends []uint32 // ends[i] is where chunk i ends in raw
	// chain holds the hashes from the first chunk of the prompt on, not of this
	// edge: a prompt that ends here is a prefix of it, ready to be handed out.
	chain   []Digest
	depth   int // chunks before this edge
	backing int // bytes of the array behind raw, which may be longer than cap(raw)
}

// rootEdge stands for the empty prompt.
var rootEdge = &edge{}

// cost is the memory that an edge keeps alive.
func (e *edge) cost() int64 {
	return int64(e.backing) + 4*int64(cap(e.ends)) + int64(len(Digest{}))*int64(cap(e.chain))
}

// first returns the bytes of the first chunk.
func (e *edge) first() []byte { return e.raw[:e.ends[0]] }

// last returns the hash behind i chunks of this edge, or before it for i = 0;
// none at the start of a prompt.
func (e *edge) last(i int, none *Digest) *Digest {
	if e.depth+i == 0 {
		return none
	}
	return &e.chain[e.depth+i-1]
}

// end returns where the first i chunks of this edge end.
func (e *edge) end(i int) int {
	if i == 0 {
		return 0
	}
	return int(e.ends[i-1])
}

// match returns how many whole chunks of this edge, at most limit, body begins with.
func (e *edge) match(body []byte, limit int) int {
	limit = min(limit, len(e.ends))
	want := e.end(limit)
	same := commonPrefix(e.raw[:want], body)
	if same == want {
		return limit
	}
	return sort.Search(limit, func(i int) bool { return int(e.ends[i]) > same })
}

// head returns the first i chunks of this edge as an edge of its own, tail the
// rest. The smaller part is copied, so that splitting an edge costs no more
// than reading the prompt that splits it; the larger one keeps the array until
// that would waste more than half of it.
func (e *edge) head(i int) *edge {
	cut := e.end(i)
	h := &edge{
		raw: e.raw[:cut:cut], ends: slices.Clone(e.ends[:i]),
		chain: slices.Clone(e.chain[:e.depth+i]), depth: e.depth, backing: e.backing,
	}
	if cut <= len(e.raw)-cut || e.backing > 2*cut {
		h.own()
	}
	return h
}

func (e *edge) tail(i int) *edge {
	cut := e.end(i)
	t := &edge{
		raw: e.raw[cut:], ends: slices.Clone(e.ends[i:]),
		chain: e.chain, depth: e.depth + i, backing: e.backing,
	}
	for j := range t.ends {
		t.ends[j] -= uint32(cut)
	}
	if len(t.raw) < cut || e.backing > 2*len(t.raw) {
		t.own()
	}
	return t
}

// own gives the edge an array of its own for raw.
func (e *edge) own() {
	e.raw = bytes.Clone(e.raw)
	e.backing = cap(e.raw)
}

// commonPrefix returns the length of the longest common prefix.
func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	// Long runs by the block, where the comparison is fastest.
	const block = 4096
	for i+block <= n && bytes.Equal(a[i:i+block], b[i:i+block]) {
		i += block
	}
	for i+8 <= n {
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			return i + bits.TrailingZeros64(x)/8
		}
		i += 8
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}
