//go:build linux && cgo

package capi

// #include "capi.h"
import "C"

import (
	"runtime"
	"sync"
	"unsafe"
)

// IsGoMemory tells whether addr lies in memory that the Go runtime manages:
// heap, stack or globals. ok is false when that cannot be told, because the
// program runs with GODEBUG=cgocheck=0.
//
// Go offers no such question. But it checks, by a documented rule, that memory
// whose address is passed to C holds no unpinned Go pointer, and panics
// otherwise; so a word that holds addr is passed, and the panic is the answer.
// Memory that a [runtime.Pinner] holds goes unnoticed.
func IsGoMemory(addr uintptr) (isGo, ok bool) {
	if !cgocheckOn() {
		return false, false
	}
	return refused(addr), true
}

var cgocheckOn = sync.OnceValue(func() bool {
	own := new([64]byte)
	defer runtime.KeepAlive(own)
	return refused(uintptr(unsafe.Pointer(own)))
})

func refused(addr uintptr) (yes bool) {
	defer func() {
		if recover() != nil {
			yes = true
		}
	}()
	var word struct{ p unsafe.Pointer }
	*(*uintptr)(unsafe.Pointer(&word.p)) = addr
	C.nx_look(unsafe.Pointer(&word))
	return false
}
