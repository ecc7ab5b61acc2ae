//go:build !linux || !cgo

package dl

import "unsafe"

// MaxArgs is how many arguments [Call] can pass.
const MaxArgs = 8

// Library is one open library; this build opens none.
type Library struct{}

// Open fails with [ErrUnsupported].
func Open(string, Flags) (*Library, error) { return nil, ErrUnsupported }

// Symbol fails with [ErrUnsupported].
func (*Library) Symbol(string) (unsafe.Pointer, error) { return nil, ErrUnsupported }

// Path returns "".
func (*Library) Path() string { return "" }

// Close fails with [ErrUnsupported].
func (*Library) Close() error { return ErrUnsupported }

// Owner finds nothing.
func Owner(unsafe.Pointer) (string, bool) { return "", false }

// Call fails with [ErrUnsupported].
func Call(unsafe.Pointer, ...uintptr) (uintptr, error) { return 0, ErrUnsupported }

// SetenvDefault sets nothing.
func SetenvDefault(string, string) bool { return false }
