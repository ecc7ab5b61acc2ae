//go:build linux && cgo

package capi

import (
	"runtime"
	"syscall"
	"testing"
	"unsafe"
)

var global struct {
	p *byte
	b [8]byte
}

func TestIsGoMemory(t *testing.T) {
	f := func(what string, p unsafe.Pointer, want bool) {
		t.Helper()
		got, ok := IsGoMemory(uintptr(p))
		if !ok {
			t.Fatal("Go memory cannot be told from other memory: GODEBUG=cgocheck=0?")
		}
		if got != want {
			t.Errorf("%s: IsGoMemory = %v, want %v", what, got, want)
		}
	}
	small, large := make([]byte, 16), make([]byte, 8<<20)
	f("small slice", unsafe.Pointer(&small[3]), true)
	f("large slice", unsafe.Pointer(&large[5<<20]), true)
	f("global", unsafe.Pointer(&global.b[3]), true)
	var stack [64]byte
	f("stack", unsafe.Pointer(&stack[0]), true)
	var pin runtime.Pinner
	pin.Pin(&large[0])
	f("pinned", unsafe.Pointer(&large[0]), true)
	pin.Unpin()
	m, err := syscall.Mmap(-1, 0, 1<<20, syscall.PROT_READ, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(m) }()
	f("mapping", unsafe.Pointer(&m[100]), false)
	f("nil", nil, false)
}

func TestSizes(t *testing.T) {
	for name, s := range sizes() {
		if s[0] != s[1] {
			t.Errorf("%s: %d bytes in Go, %d in C", name, s[0], s[1])
		}
	}
}
