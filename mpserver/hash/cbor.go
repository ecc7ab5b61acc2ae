package hash

import (
	"crypto/sha256"
	"encoding/binary"
)

// vllmSeed is what vLLM 0.33 seeds its first hash with when PYTHONHASHSEED is
// not set.
const vllmSeed = "vllm-none-hash"

// Major types of CBOR (RFC 8949), in the top three bits of a head.
const (
	cborUint  = 0x00
	cborNeg   = 0x20
	cborBytes = 0x40
	cborText  = 0x60
	cborArray = 0x80
	cborNull  = 0xf6
)

// cborNone is SHA-256 over the seed as a CBOR text string.
func cborNone(seed string) Digest {
	if seed == "" {
		seed = vllmSeed
	}
	return sha256.Sum256(append(appendCBORHead(nil, cborText, uint64(len(seed))), seed...))
}

// appendCBORHead appends the shortest head of a major type with its argument.
func appendCBORHead(dst []byte, major byte, v uint64) []byte {
	switch {
	case v < 24:
		return append(dst, major|byte(v))
	case v <= 0xff:
		return append(dst, major|24, byte(v))
	case v <= 0xffff:
		return binary.BigEndian.AppendUint16(append(dst, major|25), uint16(v))
	case v <= 0xffffffff:
		return binary.BigEndian.AppendUint32(append(dst, major|26), uint32(v))
	default:
		return binary.BigEndian.AppendUint64(append(dst, major|27), v)
	}
}

// cborChain hashes SHA-256 of canonical CBOR [previous digest, [tokens...], null].
type cborChain struct {
	in     []byte // head, previous digest, tokens gathered so far
	prevAt int
}

func newCBORChain(chunkSize int) *cborChain {
	c := &cborChain{in: make([]byte, 0, 48+9*chunkSize)}
	c.in = append(c.in, cborArray|3)
	c.in = appendCBORHead(c.in, cborBytes, uint64(len(Digest{})))
	c.prevAt = len(c.in)
	return c
}

func (c *cborChain) gather(body []byte, n int) (int, error) {
	in := c.in[:c.prevAt+len(Digest{})]
	in = appendCBORHead(in, cborArray, uint64(n))
	i := 0
	for range n {
		v, negative, w, err := readInt(body[i:])
		if err != nil {
			return 0, err
		}
		if negative {
			in = appendCBORHead(in, cborNeg, ^v) // CBOR stores -1-v
		} else {
			in = appendCBORHead(in, cborUint, v)
		}
		i += w
	}
	c.in = append(in, cborNull)
	return i, nil
}

func (c *cborChain) sum(prev, dst *Digest) {
	copy(c.in[c.prevAt:], prev[:])
	*dst = sha256.Sum256(c.in)
}
