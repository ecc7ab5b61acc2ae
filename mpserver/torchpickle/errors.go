package torchpickle

import (
	"errors"
	"fmt"
)

// Errors of [Parse], to be tested with errors.Is. The text around them says
// where in the pickle the problem lies and holds no payload.
var (
	// ErrMalformed: the bytes end too early or are not a pickle of a list of
	// tensors (wrong protocol, an operand missing, trailing bytes, a storage
	// whose declared size differs from its bytes).
	ErrMalformed = errors.New("not a pickled list of tensors")
	// ErrForbidden: the pickle names a global or uses an operation that
	// torch never writes for a plain CPU tensor. Nothing of it was executed.
	ErrForbidden = errors.New("pickle holds something other than plain CPU tensors")
	// ErrLimit: a limit of limits.go was met before the end.
	ErrLimit = errors.New("pickle exceeds a limit")
	// ErrBounds: a tensor's offset, shape and stride reach outside its storage.
	ErrBounds = errors.New("tensor reaches outside its storage")
)

// Errors of [NewEncoder] and [Tensor.CopyTo].
var (
	// ErrShape: a dimension is negative, there are too many of them, or the
	// product does not fit.
	ErrShape = errors.New("shape cannot be pickled")
	// ErrSize: the destination's length differs from the tensor's size in bytes.
	ErrSize = errors.New("destination has the wrong size")
)

// errAt wraps a sentinel with a position in the stream and a reason.
func errAt(sentinel error, pos int, format string, args ...any) error {
	return fmt.Errorf("%w: at byte %d: %s", sentinel, pos, fmt.Sprintf(format, args...))
}
