package simengine

import (
	"encoding/binary"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// kv is the KV cache as vLLM 0.33 lays it out: one tensor a layer, all in one
// storage, K and V of a head packed in one row. A block is one span of bytes,
// which is what NIXL transfers; beside a NixlConnector heads come before tokens
// in it (LBHNC, which LMCache calls HND), otherwise tokens before heads (LBNHC,
// NHD).
type kv struct {
	o        *Options
	hnd      bool
	rowBytes int // K and V of one head of one token
	layer    int // bytes
	mem      []byte
}

const elemBytes = 2 // bfloat16; the bytes are not meant to be numbers

// dtype is elemBytes wide.
const dtype = "bfloat16"

func newKV(o *Options, mem []byte, hnd bool) *kv {
	return &kv{o: o, hnd: hnd, rowBytes: 2 * o.HeadSize * elemBytes, layer: o.layerBytes(), mem: mem}
}

// pageBytes is a block of one layer.
func (o *Options) pageBytes() int {
	return o.BlockTokens * o.Heads * 2 * o.HeadSize * elemBytes
}

func (o *Options) layerBytes() int { return o.Blocks * o.pageBytes() }

// caches describes the tensors to a worker.
func (k *kv) caches(m connector.Memory) *connector.Caches {
	o := k.o
	c := &connector.Caches{Memory: m, Hints: wire.LayoutHints{KVLayout: "NHD"}}
	shape := []int64{int64(o.Blocks), int64(o.BlockTokens), int64(o.Heads), int64(2 * o.HeadSize)}
	if k.hnd {
		c.Hints.KVLayout = "HND"
		shape[1], shape[2] = shape[2], shape[1]
	}
	for l := range o.Layers {
		c.Tensors = append(c.Tensors, connector.Tensor{DType: dtype, Offset: int64(l) * int64(k.layer) / elemBytes, Shape: shape})
	}
	return c
}

// row is where K and V of a head of a token lie.
func (k *kv) row(layer, head int, blocks []int64, pos int) []byte {
	slot := (pos%k.o.BlockTokens)*k.o.Heads + head
	if k.hnd {
		slot = head*k.o.BlockTokens + pos%k.o.BlockTokens
	}
	at := layer*k.layer + int(blocks[pos/k.o.BlockTokens])*k.o.pageBytes() + slot*k.rowBytes
	return k.mem[at : at+k.rowBytes]
}

// mix is splitmix64's finisher.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// next is the prefix with one more token.
func next(prefix uint64, token uint32) uint64 {
	return mix(prefix + 0x9e3779b97f4a7c15*(uint64(token)+1))
}

// content writes what a row must hold.
func content(dst []byte, layer, head, pos int, prefix uint64) {
	x := prefix ^ uint64(layer)<<48 ^ uint64(head)<<40 ^ uint64(pos)<<8
	for len(dst) >= 8 {
		x = mix(x + 0x9e3779b97f4a7c15)
		binary.LittleEndian.PutUint64(dst, x)
		dst = dst[8:]
	}
	for i := range dst {
		dst[i] = byte(mix(x+1) >> (8 * i))
	}
}

// compute is the forward pass of tokens [from, to) of a request.
func (k *kv) compute(r *request, from, to int) {
	for pos := from; pos < to; pos++ {
		for l := range k.o.Layers {
			for h := range k.o.Heads {
				content(k.row(l, h, r.blocks[0], pos), l, h, pos, r.prefix[pos])
			}
		}
	}
}

// sample reads every page of a request and makes the next token of it: a small
// letter or a space. It must not depend on the order inside a block, so that
// engines with other layouts say the same.
func (k *kv) sample(r *request) uint32 {
	x := uint64(len(r.Tokens))
	for l := range k.o.Layers {
		for i, block := range r.blocks[0] {
			from := i * k.o.BlockTokens
			if tokens := min(k.o.BlockTokens, len(r.Tokens)-from); tokens > 0 {
				x += k.readBlock(l, block, from, tokens)
			}
		}
	}
	n := uint32(mix(x) % 27)
	if n == 26 {
		return ' '
	}
	return 'a' + n
}

// readBlock sums the rows of a block's first tokens, each with a weight of its
// own: a row in another's place is another sum.
func (k *kv) readBlock(layer int, block int64, from, tokens int) (x uint64) {
	at := layer*k.layer + int(block)*k.o.pageBytes()
	page := k.mem[at : at+k.o.pageBytes()]
	tokenStep, headStep := k.o.Heads*k.rowBytes, k.rowBytes
	if k.hnd {
		tokenStep, headStep = k.rowBytes, k.o.BlockTokens*k.rowBytes
	}
	for t := range tokens {
		weight := mix(uint64(from+t)<<20 ^ uint64(layer)<<10)
		for h := range k.o.Heads {
			weight += 0x9e3779b97f4a7c16
			row := page[t*tokenStep+h*headStep:]
			x += sum(row[:k.rowBytes]) * (weight | 1)
		}
	}
	return x
}

// sum weighs the words of a row by their place; each byte counts.
func sum(b []byte) (x uint64) {
	w := uint64(0x9e3779b97f4a7c15)
	for len(b) >= 8 {
		x += binary.LittleEndian.Uint64(b) * w
		w += 0x632be59bd9b4e01a
		b = b[8:]
	}
	for _, c := range b {
		x += uint64(c) * w
		w += 0x632be59bd9b4e01a
	}
	return x
}
