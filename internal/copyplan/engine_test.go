package copyplan

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

// engine is a KV cache with bytes in it, addressed by its own axes: the slow
// and obvious way to say where an element is.
//
// Axes are letters: k plane, l layer, b block, s slot, h head, e element,
// p block and slot in one, 1 an axis of one.
type engine struct {
	in     kvlayout.Input
	size   [128]int64 // by letter
	planes int64
	elem   int64
	mem    [][]byte // by storage of the layout, once it is made
	// axes of each tensor as sent; perTensor letters pick the tensor.
	wire      string
	perTensor string
	layout    *kvlayout.Layout
	storage   []int // of each tensor
}

// packing says how the tensors of an engine share memory.
type packing int

const (
	own         packing = iota // a storage each
	layerFirst                 // one storage, layer after layer
	blocksFirst                // one storage, per block all layers
	gaps                       // a storage each, room after every block
	oddSteps                   // one storage, layers in irregular distances
)

// shape of a case: mem is the order in memory, outermost first, wire the order
// of the axes as sent.
type shape struct {
	name      string
	engine    kvlayout.Engine
	hints     kvlayout.Hints
	mem, wire string
	format    kvlayout.Format
	packings  []packing
	dtype     string
	width     int64 // of a row, when the format says so
}

const (
	nLayers, nSlots, nHeads, nWidth = 3, 4, 3, 5
	nBlocks                         = 20
)

var perLayer = []packing{own, layerFirst, oddSteps}

var blockAxis = []packing{own, layerFirst, blocksFirst, gaps, oddSteps}

func nhd() kvlayout.Hints { return kvlayout.Hints{KVLayout: "NHD"} }
func hnd() kvlayout.Hints { return kvlayout.Hints{KVLayout: "HND"} }

// shapes is every format served, in every engine's way of sending it.
var shapes = []shape{
	{name: "0", engine: "vllm", hints: nhd(), mem: "blkshe", wire: "blkshe", format: 0, packings: []packing{own}},
	{name: "8 of vllm", engine: "vllm", hints: hnd(), mem: "blkhse", wire: "blkshe", format: 8, packings: []packing{own}},
	{name: "1", engine: "vllm", hints: nhd(), mem: "kbshe", wire: "kbshe", format: 1, packings: perLayer},
	{name: "1 permuted", engine: "vllm", hints: nhd(), mem: "kbshe", wire: "bkshe", format: 1, packings: perLayer},
	{name: "2", engine: "vllm", hints: nhd(), mem: "bkshe", wire: "kbshe", format: 2, packings: perLayer},
	{name: "3", engine: "vllm", hints: hnd(), mem: "bse", wire: "bse", format: 3, packings: blockAxis},
	{name: "6", engine: "vllm", hints: hnd(), mem: "kbhse", wire: "kbshe", format: 6, packings: perLayer},
	{name: "7", engine: "vllm", hints: hnd(), mem: "bkhse", wire: "bkhse", format: 7, packings: perLayer},
	{name: "8", engine: "trtllm", hints: kvlayout.Hints{NumKVHeads: nHeads, TokensPerBlock: nSlots, HeadDim: nWidth}, mem: "blkhse", wire: "blk*", format: 8, packings: []packing{own}},
	{name: "9", engine: "sglang", hints: kvlayout.Hints{KVListLayout: "k_v", TokensPerBlock: nSlots}, mem: "phe", wire: "phe", format: 9, packings: perLayer},
	{name: "12", engine: "vllm", hints: hnd(), mem: "bhse", wire: "bhse", format: 12, packings: blockAxis},
	{name: "12 permuted", engine: "vllm", hints: hnd(), mem: "bhse", wire: "bshe", format: 12, packings: blockAxis},
	{name: "13", engine: "vllm", hints: nhd(), mem: "bshe", wire: "bhse", format: 13, packings: blockAxis},
	{name: "14", engine: "vllm", hints: nhd(), mem: "bse", wire: "bse", format: 14, packings: []packing{blocksFirst, gaps}, dtype: "uint8", width: 132},
	{name: "14 of rank 4", engine: "vllm", hints: hnd(), mem: "b1se", wire: "b1se", format: 14, packings: []packing{blocksFirst, gaps}, dtype: "uint8", width: 132},
	{name: "15", engine: "vllm", hints: nhd(), mem: "kbh1se", wire: "kbh1se", format: 15, packings: perLayer},
	{name: "18", engine: "sglang", hints: kvlayout.Hints{KVListLayout: "unified"}, mem: "bshe", wire: "bshe", format: 18, packings: blockAxis},
	{name: "3 of sglang", engine: "sglang", hints: kvlayout.Hints{TokensPerBlock: nSlots}, mem: "p1e", wire: "p1e", format: 3, packings: perLayer},
	{name: "3 of atom", engine: "atom", mem: "bse", wire: "bse", format: 3, packings: blockAxis},
}

// make builds the engine of a shape.
func (c *shape) make(t testing.TB, rng *rand.Rand, pack packing, change func(in *kvlayout.Input)) *engine {
	t.Helper()
	e := &engine{
		size:   [128]int64{'k': 2, 'l': nLayers, 'b': nBlocks, 's': nSlots, 'h': nHeads, 'e': nWidth, 'p': nBlocks * nSlots, '1': 1},
		planes: 1, elem: 2, wire: c.wire,
	}
	dtype := "float16"
	if c.dtype != "" {
		dtype, e.elem = c.dtype, 1
	}
	if c.width > 0 {
		e.size['e'] = c.width
	}
	if !strings.Contains(c.mem, "h") {
		e.size['h'] = 1
	}
	if strings.Contains(c.mem, "k") || c.format == kvlayout.FormatList {
		e.planes = 2
	}
	if !strings.Contains(c.mem, "l") {
		e.perTensor = "l"
		if c.format == kvlayout.FormatList {
			e.perTensor = "kl"
		}
	}
	// Strides from the order in memory.
	stride := map[byte]int64{}
	n := int64(1)
	for i := len(c.mem) - 1; i >= 0; i-- {
		stride[c.mem[i]] = n
		n *= e.size[c.mem[i]]
	}
	tensors := int64(1)
	for _, a := range []byte(e.perTensor) {
		tensors *= e.size[a]
	}
	block := n / e.size[c.mem[0]]
	offset, storage := func(int64) int64 { return 0 }, func(int64) string { return "one" }
	total := n
	switch pack {
	case own:
		storage = func(i int64) string { return fmt.Sprint("s", i) }
	case layerFirst:
		offset = func(i int64) int64 { return 7 + i*n }
		total = 7 + tensors*n
	case blocksFirst:
		stride['b'] = block * tensors
		offset = func(i int64) int64 { return i * block }
		total = n * tensors
	case gaps:
		stride['b'] = block + 11
		storage = func(i int64) string { return fmt.Sprint("s", i) }
		offset = func(int64) int64 { return 3 }
		total = 3 + n + 11*nBlocks
	case oddSteps:
		offset = func(i int64) int64 { return i*n + i*i*3 }
		total = tensors*n + tensors*tensors*3
	}
	e.in = kvlayout.Input{Engine: c.engine, Hints: c.hints, ChunkTokens: 4 * nSlots}
	for i := range tensors {
		w := kvlayout.Tensor{DType: dtype, ElemBytes: int(e.elem), Offset: offset(i), Storage: storage(i), StorageBytes: total * e.elem}
		for _, a := range []byte(c.wire) {
			if a == '*' {
				w.Shape, w.Stride = append(w.Shape, e.size['h']*e.size['s']*e.size['e']), append(w.Stride, 1)
				continue
			}
			w.Shape, w.Stride = append(w.Shape, e.size[a]), append(w.Stride, stride[a])
		}
		e.in.Tensors = append(e.in.Tensors, w)
	}
	if change != nil {
		change(&e.in)
	}
	var err error
	e.layout, err = kvlayout.New(e.in)
	require.NoError(t, err)
	require.Equal(t, c.format, e.layout.Kernel[0].Format)
	for _, w := range e.in.Tensors {
		e.storage = append(e.storage, slices.Index(e.layout.Storages, kvlayout.Storage{Key: w.Storage, Bytes: w.StorageBytes}))
	}
	for _, s := range e.layout.Storages {
		m := make([]byte, s.Bytes)
		fill(rng, m)
		e.mem = append(e.mem, m)
	}
	return e
}

func fill(rng *rand.Rand, b []byte) {
	for i := 0; i < len(b); i += 8 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], rng.Uint64())
		copy(b[i:], w[:])
	}
}

// at is the storage and byte offset of one element.
func (e *engine) at(plane, layer, block, slot, head, elem int64) (int, int64) {
	index := func(a byte) int64 {
		switch a {
		case 'k':
			return plane
		case 'l':
			return layer
		case 'b':
			return block
		case 's':
			return slot
		case 'h':
			return head
		case 'e':
			return elem
		case 'p':
			return block*nSlots + slot
		}
		return 0
	}
	i := int64(0)
	for _, a := range []byte(e.perTensor) {
		i = i*e.size[a] + index(a)
	}
	w := &e.in.Tensors[i]
	off := w.Offset
	for axis, a := range []byte(e.wire) {
		if a == '*' { // trtllm folds heads, slots and elements into one axis
			off += (head*nSlots+slot)*nWidth + elem
			continue
		}
		off += index(a) * w.Stride[axis]
	}
	return e.storage[i], off * e.elem
}

// each calls f for every element of an object of the first object group: where
// it is in the engine and where in the object. rows counts layers inside each
// kernel group; the engine has one kernel group unless said otherwise.
func (e *engine) each(g *kvlayout.KernelGroup, r *kvlayout.Region, ids []int64, chunk, skip int64, f func(storage int, engine, object int64)) {
	bpc, kept := int64(g.BlocksPerChunk), int64(g.KeptBlocks)
	heads, width := e.size['h'], e.size['e']
	for plane := range e.planes {
		for row, layer := range g.Layers {
			for j := range kept {
				in := bpc - kept + j // block in the chunk
				if chunk*int64(e.layout.ChunkTokens)+(in+1)*g.TokensPerBlock <= skip {
					continue
				}
				for slot := range int64(nSlots) {
					for head := range heads {
						for elem := range width {
							storage, at := e.at(plane, int64(layer), ids[chunk*bpc+in], slot, head, elem)
							s := j*nSlots + slot // in the object
							o := (plane*int64(len(g.Layers))+int64(row))*kept*nSlots*heads*width + elem
							if r.BlockSlots == 0 {
								o += (s*heads + head) * width
							} else {
								o += (s/r.BlockSlots*r.BlockSlots*heads + head*r.BlockSlots + s%r.BlockSlots) * width
							}
							f(storage, at, r.Offset+o*e.elem)
						}
					}
				}
			}
		}
	}
}
