package hash

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Names of the algorithms, as `--hash-algorithm` spells them.
const (
	Blake3     = "blake3"
	SHA256CBOR = "sha256_cbor"
)

// MaxChunkSize bounds [Options.ChunkSize], in tokens. It keeps the scratch
// memory of one hashing call below 10 MiB.
const MaxChunkSize = 1 << 20

// DefaultCacheBytes is the cache bound that [Options.CacheBytes] 0 stands for.
const DefaultCacheBytes = 64 << 20

// Digest is the hash of a chunk.
type Digest = [32]byte

// Known reports whether New accepts the algorithm.
func Known(algorithm string) bool {
	return algorithm == Blake3 || algorithm == SHA256CBOR
}

// Options configure a [Hasher].
type Options struct {
	// Algorithm is [Blake3] or [SHA256CBOR]. Default (""): blake3.
	Algorithm string
	// ChunkSize is the number of tokens in a chunk. Required, 1..[MaxChunkSize].
	ChunkSize int
	// CacheBytes bounds the memory that remembered prompts take: their raw
	// bytes (1 to 5 a token), their digests and bookkeeping. Default (0):
	// [DefaultCacheBytes], some 400 unrelated prompts of 32k tokens, and many
	// more where prompts share prefixes. Negative: remember nothing.
	CacheBytes int64
	// PythonHashSeed is the seed of the first hash of sha256_cbor: the value of
	// PYTHONHASHSEED in the engine's environment. Default (""): vLLM's own
	// seed. Ignored by blake3.
	PythonHashSeed string
}

// Hasher hashes prompts with one algorithm and chunk size. Create it with
// [New]; it is safe for concurrent use.
type Hasher struct {
	chunkSize int
	none      Digest
	newChain  func() chain
	chains    sync.Pool // of chain; scratch memory of one hashing call
	cache     *trie     // nil when nothing is remembered

	known, hashed atomic.Uint64 // chunks
}

// New returns a hasher. Errors: [ErrUnknownAlgorithm], [ErrBadChunkSize].
func New(o Options) (*Hasher, error) {
	if o.ChunkSize < 1 || o.ChunkSize > MaxChunkSize {
		return nil, fmt.Errorf("%w: %d, want 1..%d tokens", ErrBadChunkSize, o.ChunkSize, MaxChunkSize)
	}
	h := &Hasher{chunkSize: o.ChunkSize}
	switch o.Algorithm {
	case "", Blake3:
		h.none = blake3None()
		h.newChain = func() chain { return newBlake3Chain(o.ChunkSize) }
	case SHA256CBOR:
		h.none = cborNone(o.PythonHashSeed)
		h.newChain = func() chain { return newCBORChain(o.ChunkSize) }
	default:
		return nil, fmt.Errorf("%w (got %q)", ErrUnknownAlgorithm, o.Algorithm)
	}
	h.chains.New = func() any { return h.newChain() }
	switch {
	case o.CacheBytes == 0:
		h.cache = newTrie(DefaultCacheBytes)
	case o.CacheBytes > 0:
		h.cache = newTrie(o.CacheBytes)
	}
	return h, nil
}

// NoneHash returns the hash that stands before the first chunk.
func (h *Hasher) NoneHash() Digest { return h.none }

// ChunkSize returns the number of tokens in a chunk.
func (h *Hasher) ChunkSize() int { return h.chunkSize }

// CacheStats is what [Hasher.CacheStats] tells.
type CacheStats struct {
	// Bytes is the memory of remembered prompts, LimitBytes its bound; both are
	// 0 when nothing is remembered.
	Bytes, LimitBytes int64
	// Nodes is the number of separate runs of chunks that are remembered.
	Nodes int
	// KnownChunks and HashedChunks count the chunks of all prompts so far: those
	// found, and those hashed.
	KnownChunks, HashedChunks uint64
	// Evicted counts the runs dropped to keep within the bound.
	Evicted uint64
}

// CacheStats returns counters for a status page.
func (h *Hasher) CacheStats() CacheStats {
	s := CacheStats{KnownChunks: h.known.Load(), HashedChunks: h.hashed.Load()}
	if t := h.cache; t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		s.Bytes, s.LimitBytes, s.Nodes, s.Evicted = t.bytes, t.limit, t.nodes, t.evicted
	}
	return s
}

// chain is the scratch of one hashing call: it gathers the tokens of a chunk
// and hashes them behind the previous digest.
type chain interface {
	// gather reads n tokens from the front of body. It returns the bytes they
	// take. An error of [errOutOfRange] means that all n were read and one has
	// no form in this algorithm; any other that body is not a token array.
	gather(body []byte, n int) (int, error)
	// sum hashes prev and the gathered tokens into dst.
	sum(prev, dst *Digest)
}
