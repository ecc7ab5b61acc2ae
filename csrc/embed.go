// Package csrc holds the GPU kernels: their source, and the PTX that was made
// from it, embedded with the hash of that source. Building the module needs no
// CUDA; `make kernels` compiles them anew, and a test says when that is due.
//
// The C that cgo compiles lies beside its Go package, in cuda/internal/capi;
// CMakeLists.txt builds both for whoever works on them in C.
package csrc

import (
	_ "embed"
	"strings"
)

// PTX of all kernels, for compute capability 7.5 and later.
//
//go:embed kernels.ptx
var PTX string

// Source of the kernels.
//
//go:embed kernels.cu
var Source string

// Names of the kernels, with their arguments, all 8 bytes wide.
const (
	// Pull copies pieces: tables of dst, src and bytes in device memory, and
	// their number.
	Pull = "lmc_pull"
	// Transpose exchanges two axes: dst, src, blocks, rows, columns and the
	// bytes of a piece.
	Transpose = "lmc_transpose"
)

// SourceHash is the SHA-256 of the source that the PTX was made from, in
// hexadecimal digits.
func SourceHash() string {
	line, _, _ := strings.Cut(PTX, "\n")
	_, hash, _ := strings.Cut(line, "sha256 ")
	return hash
}
