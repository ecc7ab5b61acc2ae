//go:build linux && cgo

package capi

// #cgo CFLAGS: -O2 -Wall -Wextra -Werror
// #cgo noescape lmc_cuda_call
// #cgo noescape lmc_cuda_submit
// #cgo nocallback lmc_cuda_call
// #cgo nocallback lmc_cuda_submit
// #include <stdlib.h>
// #include "calls.h"
import "C"

import "unsafe"

// Supported says whether this build can call a driver at all.
const Supported = true

// Driver is a filled table. It is never freed: calls may be under way for as
// long as the process lives.
type Driver struct {
	table *C.lmc_cuda
	has   [numFuncs]bool
}

// New fills a table from a way to look symbols up, which returns nil for one
// that is not there. The names of required functions that are missing come
// back, and no driver then.
func New(symbol func(name string) unsafe.Pointer) (d *Driver, missing []string) {
	d = &Driver{table: (*C.lmc_cuda)(C.calloc(1, C.sizeof_lmc_cuda))}
	for i := 0; ; i++ {
		var required C.int
		name := C.lmc_cuda_symbol(C.int(i), &required)
		if name == nil {
			break
		}
		f := symbol(C.GoString(name))
		if f == nil && required != 0 {
			missing = append(missing, C.GoString(name))
		}
		C.lmc_cuda_set(d.table, C.int(i), f)
		d.has[i] = f != nil
	}
	if missing != nil {
		C.free(unsafe.Pointer(d.table))
		return nil, missing
	}
	return d, nil
}

// Has says whether the driver has a function.
func (d *Driver) Has(f Func) bool { return d.has[f] }

// Call calls one function. Results are in the frame.
func (d *Driver) Call(f Func, frame *Frame) int32 {
	return int32(C.lmc_cuda_call(d.table, C.int(f), (*C.lmc_frame)(unsafe.Pointer(frame))))
}

// Submit queues one request; dst, src and size are of one length.
func (d *Driver) Submit(j *Job, dst, src, size []uint64, rects []Rect) int32 {
	return int32(C.lmc_cuda_submit(d.table, (*C.lmc_job)(unsafe.Pointer(j)),
		words(dst), words(src), words(size), C.size_t(len(dst)),
		(*C.lmc_rect)(unsafe.Pointer(unsafe.SliceData(rects))), C.size_t(len(rects))))
}

func words(s []uint64) *C.uint64_t { return (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(s))) }

// ErrorName is the driver's own name of a result, or "".
func (d *Driver) ErrorName(r int32) string {
	if !d.has[GetErrorName] {
		return ""
	}
	text := C.lmc_cuda_error_name(d.table, C.int(r))
	if text == nil {
		return ""
	}
	return C.GoString(text)
}

// symbolOf is the name that C has for a function, for a test.
func symbolOf(f Func) string {
	var required C.int
	name := C.lmc_cuda_symbol(C.int(f), &required)
	if name == nil {
		return ""
	}
	return C.GoString(name)
}

// sizes of the structs as C has them, for a test.
func sizes() (frame, job, rect uintptr) {
	return C.sizeof_lmc_frame, C.sizeof_lmc_job, C.sizeof_lmc_rect
}
