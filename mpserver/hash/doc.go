// Package hash computes the chunk hashes that name KV cache chunks.
//
// A prompt is cut into chunks of ChunkSize tokens; a chunk's hash covers its
// tokens and the hash before it, so that it names the whole prefix:
//
//	H(i) = hash(H(i-1), tokens of chunk i)      H(-1) = NoneHash
//
// A partial chunk at the end has no hash. Model and salt are not hashed; they
// are part of the object key. Two algorithms are served, both with 32-byte
// digests (lmcache 0.5.6, v1/multiprocess token hasher; spec section 11):
// [Blake3], the default, and [SHA256CBOR], which equals vLLM's own block hashes.
//
// A [Hasher] reads token ids straight from the msgpack bytes of a request and
// remembers what it has hashed: see [Hasher.Prompt]. It is safe for concurrent
// use, and so is every [Prompt].
package hash
