package copyplan

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// canStream: the processor has the 32-byte stores that bypass its caches.
var canStream = cpu.X86.HasAVX

//go:noescape
func streamLines(dst, src unsafe.Pointer, n uintptr)

func storeFence()

// streamCopy is copy for slices of one length, past the caches where that can
// be done. Such stores become visible to others only behind a storeFence.
func streamCopy(dst, src []byte) {
	if len(dst) < streamMin || len(src) < len(dst) {
		copy(dst, src)
		return
	}
	head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst))) % 32)
	n := (len(dst) - head) &^ 127
	copy(dst[:head], src)
	streamLines(unsafe.Pointer(&dst[head]), unsafe.Pointer(&src[head]), uintptr(n))
	copy(dst[head+n:], src[head+n:])
}
