package simengine

import (
	"container/list"
	"crypto/sha256"
	"encoding/binary"
)

// blockHash names the tokens of a full block and all before it.
type blockHash [16]byte

// hashBlock chains the hash of a block.
func hashBlock(before blockHash, tokens []uint32) (h blockHash) {
	b := append(make([]byte, 0, len(before)+4*len(tokens)), before[:]...)
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	sum := sha256.Sum256(b)
	copy(h[:], sum[:])
	return h
}

// pool is the paged KV memory: blocks with reference counts, the least recently
// freed of which is reused first, and which can be found by what they hold
// until then. Block 0 is never given out, as in vLLM.
type pool struct {
	refs   []int
	hash   []blockHash
	known  []bool // hash is valid
	byHash map[blockHash]int64
	free   *list.List      // of int64, least recently freed first
	at     []*list.Element // in free

	evicted int64
}

func newPool(blocks int) *pool {
	p := &pool{
		refs: make([]int, blocks), hash: make([]blockHash, blocks), known: make([]bool, blocks),
		byHash: make(map[blockHash]int64), free: list.New(), at: make([]*list.Element, blocks),
	}
	for id := int64(1); id < int64(blocks); id++ {
		p.at[id] = p.free.PushBack(id)
	}
	return p
}

// available is how many blocks alloc could give.
func (p *pool) available() int { return p.free.Len() }

// find takes a block by what it holds.
func (p *pool) find(h blockHash) (int64, bool) {
	id, ok := p.byHash[h]
	if !ok {
		return 0, false
	}
	p.hold(id)
	return id, true
}

func (p *pool) hold(id int64) {
	if p.refs[id]++; p.refs[id] == 1 {
		p.free.Remove(p.at[id])
		p.at[id] = nil
	}
}

// alloc takes the block that was freed first and forgets what it held.
func (p *pool) alloc() (int64, bool) {
	e := p.free.Front()
	if e == nil {
		return 0, false
	}
	id := e.Value.(int64)
	p.forget(id)
	p.hold(id)
	return id, true
}

func (p *pool) forget(id int64) {
	if !p.known[id] {
		return
	}
	if p.byHash[p.hash[id]] == id {
		delete(p.byHash, p.hash[id])
	}
	p.known[id] = false
	p.evicted++
}

// fill says what a block holds from now on.
func (p *pool) fill(id int64, h blockHash) {
	p.hash[id], p.known[id] = h, true
	if _, ok := p.byHash[h]; !ok {
		p.byHash[h] = id
	}
}

// release gives blocks back, the last ones first, so that a prefix outlives
// what follows it.
func (p *pool) release(ids []int64) {
	for i := len(ids) - 1; i >= 0; i-- {
		id := ids[i]
		if p.refs[id]--; p.refs[id] == 0 {
			p.at[id] = p.free.PushBack(id)
		}
	}
}

// reset forgets what free blocks hold (reset_prefix_cache).
func (p *pool) reset() {
	for e := p.free.Front(); e != nil; e = e.Next() {
		p.forget(e.Value.(int64))
	}
}
