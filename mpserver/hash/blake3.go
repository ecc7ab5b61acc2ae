package hash

import "github.com/zeebo/blake3"

// blake3None is the hash of 8 and 4 zero bytes: an empty prefix and the token
// list [0], as the reference packs them.
func blake3None() Digest {
	var in [12]byte
	return blake3.Sum256(in[:])
}

// blake3Chain hashes BLAKE3-256(previous digest, each token as a big-endian
// uint32). No length, no separator.
type blake3Chain struct {
	h  *blake3.Hasher
	in []byte // 32 bytes of previous digest, then 4 a token
}

func newBlake3Chain(chunkSize int) *blake3Chain {
	return &blake3Chain{h: blake3.New(), in: make([]byte, len(Digest{})+4*chunkSize)}
}

func (c *blake3Chain) gather(body []byte, n int) (int, error) {
	used, wide, err := gather32(body, n, c.in[len(Digest{}):])
	if err == nil && wide {
		err = ErrTokenRange
	}
	return used, err
}

func (c *blake3Chain) sum(prev, dst *Digest) {
	copy(c.in, prev[:])
	c.h.Reset()
	_, _ = c.h.Write(c.in) // never fails
	c.h.Sum(dst[:0])
}
