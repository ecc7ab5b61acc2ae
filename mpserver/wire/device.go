package wire

import (
	"fmt"
	"math/bits"

	"github.com/lmcache-go/lmcache-go/internal/torchdtype"
)

// deviceExt is the msgpack extension code of a device wrapper (lmcache 0.5.6,
// v1/multiprocess/custom_types.py).
const deviceExt = 1

// wireVersion is the only version of a device wrapper.
const wireVersion = 1

// DeviceWrapper tells how to open one tensor of an engine's KV cache in another
// process (WireIPCData of lmcache 0.5.6, v1/platform/base/ipc_wire.py). It owns
// all of its memory: nothing in it is a view into the frame. Decoding checks
// that the view lies within the memory it names, and opens nothing.
type DeviceWrapper struct {
	// Source is the memory: a [*CUDAStorage], [*CUDARaw], [*CUDAVMM] or [*CPUShm].
	Source DeviceSource
	// Metadata is the tensor in that memory.
	Metadata TensorMetadata
}

// DeviceSource is one of the kinds of memory of a [DeviceWrapper].
type DeviceSource interface {
	// Tag is the name of the kind on the wire.
	Tag() string
	// check tells whether a view of span bytes lies within the memory.
	check(span int64) error
	append(dst []byte) []byte
}

// Tags of the kinds.
const (
	TagCUDA    = "cuda"
	TagCUDARaw = "cuda_raw"
	TagCUDAVMM = "cuda_vmm"
	TagCPUShm  = "cpu_shm"
	tagMUSA    = "musa"
	tagNPU     = "npu"
)

// TensorMetadata describes a tensor as a view of its storage.
type TensorMetadata struct {
	DType torchdtype.DType
	// Shape and Stride have the same length; strides are in elements.
	Shape, Stride []int64
	// StorageOffset is in elements from the start of the storage.
	StorageOffset int64
	// DeviceUUID is a GPU's UUID without the GPU- prefix, or "cpu".
	DeviceUUID string
}

// ByteSpan returns the end of the view in bytes from the start of the storage,
// 0 for an empty tensor. ok is false when it does not fit 63 bits.
func (m *TensorMetadata) ByteSpan() (span int64, ok bool) {
	last := uint64(m.StorageOffset) // index of the last element
	fits := true
	for i, n := range m.Shape {
		if n == 0 {
			return 0, true
		}
		hi, lo := bits.Mul64(uint64(n-1), uint64(m.Stride[i]))
		sum, carry := bits.Add64(last, lo, 0)
		last, fits = sum, fits && hi == 0 && carry == 0
	}
	hi, lo := bits.Mul64(last, uint64(m.DType.Size))
	total, carry := bits.Add64(lo, uint64(m.DType.Size), 0)
	if !fits || hi != 0 || carry != 0 || int64(total) < 0 {
		return 0, false
	}
	return int64(total), true
}

// CUDAStorage is memory shared as torch shares a CUDA storage: the default.
type CUDAStorage struct {
	// Ordinal is the producer's number of the device; it means nothing here.
	Ordinal int64
	// Handle is read by [ParseMemoryHandle]. nil for an empty storage.
	Handle []byte
	// SizeBytes is the size of the storage, OffsetBytes where it begins in the
	// allocation that Handle opens.
	SizeBytes, OffsetBytes int64
	// RefCounterHandle names a file below /dev/shm that counts who has the
	// storage open, RefCounterOffset the counter in it. nil when there is none.
	RefCounterHandle []byte
	RefCounterOffset int64
	// EventHandle is an event that the producer recorded when it shared the
	// storage, EventSync whether it must be waited for. nil when there is none.
	EventHandle []byte
	EventSync   bool
}

// CUDARaw is memory named by the driver's own handle (lmcache.mp.isolated_ipc).
type CUDARaw struct {
	Handle [64]byte
	// OffsetBytes is where the tensor begins in the allocation.
	OffsetBytes, SizeBytes int64
}

// CUDAVMM is memory of the virtual memory API (lmcache.mp.use_vmm_api).
type CUDAVMM struct {
	ExportID [16]byte
	// FabricBlob is the fabric handle; nil means that a file descriptor was
	// meant to come by another way, which 0.5.6 does not have.
	FabricBlob []byte
	// AllocSizeBytes is the size of the allocation, OffsetBytes where the
	// memory of SizeBytes begins in it.
	AllocSizeBytes, OffsetBytes, SizeBytes int64
}

// CPUShm is a POSIX shared memory segment.
type CPUShm struct {
	// Name has a leading '/'; it is empty for an empty tensor.
	Name string
	// SizeBytes is the size of the segment, in which other tensors may lie too.
	SizeBytes int64
}

// Tag returns [TagCUDA].
func (*CUDAStorage) Tag() string { return TagCUDA }

// Tag returns [TagCUDARaw].
func (*CUDARaw) Tag() string { return TagCUDARaw }

// Tag returns [TagCUDAVMM].
func (*CUDAVMM) Tag() string { return TagCUDAVMM }

// Tag returns [TagCPUShm].
func (*CPUShm) Tag() string { return TagCPUShm }

func (c *CUDAStorage) check(span int64) error { return within(span, c.SizeBytes) }
func (c *CUDARaw) check(span int64) error     { return within(span, c.SizeBytes) }
func (c *CPUShm) check(span int64) error      { return within(span, c.SizeBytes) }

func (c *CUDAVMM) check(span int64) error {
	if c.OffsetBytes > c.AllocSizeBytes || c.SizeBytes > c.AllocSizeBytes-c.OffsetBytes {
		return fmt.Errorf("%w: %d bytes at %d of an allocation of %d", ErrValue, c.SizeBytes, c.OffsetBytes, c.AllocSizeBytes)
	}
	return within(span, c.SizeBytes)
}

func within(span, size int64) error {
	if span > size {
		return fmt.Errorf("%w: the view ends at byte %d of memory of %d bytes", ErrValue, span, size)
	}
	return nil
}
