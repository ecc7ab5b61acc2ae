package simengine

import (
	"context"
	"encoding/json"

	"github.com/lmcache-go/lmcache-go/connector"
)

// request is one completion on its way.
type request struct {
	connector.Request
	ctx    context.Context
	max    int
	each   func(uint32)
	blocks [][]int64 // one group
	hashes []blockHash
	prefix []uint64 // of the tokens up to and with each
	filled int      // blocks that the pool can find
	loaded int      // tokens that the load under way brings
	kind   connector.Kind
	answer []uint32
	cached int // of the prompt, not computed
	params map[string]json.RawMessage
	err    error
	over   chan struct{}
	// of a request that ended: what its blocks still wait for
	unsent, unloaded bool
}

func newRequest(ctx context.Context, c Completion, each func(uint32)) *request {
	r := &request{
		Request: connector.Request{ID: c.ID, Tokens: append([]uint32(nil), c.Tokens...), PromptTokens: len(c.Tokens), Salt: c.Salt, Params: c.Params},
		ctx:     ctx, max: c.MaxTokens, each: each, blocks: [][]int64{nil}, over: make(chan struct{}),
	}
	r.advance()
	return r
}

// advance computes the prefixes of new tokens.
func (r *request) advance() {
	for i := len(r.prefix); i < len(r.Tokens); i++ {
		p := uint64(0)
		if i > 0 {
			p = r.prefix[i-1]
		}
		r.prefix = append(r.prefix, next(p, r.Tokens[i]))
	}
}

// hash returns the hash of the i-th block, which must be full.
func (r *request) hash(i, blockTokens int) blockHash {
	for n := len(r.hashes); n <= i; n++ {
		var before blockHash
		if n > 0 {
			before = r.hashes[n-1]
		} else {
			before = hashBlock(before, saltTokens(r.Salt))
		}
		r.hashes = append(r.hashes, hashBlock(before, r.Tokens[n*blockTokens:(n+1)*blockTokens]))
	}
	return r.hashes[i]
}

func saltTokens(salt string) []uint32 {
	var out []uint32
	for _, c := range salt {
		out = append(out, uint32(c))
	}
	return out
}

// end tells the caller.
func (r *request) end(err error) {
	r.err = err
	close(r.over)
}
