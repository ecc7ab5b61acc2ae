package hash

import (
	"errors"
	"fmt"
)

// Prompt is a hashed token list. It is immutable, shared between requests, and
// may be kept for as long as its holder likes.
type Prompt struct {
	chunks []Digest
	tokens int
	err    error
}

// Chunks returns the hashes of all complete chunks, in order. Do not modify them.
func (p *Prompt) Chunks() []Digest { return p.chunks }

// Tokens returns the number of tokens, those of a partial last chunk included.
func (p *Prompt) Tokens() int { return p.tokens }

// Err returns [ErrTokenRange] when a complete chunk cannot be hashed; Chunks
// then ends before it.
func (p *Prompt) Err() error { return p.err }

// Prompt hashes the msgpack array of token ids whose elements start at body:
// count is the length that the array declares. It returns the hashed prompt
// and the bytes of body that the elements take, whatever follows them.
//
// Errors: [ErrTruncated], [ErrNotInteger]. A token that the algorithm cannot
// hash is not an error here: see [Prompt.Err].
func (h *Hasher) Prompt(body []byte, count int) (p *Prompt, consumed int, err error) {
	if count < 0 || count > len(body) { // an element takes a byte at least
		return nil, 0, fmt.Errorf("%w: %d tokens in %d bytes", ErrTruncated, count, len(body))
	}
	p = &Prompt{tokens: count, chunks: make([]Digest, 0, count/h.chunkSize)}
	c := h.chains.Get().(chain)
	defer h.chains.Put(c)
	prev := &h.none
	for range count / h.chunkSize {
		n, err := c.gather(body[consumed:], h.chunkSize)
		switch {
		case errors.Is(err, ErrTokenRange):
			p.err = err
		case err != nil:
			return nil, 0, err
		case p.err == nil:
			p.chunks = p.chunks[:len(p.chunks)+1]
			dst := &p.chunks[len(p.chunks)-1]
			c.sum(prev, dst)
			prev = dst
		}
		consumed += n
	}
	n, err := skipInts(body[consumed:], count%h.chunkSize)
	if err != nil {
		return nil, 0, err
	}
	return p, consumed + n, nil
}
