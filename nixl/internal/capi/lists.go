//go:build linux && cgo

package capi

// #cgo noescape nx_cover
// #cgo nocallback nx_cover
// #cgo noescape nx_pairs_equal
// #cgo nocallback nx_pairs_equal
// #cgo noescape nx_index_bounds
// #cgo nocallback nx_index_bounds
// #include "capi.h"
import "C"

import (
	"unsafe"
)

// Cover returns how many descriptors, from the first, lie in one of the ranges
// each; it marks the ranges met and adds up the bytes.
func Cover(descs []Desc, ranges []Range, used []uint8) (n int, bytes uint64) {
	if len(descs) == 0 || len(ranges) == 0 {
		return 0, 0
	}
	var sum C.uint64_t
	covered := C.nx_cover(descPtr(descs), C.size_t(len(descs)), rangePtr(ranges), C.size_t(len(ranges)),
		(*C.uint8_t)(unsafe.Pointer(&used[0])), &sum)
	return int(covered), uint64(sum)
}

// Expand writes the blocks of strides to out, which must hold them all.
func Expand(strides []Stride, out []Desc) int {
	return int(C.nx_expand((*C.struct_nx_stride)(unsafe.Pointer(unsafe.SliceData(strides))), C.size_t(len(strides)), descPtr(out), C.size_t(len(out))))
}

// FirstUnequal returns the index of the first pair of unequal lengths, or the
// number of pairs.
func FirstUnequal(a, b []Desc) int {
	return int(C.nx_pairs_equal(descPtr(a), descPtr(b), C.size_t(min(len(a), len(b)))))
}

// FirstOutside returns the index of the first entry outside [0, limit), or
// len(idx).
func FirstOutside(idx []int32, limit int) int {
	return int(C.nx_index_bounds((*C.int32_t)(unsafe.Pointer(unsafe.SliceData(idx))), C.size_t(len(idx)), C.int32_t(limit)))
}

// Merge joins neighbours as CreateXfer does; it is here for tests and tools.
func Merge(a, b Side, sort bool) (outA, outB []Desc) {
	n := len(a.Descs)
	if n == 0 {
		return nil, nil
	}
	outA, outB = make([]Desc, n), make([]Desc, n)
	flag := C.int(0)
	if sort {
		flag = 1
	}
	left := C.nx_merge(descPtr(a.Descs), descPtr(b.Descs), C.size_t(n), rangePtr(a.Ranges), C.size_t(len(a.Ranges)),
		rangePtr(b.Ranges), C.size_t(len(b.Ranges)), flag, descPtr(outA), descPtr(outB))
	return outA[:left], outB[:left]
}

// SortIndex orders index pairs by the first, as MakeXfer does; it is here for
// tests.
func SortIndex(a, b []int32) (outA, outB []int32) {
	outA, outB = make([]int32, len(a)), make([]int32, len(a))
	p := func(s []int32) *C.int32_t { return (*C.int32_t)(unsafe.Pointer(unsafe.SliceData(s))) }
	if C.nx_sort_index(p(a), p(b), C.size_t(len(a)), p(outA), p(outB)) == 0 {
		return a, b
	}
	return outA, outB
}

// Prep prepares a list: remote "" is the local side.
func (l *Lib) Prep(agent uintptr, remote string, backend uintptr, mem int, descs []Desc) (uintptr, *CallError) {
	var e C.struct_nx_err
	handle := C.nx_prep(l.c, C.uintptr_t(agent), cstr(remote), C.uintptr_t(backend), C.int(mem), descPtr(descs), C.size_t(len(descs)), &e)
	if handle == 0 {
		return 0, l.err(&e)
	}
	return uintptr(handle), nil
}

// ReleasePrep frees a prepared list.
func (l *Lib) ReleasePrep(agent, handle uintptr) {
	C.nx_prep_release(l.c, C.uintptr_t(agent), C.uintptr_t(handle))
}

// LocalView prepares a view of local memory for transfers that a GPU starts.
func (l *Lib) LocalView(agent, backend uintptr, mem int, descs []Desc) (uintptr, *CallError) {
	var e C.struct_nx_err
	view := C.nx_view_local(l.c, C.uintptr_t(agent), C.uintptr_t(backend), C.int(mem), descPtr(descs), C.size_t(len(descs)), &e)
	if view == 0 {
		return 0, l.err(&e)
	}
	return uintptr(view), nil
}

// RemoteView prepares a view of peers' memory; names holds the peer of each
// descriptor.
func (l *Lib) RemoteView(agent, backend uintptr, mem int, descs []Desc, names []string) (uintptr, *CallError) {
	var e C.struct_nx_err
	var flat []byte
	offsets := make([]C.uint32_t, len(descs)+1)
	for i, name := range names {
		offsets[i] = C.uint32_t(len(flat))
		flat = append(append(flat, name...), 0)
	}
	flat = append(flat, 0)
	view := C.nx_view_remote(l.c, C.uintptr_t(agent), C.uintptr_t(backend), C.int(mem), descPtr(descs), C.size_t(len(descs)),
		(*C.char)(unsafe.Pointer(&flat[0])), &offsets[0], &e)
	if view == 0 {
		return 0, l.err(&e)
	}
	return uintptr(view), nil
}

// ReleaseView frees a view.
func (l *Lib) ReleaseView(agent, view uintptr) *CallError {
	var e C.struct_nx_err
	return l.done(C.nx_view_release(l.c, C.uintptr_t(agent), C.uintptr_t(view), &e), &e)
}
