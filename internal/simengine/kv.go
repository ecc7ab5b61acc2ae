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
// letter or a space.
func (k *kv) sample(r *request) uint32 {
	x := uint64(len(r.Tokens))
	for pos := range len(r.Tokens) {
		for l := range k.o.Layers {
			for h := range k.o.Heads {
				x = fold(x, k.row(l, h, r.blocks[0], pos))
			}
		}
	}
	n := uint32(mix(x) % 27)
	if n == 26 {
		return ' '
	}
	return 'a' + n
}

// fold takes bytes into a hash; each of them counts.
func fold(x uint64, b []byte) uint64 {
	for len(b) >= 8 {
		x = (x ^ binary.LittleEndian.Uint64(b)) * 0x9e3779b97f4a7c15
		x ^= x >> 32
		b = b[8:]
	}
	for _, c := range b {
		x = (x ^ uint64(c)) * 0x9e3779b97f4a7c15
		x ^= x >> 32
	}
	return x
}
