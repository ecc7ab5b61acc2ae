package connector

import (
	"slices"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// state of a request, with the reference's names (lmcache 0.5.6,
// integration/vllm/lmcache_mp_connector.py).
type state uint8

const (
	prefetching    state = iota // until it has blocks
	waitingForLoad              // until the next meta
	stateReady
	bypass // its load failed: it is computed locally
)

// tracker is what the scheduler knows of a request.
type tracker struct {
	req   *Request
	state state
	params

	tokens []byte // msgpack of the first encoded tokens of req.Tokens
	count  int

	scheduled int // tokens computed here
	stored    int // tokens stored, or found in the server: a multiple of the chunk
	localHit  int // tokens that the engine had, rounded down to its blocks
	hit       int // tokens that the servers have
	blocks    [][]int64
	lookup    *lookup
}

// tokenSlack is room for the first generated tokens.
const tokenSlack = 1 << 10

// sync encodes the tokens that are new.
func (t *tracker) sync() {
	if n := len(t.req.Tokens); n > t.count {
		if t.tokens == nil {
			t.tokens = make([]byte, 0, 3*n+tokenSlack) // ids below 65536 take up to 3 bytes
		}
		t.tokens = wire.AppendTokens(t.tokens, t.req.Tokens[t.count:])
		t.count = n
	}
}

// key is a scheduler's key of a range. Its tokens stay valid: they are only
// appended to.
func (t *tracker) key(s *Scheduler, start, end int) wire.Key {
	t.sync()
	return wire.Key{
		Model: s.model, WorldSize: s.worldSize, Tokens: t.tokens[:len(t.tokens):len(t.tokens)], TokenCount: t.count,
		Start: start, End: end, RequestID: t.req.ID, Salt: t.req.Salt, Configs: t.configs, NumKVReaders: s.readers,
	}
}

// setBlocks takes the whole list of a request's blocks. Lists that went into
// transfers are not written to.
func (t *tracker) setBlocks(blocks [][]int64) {
	if len(t.blocks) != len(blocks) {
		t.blocks = make([][]int64, len(blocks))
	}
	for g, b := range blocks {
		have := t.blocks[g]
		if len(b) >= len(have) && slices.Equal(have, b[:len(have)]) {
			t.blocks[g] = append(have, b[len(have):]...)
		} else {
			t.blocks[g] = slices.Clone(b)
		}
	}
}

// addBlocks appends what a running request got.
func (t *tracker) addBlocks(blocks [][]int64) {
	for g, b := range blocks {
		if g < len(t.blocks) {
			t.blocks[g] = append(t.blocks[g], b...)
		} else {
			t.blocks = append(t.blocks, slices.Clone(b))
		}
	}
}

// covered is how many tokens have blocks in every group.
func (t *tracker) covered(blockTokens []int) int {
	n := -1
	for g, size := range blockTokens {
		c := 0
		if g < len(t.blocks) {
			c = len(t.blocks[g]) * size
		}
		if n < 0 || c < n {
			n = c
		}
	}
	return n
}

// slice is the blocks of a range in each group.
func (t *tracker) slice(blockTokens []int, start, end int) [][]int64 {
	out := make([][]int64, len(blockTokens))
	for g, size := range blockTokens {
		if g < len(t.blocks) {
			from, to := start/size, min((end+size-1)/size, len(t.blocks[g]))
			from = min(from, to)
			out[g] = t.blocks[g][from:to:to]
		}
	}
	return out
}

// load is the transfer of what the servers have and the engine lacks.
func (t *tracker) load(s *Scheduler) Transfer {
	start := t.localHit / s.chunk * s.chunk
	return Transfer{Key: t.key(s, start, t.hit), Blocks: t.slice(s.blockTokens, start, t.hit), SkipTokens: t.localHit - start}
}

// store is the transfer of the whole chunks that have been computed, or will
// have been in this step, and are not stored; ok is false without any.
func (t *tracker) store(s *Scheduler) (_ Transfer, ok bool) {
	available := min(len(t.req.Tokens), t.covered(s.blockTokens), t.scheduled+max(t.localHit, t.hit))
	if !s.cfg.SaveDecodeCache {
		available = min(available, t.req.PromptTokens)
	}
	if t.maxOffload >= 0 {
		available = min(available, t.maxOffload)
	}
	n := (available - t.stored) / s.chunk
	if n < 1 {
		return Transfer{}, false
	}
	start := t.stored
	t.stored += n * s.chunk
	return Transfer{Key: t.key(s, start, t.stored), Blocks: t.slice(s.blockTokens, start, t.stored)}, true
}

// bypassLoad forgets what the servers have, after a load that failed.
func (t *tracker) bypassLoad() {
	t.state = bypass
	t.scheduled, t.stored, t.localHit, t.hit = 0, 0, 0, 0
}
