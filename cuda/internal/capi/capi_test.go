//go:build linux && cgo

package capi

import (
	"testing"
	"unsafe"
)

// Both sides number the functions and lay the structs out alike.
func TestGoMatchesC(t *testing.T) {
	for f := range numFuncs {
		if got := symbolOf(f); got != f.String() || got == "" {
			t.Errorf("function %d is %q in C and %q in Go", f, got, f)
		}
	}
	if more := symbolOf(numFuncs); more != "" {
		t.Errorf("C has %s more", more)
	}
	frame, job, rect := sizes()
	if frame != unsafe.Sizeof(Frame{}) || job != unsafe.Sizeof(Job{}) || rect != unsafe.Sizeof(Rect{}) {
		t.Errorf("C has %d, %d, %d bytes, Go %d, %d, %d", frame, job, rect, unsafe.Sizeof(Frame{}), unsafe.Sizeof(Job{}), unsafe.Sizeof(Rect{}))
	}
}

// A driver without what we need is told by the names that are missing.
func TestMissingFunctions(t *testing.T) {
	d, missing := New(func(string) unsafe.Pointer { return nil })
	if d != nil || len(missing) < 30 {
		t.Errorf("got %v, missing %v", d, missing)
	}
	for _, name := range missing {
		if name == "cuMemcpyBatchAsync" || name == "cuModuleLoadDataEx" {
			t.Errorf("%s is required", name)
		}
	}
	if Func(-1).String() != "unknown function" || numFuncs.String() != "unknown function" {
		t.Error("functions outside the table have names")
	}
}
