package wire

import (
	"encoding/binary"
	"fmt"
)

// HandleKind tells how a [MemoryHandle] is opened.
type HandleKind byte

const (
	// HandleIPC is an allocation of cudaMalloc, with a CUDA IPC memory handle.
	HandleIPC HandleKind = 'c'
	// HandleExpandable is a run of segments of the virtual memory API (torch's
	// expandable_segments), with a file descriptor or fabric handle for each.
	HandleExpandable HandleKind = 'e'
)

// MemoryHandle is what torch puts into [CUDAStorage.Handle] (torch 2.11 and
// 2.15, c10/cuda/CUDACachingAllocator.cpp).
type MemoryHandle struct {
	Kind HandleKind
	// IPC is the cudaIpcMemHandle of the base of the allocation (HandleIPC).
	IPC [64]byte
	// PID is the exporting process, in its own pid namespace; SegmentBytes is
	// the size of each segment (HandleExpandable).
	PID          int32
	SegmentBytes int64
	// FDs are file descriptors of the exporting process, one for each segment;
	// Fabric are fabric handles instead (HandleExpandable; one of both).
	FDs    []int32
	Fabric [][64]byte
}

// Layout of the bytes behind version and kind.
const (
	ipcHandleBytes = 64
	// expandable: pid int32, pad 4, segment size uint64, count uint64; from
	// version 3 on also the handle type int32, pad 4.
	expandableHead  = 24
	expandableHead3 = 32

	expandableFD     = 1
	expandableFabric = 2

	maxHandleVersion = 3
)

// ParseMemoryHandle reads a handle of [CUDAStorage]. It checks the form and
// opens nothing. Very old torch sends a bare IPC handle, which is taken too.
func ParseMemoryHandle(b []byte) (MemoryHandle, error) {
	if len(b) == ipcHandleBytes {
		return MemoryHandle{Kind: HandleIPC, IPC: [64]byte(b)}, nil
	}
	if len(b) < 2 {
		return MemoryHandle{}, fmt.Errorf("memory handle: %w: %d bytes", ErrValue, len(b))
	}
	version, kind, body := b[0], HandleKind(b[1]), b[2:]
	if version < 1 || version > maxHandleVersion {
		return MemoryHandle{}, fmt.Errorf("memory handle: %w: version %d, want 1..%d: the engine's torch is newer than this server knows",
			ErrValue, version, maxHandleVersion)
	}
	switch kind {
	case HandleIPC:
		if len(body) != ipcHandleBytes {
			return MemoryHandle{}, fmt.Errorf("memory handle: %w: %d bytes behind its head, want %d", ErrValue, len(body), ipcHandleBytes)
		}
		return MemoryHandle{Kind: kind, IPC: [64]byte(body)}, nil
	case HandleExpandable:
		return parseExpandable(version, body)
	default:
		return MemoryHandle{}, fmt.Errorf("memory handle: %w: kind %q", ErrValue, byte(kind))
	}
}

func parseExpandable(version byte, b []byte) (MemoryHandle, error) {
	bad := func(what string) (MemoryHandle, error) {
		return MemoryHandle{}, fmt.Errorf("memory handle of expandable segments: %w: %s", ErrValue, what)
	}
	head, handleType := expandableHead, int32(expandableFD)
	if version >= 3 {
		head = expandableHead3
	}
	if len(b) < head {
		return bad("too short")
	}
	if version >= 3 {
		handleType = int32(binary.LittleEndian.Uint32(b[24:]))
	}
	h := MemoryHandle{
		Kind: HandleExpandable, PID: int32(binary.LittleEndian.Uint32(b)),
		SegmentBytes: int64(binary.LittleEndian.Uint64(b[8:])),
	}
	count, body := binary.LittleEndian.Uint64(b[16:]), b[head:]
	if h.SegmentBytes <= 0 {
		return bad("segment size")
	}
	size := 4
	switch handleType {
	case expandableFD:
	case expandableFabric:
		size = ipcHandleBytes
	default:
		return bad(fmt.Sprintf("handle type %d", handleType))
	}
	if count == 0 || count != uint64(len(body)/size) || len(body)%size != 0 {
		return bad(fmt.Sprintf("%d segments in %d bytes", count, len(body)))
	}
	for ; len(body) > 0; body = body[size:] {
		if handleType == expandableFD {
			h.FDs = append(h.FDs, int32(binary.LittleEndian.Uint32(body)))
		} else {
			h.Fabric = append(h.Fabric, [64]byte(body[:64]))
		}
	}
	return h, nil
}
