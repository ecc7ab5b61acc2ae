//go:build linux && cgo

package dl

// #cgo CFLAGS: -O2 -Wall -Wextra -Werror
// #cgo LDFLAGS: -ldl
// #cgo noescape lmc_dl_call
// #include <stdlib.h>
// #include "dl.h"
import "C"

import (
	"errors"
	"unsafe"
)

// MaxArgs is how many arguments [Call] can pass.
const MaxArgs = 8

// Library is one open library.
type Library struct {
	handle unsafe.Pointer
	name   string
}

// Open loads name, which is a path with a slash in it or a file name that the
// loader looks for (LD_LIBRARY_PATH, the loader's cache, the system folders).
// The error is an [*Error].
func Open(name string, flags Flags) (*Library, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var text *C.char
	mode := C.int(0)
	if flags&Lazy != 0 {
		mode |= C.LMC_DL_LAZY
	}
	if flags&NoLoad != 0 {
		mode |= C.LMC_DL_NOLOAD
	}
	handle := C.lmc_dl_open(cname, mode, &text)
	if handle == nil {
		return nil, &Error{Op: "open", Name: name, Text: take(text)}
	}
	return &Library{handle: handle, name: name}, nil
}

// Symbol returns the address of a function or variable that the library, or
// one that it depends on, exports. The error is an [*Error].
func (l *Library) Symbol(name string) (unsafe.Pointer, error) {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var text *C.char
	address := C.lmc_dl_sym(l.handle, cname, &text)
	if address == nil {
		return nil, &Error{Op: "symbol", Name: name, Text: take(text)}
	}
	return address, nil
}

// Path returns the file that the loader mapped for the library, or the name
// it was opened by when the loader does not say.
func (l *Library) Path() string {
	path := C.lmc_dl_path(l.handle)
	if path == nil {
		return l.name
	}
	return take(path)
}

// Close gives the library back; it is unmapped with its last reference. Never
// close a library that has started threads or registered callbacks.
func (l *Library) Close() error {
	if l.handle == nil {
		return &Error{Op: "close", Name: l.name, Text: "closed before"}
	}
	var text *C.char
	handle := l.handle
	l.handle = nil
	if C.lmc_dl_close(handle, &text) != 0 {
		return &Error{Op: "close", Name: l.name, Text: take(text)}
	}
	return nil
}

// Owner returns the path of the library that the function or variable at
// address belongs to, and false when no library holds it.
func Owner(address unsafe.Pointer) (string, bool) {
	path := C.lmc_dl_owner(address)
	if path == nil {
		return "", false
	}
	return take(path), true
}

// Call calls a C function of at most [MaxArgs] integer or pointer arguments
// and returns what it returned, to be cut to the width of its result. A
// pointer argument must point to memory outside the Go heap: nothing keeps a
// Go object alive or in place that is passed as a number.
func Call(function unsafe.Pointer, args ...uintptr) (uintptr, error) {
	if len(args) > MaxArgs {
		return 0, errors.New("dl: a call takes at most eight arguments")
	}
	var all [MaxArgs]C.uintptr_t
	for i, a := range args {
		all[i] = C.uintptr_t(a)
	}
	return uintptr(C.lmc_dl_call(function, &all[0])), nil
}

// SetenvDefault sets a variable in the C environment only, and only when it
// is not set there; it reports whether it did. Go's own environment and that
// of processes started later do not change. Use it for settings that a
// library reads while it loads.
func SetenvDefault(name, value string) bool {
	cname, cvalue := C.CString(name), C.CString(value)
	defer C.free(unsafe.Pointer(cname))
	defer C.free(unsafe.Pointer(cvalue))
	return C.lmc_setenv_default(cname, cvalue) == 1
}

// take copies a text of the loader and frees it.
func take(text *C.char) string {
	if text == nil {
		return "out of memory"
	}
	defer C.free(unsafe.Pointer(text))
	return C.GoString(text)
}
