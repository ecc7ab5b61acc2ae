package kvlayout

import (
	"errors"
	"fmt"
	"strings"
)

// Why a registration cannot be served. Every error of [New] wraps one.
var (
	// ErrTensor: a tensor's own description is impossible (rank, size, a view
	// beyond its storage) or its strides are not those of a paged cache.
	ErrTensor = errors.New("kvlayout: unusable tensor")
	// ErrFormat: no known format matches the tensors of this engine.
	ErrFormat = errors.New("kvlayout: unknown KV format")
	// ErrGroups: the engine's groups do not match the tensors.
	ErrGroups = errors.New("kvlayout: KV groups do not match the tensors")
	// ErrChunkSize: chunk, window and block sizes do not fit together. The
	// error is a [*ChunkSizeError] where another chunk size would do.
	ErrChunkSize = errors.New("kvlayout: chunk size does not fit the engine's blocks")
)

// ChunkSizeError says that the server's chunk size is no multiple of an
// engine's block size, and which ones are. It is an [ErrChunkSize].
type ChunkSizeError struct {
	// Group is the kernel group, Layers its layer range for people.
	Group  int
	Layers string
	// ChunkTokens and BlockTokens are the two numbers that do not fit.
	ChunkTokens, BlockTokens int
	// Step divides every chunk size that all groups of this engine can live
	// with; Valid are its multiples around ChunkTokens.
	Step  int
	Valid []int
}

// Error names both numbers, the group, and chunk sizes that would do.
func (e *ChunkSizeError) Error() string {
	valid := make([]string, len(e.Valid))
	for i, v := range e.Valid {
		valid[i] = fmt.Sprint(v)
	}
	return fmt.Sprintf("kvlayout: chunk size %d is not a multiple of the %d tokens per block of kernel group %d (%s): start the server with --chunk-size set to a multiple of %d, such as %s",
		e.ChunkTokens, e.BlockTokens, e.Group, e.Layers, e.Step, strings.Join(valid, ", "))
}

// Unwrap makes it an [ErrChunkSize].
func (e *ChunkSizeError) Unwrap() error { return ErrChunkSize }
