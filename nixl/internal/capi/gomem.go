//go:build linux && cgo

package capi

// #include "capi.h"
import "C"

import (
	"sync"
	"unsafe"
)

// IsGoMemory tells whether addr lies in memory that the Go runtime manages:
// heap, stacks, or globals that hold pointers (globals without any are not
// seen; they are never freed or moved either). ok is false when that cannot be
// told, because the program runs with GODEBUG=cgocheck=0.
//
// Go offers no such question. But it checks, by a documented rule, that memory
// whose address is passed to C holds no Go pointer, and panics otherwise; so a
// word that holds addr is passed, and the panic is the answer. The word has the
// type of a func, for which the rule knows no exception: pinned memory and
// stacks are refused with the rest.
func IsGoMemory(addr uintptr) (isGo, ok bool) {
	if !cgocheckOn() {
		return false, false
	}
	return refused(addr), true
}

// probe is Go memory that does not move, unlike a stack. It holds a pointer:
// the check does not see globals without one.
var probe struct{ p *byte }

var cgocheckOn = sync.OnceValue(func() bool { return refused(uintptr(unsafe.Pointer(&probe))) })

func refused(addr uintptr) bool { return look[struct{ f func() }](addr) }

// look passes a word of type W to C. The type is a parameter because go vet
// rightly objects to passing a func, which is the point here.
func look[W any](addr uintptr) (refused bool) {
	defer func() {
		if recover() != nil {
			refused = true
		}
	}()
	var word W
	*(*uintptr)(unsafe.Pointer(&word)) = addr
	C.nx_look(unsafe.Pointer(&word))
	return false
}
