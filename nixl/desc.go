package nixl

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// MemType is a kind of memory, numbered as in NIXL 1.5.1 (nixl_mem_t).
type MemType int

// Memory types.
const (
	DRAM   MemType = 0 // host memory
	VRAM   MemType = 1 // GPU memory
	Block  MemType = 2 // block devices
	Object MemType = 3 // object stores
	File   MemType = 4 // files
)

// String is NIXL's name of the type.
func (m MemType) String() string {
	switch m {
	case DRAM:
		return "DRAM"
	case VRAM:
		return "VRAM"
	case Block:
		return "BLOCK"
	case Object:
		return "OBJECT"
	case File:
		return "FILE"
	default:
		return fmt.Sprintf("MemType(%d)", int(m))
	}
}

// Desc is one span: of memory, of a file, or of an object. Slices of Desc go
// to C as they are; building one is all that a list costs in Go.
type Desc struct {
	Addr uintptr // address, or offset in a file or object
	Len  uintptr // bytes
	Dev  uint64  // CUDA ordinal, file descriptor, or the id of an object; 0 for host memory
}

// Blocks is a row of equal spans: Count times Len bytes, Stride bytes apart.
// A list of a layer's KV blocks is one Blocks.
type Blocks struct {
	Addr   uintptr
	Len    uintptr
	Dev    uint64
	Stride uintptr // from start to start; equal to Len when the blocks touch
	Count  uint64
}

// Descs are spans of one kind of memory.
type Descs struct {
	Mem  MemType
	List []Desc
}

// Region is memory to be registered: make one with [HostBuffer.Region],
// [HostMemory], [CUDAMemory], [FileRegion], [FilePath] or [ObjectRegion], or
// fill it in for a plugin with other needs.
type Region struct {
	Mem MemType
	Desc
	// Meta is what the plugin wants to know: a path, an object key.
	Meta []byte

	buffer *HostBuffer
	file   *os.File
}

// HostMemory is host memory that is not the Go runtime's: from C, from a
// mapping of the caller, from cudaHostAlloc. Register refuses memory of the Go
// heap, stacks and globals with [ErrGoMemory]. The memory must stay until
// [Registration.Done] is closed.
func HostMemory(b []byte) Region {
	return Region{Mem: DRAM, Desc: Desc{Addr: uintptr(unsafe.Pointer(unsafe.SliceData(b))), Len: uintptr(len(b))}}
}

// CUDAMemory is memory of a GPU: a pointer as the driver or runtime API gives
// it, and the ordinal of the device. It must stay until [Registration.Done] is
// closed.
func CUDAMemory(pointer uintptr, size int, device int) Region {
	return Region{Mem: VRAM, Desc: Desc{Addr: pointer, Len: uintptr(size), Dev: uint64(device)}}
}

// FileRegion is length bytes of an open file from offset on. The registration
// has its own descriptor of the file (dup): the caller may close f. Use
// [Registration.Desc] to name parts of it, since the number of that descriptor
// is in them.
func FileRegion(f *os.File, offset, length int64) Region {
	return Region{Mem: File, Desc: Desc{Addr: uintptr(offset), Len: uintptr(length)}, file: f}
}

// FilePath is a file that the plugin opens itself. id is any number that no
// other file of the agent has; flags are the plugin's, such as "rw,create" or
// "ro,direct".
func FilePath(id uint64, flags, path string, length int64) Region {
	return Region{Mem: File, Desc: Desc{Len: uintptr(length), Dev: id}, Meta: []byte(flags + ":" + path)}
}

// ObjectRegion is an object of a store by its key. id is any number that no
// other object of the agent has; it links descriptors to the key.
func ObjectRegion(id uint64, key string, length int64) Region {
	return Region{Mem: Object, Desc: Desc{Len: uintptr(length), Dev: id}, Meta: []byte(key)}
}

// quarantined counts bytes of host buffers that are never given back.
var quarantined atomic.Int64

// Quarantined is how many bytes of [HostBuffer] memory this process keeps for
// good, because a transfer that never ended may still write to them.
func Quarantined() int64 { return quarantined.Load() }

// toC sees a list as C does, without a copy.
func toC(d []Desc) []capi.Desc {
	return unsafe.Slice((*capi.Desc)(unsafe.Pointer(unsafe.SliceData(d))), len(d))
}

func blocksToC(b []Blocks) []capi.Stride {
	return unsafe.Slice((*capi.Stride)(unsafe.Pointer(unsafe.SliceData(b))), len(b))
}

// The casts above rest on these.
var (
	_ [unsafe.Sizeof(capi.Desc{})]byte   = [unsafe.Sizeof(Desc{})]byte{}
	_ [unsafe.Sizeof(capi.Stride{})]byte = [unsafe.Sizeof(Blocks{})]byte{}
)
