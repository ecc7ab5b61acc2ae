//go:build !linux || !cgo

package capi

import "unsafe"

// Supported says whether this build can call a driver at all.
const Supported = false

// Driver of a build that has none.
type Driver struct{}

// New makes no driver; nothing is missing from it.
func New(func(name string) unsafe.Pointer) (*Driver, []string) { return nil, nil }

// Has nothing.
func (*Driver) Has(Func) bool { return false }

// Call fails with CUDA_ERROR_NOT_SUPPORTED.
func (*Driver) Call(Func, *Frame) int32 { return 801 }

// Submit fails with CUDA_ERROR_NOT_SUPPORTED.
func (*Driver) Submit(*Job, []uint64, []uint64, []uint64, []Rect) int32 { return 801 }

// ErrorName knows none.
func (*Driver) ErrorName(int32) string { return "" }
