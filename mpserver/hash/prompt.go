package hash

import (
	"errors"
	"fmt"
	"math"
	"slices"
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
// and the bytes of body that the elements take, whatever follows them. It keeps
// no reference to body.
//
// A prompt seen before is found by comparing its bytes; one that begins like a
// prompt seen before is compared as far as that, by whole chunks, and scanned
// and hashed from there on.
//
// Errors: [ErrTruncated], [ErrNotInteger]. A token that the algorithm cannot
// hash is not an error here: see [Prompt.Err].
func (h *Hasher) Prompt(body []byte, count int) (p *Prompt, consumed int, err error) {
	if count < 0 || count > len(body) { // an element takes a byte at least
		return nil, 0, fmt.Errorf("%w: %d tokens in %d bytes", ErrTruncated, count, len(body))
	}
	whole := count / h.chunkSize
	at := place{edge: rootEdge}
	if h.cache != nil {
		at, consumed = h.cache.walk(body, h.chunkSize, whole)
	}
	h.known.Add(uint64(at.depth()))
	if h.cache == nil || at.depth() < whole {
		h.hashed.Add(uint64(whole - at.depth()))
		p, n, err := h.extend(at, body[consumed:], count)
		if err != nil {
			return nil, 0, err
		}
		return p, consumed + n, nil
	}
	n, err := skipInts(body[consumed:], count%h.chunkSize)
	if err != nil {
		return nil, 0, err
	}
	return h.cache.prompt(at, count), consumed + n, nil
}

// extend hashes the chunks of a prompt of count tokens from a place on, where
// body begins, and remembers them.
func (h *Hasher) extend(at place, body []byte, count int) (*Prompt, int, error) {
	var claimed, busy bool
	if h.cache != nil {
		claimed, busy = h.cache.claim(at)
	}
	x := extension{at: at}
	if claimed {
		x.edge = *at.edge
	} else {
		x.edge = edge{depth: at.depth(), chain: at.edge.chain[:at.depth():at.depth()]}
	}
	err := h.hashChunks(&x, body, count/h.chunkSize)
	tail := 0
	if err == nil {
		tail, err = skipInts(body[x.used:], count%h.chunkSize)
	}
	if err != nil {
		if claimed {
			h.cache.release(at.node)
		}
		return nil, 0, err
	}
	p := &Prompt{chunks: slices.Clip(x.edge.chain), tokens: count, err: x.err}
	fits := h.cache != nil && x.hashed > 0 && x.fits(h.cache.limit/2)
	switch {
	case fits && claimed:
		h.cache.grow(at, x.finish(body), p)
	case claimed:
		h.cache.release(at.node)
	case fits && !busy:
		h.cache.insert(at, x.finish(body), p)
	}
	return p, x.used + tail, nil
}

// extension is the work of one call of [Hasher.extend].
type extension struct {
	at     place
	edge   edge // that of the place with more chunks, or a new one behind it
	used   int  // bytes that the whole chunks of the prompt took
	hashed int  // bytes that hashed chunks took
	err    error
}

// hashChunks hashes the whole chunks that body begins with, until the prompt
// has whole of them. Behind a token that has no hash it only scans.
func (h *Hasher) hashChunks(x *extension, body []byte, whole int) error {
	more := whole - x.at.depth()
	e := &x.edge
	base := len(e.raw)
	e.chain = slices.Grow(e.chain, more)
	e.ends = slices.Grow(e.ends, more)
	prev := x.at.edge.last(x.at.chunks, &h.none)
	c := h.chains.Get().(chain)
	defer h.chains.Put(c)
	for range more {
		if x.err != nil {
			n, err := skipInts(body[x.used:], h.chunkSize)
			if err != nil {
				return err
			}
			x.used += n
			continue
		}
		n, err := c.gather(body[x.used:], h.chunkSize)
		if err != nil && !errors.Is(err, ErrTokenRange) {
			return err
		}
		x.used += n
		if x.err = err; err != nil {
			continue
		}
		e.chain = e.chain[:len(e.chain)+1]
		dst := &e.chain[len(e.chain)-1]
		c.sum(prev, dst)
		prev = dst
		x.hashed = x.used
		e.ends = append(e.ends, uint32(base+x.used))
	}
	return nil
}

// fits reports whether the extended edge is small enough to be remembered.
func (x *extension) fits(limit int64) bool {
	size := len(x.edge.raw) + x.hashed
	return size <= math.MaxUint32 && x.edge.cost()+int64(size)+nodeCost <= limit
}

// finish adds the hashed bytes and returns the edge.
func (x *extension) finish(body []byte) *edge {
	e := x.edge // a copy: it must not keep the place alive
	inPlace := len(e.raw)+x.hashed <= cap(e.raw)
	e.raw = append(e.raw, body[:x.hashed]...)
	if !inPlace {
		e.backing = cap(e.raw)
	}
	return &e
}
