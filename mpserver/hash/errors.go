package hash

import "errors"

// Returned by [New].
var (
	// ErrUnknownAlgorithm is returned for an algorithm that is not served.
	ErrUnknownAlgorithm = errors.New("unknown hash algorithm: use blake3 or sha256_cbor")
	// ErrBadChunkSize is returned for a chunk size below 1 or above [MaxChunkSize].
	ErrBadChunkSize = errors.New("chunk size out of range")
)

// Returned by [Hasher.Prompt]: the array itself cannot be read.
var (
	// ErrTruncated is returned when the bytes end before the declared number of tokens.
	ErrTruncated = errors.New("token array is shorter than it declares")
	// ErrNotInteger is returned when an element is not a msgpack integer.
	ErrNotInteger = errors.New("token is not an integer")
)

// ErrTokenRange is reported by [Prompt.Err] when a complete chunk holds a token
// that blake3 hashing has no form for: it packs tokens as unsigned 32-bit words.
var ErrTokenRange = errors.New("token outside 0..4294967295 in a complete chunk")
