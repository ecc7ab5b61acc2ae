package simengine

import (
	"encoding/binary"
	"hash/fnv"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// kv is the KV cache: one tensor a layer of [2, blocks, tokens, heads, head
// size] in one storage.
type kv struct {
	o        *Options
	rowBytes int
	layer    int // bytes
	mem      []byte
	want     []byte
}

const elemBytes = 2 // float16; the bytes are not meant to be numbers

func newKV(o *Options, mem []byte) *kv {
	k := &kv{o: o, rowBytes: o.Heads * o.HeadSize * elemBytes, mem: mem}
	k.layer = o.layerBytes()
	k.want = make([]byte, k.rowBytes)
	return k
}

func (o *Options) layerBytes() int {
	return 2 * o.Blocks * o.BlockTokens * o.Heads * o.HeadSize * elemBytes
}

// caches describes the tensors to a worker.
func (k *kv) caches(m connector.Memory) *connector.Caches {
	c := &connector.Caches{Memory: m, Hints: wire.LayoutHints{KVLayout: "NHD"}}
	for l := range k.o.Layers {
		c.Tensors = append(c.Tensors, connector.Tensor{
			DType: "float16", Offset: int64(l) * int64(k.layer) / elemBytes,
			Shape: []int64{2, int64(k.o.Blocks), int64(k.o.BlockTokens), int64(k.o.Heads), int64(k.o.HeadSize)},
		})
	}
	return c
}

func (k *kv) row(layer, plane int, blocks []int64, pos int) []byte {
	slot := (plane*k.o.Blocks+int(blocks[pos/k.o.BlockTokens]))*k.o.BlockTokens + pos%k.o.BlockTokens
	at := layer*k.layer + slot*k.rowBytes
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

// content writes what a token's row must hold.
func content(dst []byte, layer, plane, pos int, prefix uint64) {
	x := prefix ^ uint64(layer)<<48 ^ uint64(plane)<<40 ^ uint64(pos)<<8
	var word [8]byte
	for i := 0; i < len(dst); i += 8 {
		x = mix(x + 0x9e3779b97f4a7c15)
		binary.LittleEndian.PutUint64(word[:], x)
		copy(dst[i:], word[:])
	}
}

// compute is the forward pass of tokens [from, to) of a request.
func (k *kv) compute(r *request, from, to int) {
	for pos := from; pos < to; pos++ {
		for l := range k.o.Layers {
			for plane := range 2 {
				content(k.row(l, plane, r.blocks[0], pos), l, plane, pos, r.prefix[pos])
			}
		}
	}
}

// sample reads every page of a request and makes the next token of it: a small
// letter or a space.
func (k *kv) sample(r *request) uint32 {
	h := fnv.New64a()
	for pos := range len(r.Tokens) {
		for l := range k.o.Layers {
			for plane := range 2 {
				_, _ = h.Write(k.row(l, plane, r.blocks[0], pos)) // never fails
			}
		}
	}
	n := uint32(mix(h.Sum64()) % 27)
	if n == 26 {
		return ' '
	}
	return 'a' + n
}
