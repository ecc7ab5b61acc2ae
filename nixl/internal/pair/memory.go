package pair

import (
	"encoding/binary"
	"fmt"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// Memory is one side's memory, of the host or of a GPU.
type Memory struct {
	Side
	host *nixl.HostBuffer
	gpu  *gpuMemory
}

// NewMemory takes memory.
func NewMemory(s Side) (*Memory, error) {
	m := &Memory{Side: s}
	var err error
	switch s.Mem {
	case nixl.DRAM:
		m.host, err = nixl.MapBuffer(s.Size, nixl.MapOptions{Pages: nixl.PagesTransparent, Populate: true})
	case nixl.VRAM:
		m.gpu, err = newGPUMemory(s.Dev, s.Size)
	default:
		err = fmt.Errorf("memory of type %s cannot be benchmarked", s.Mem)
	}
	return m, err
}

// Region is the memory, to be registered.
func (m *Memory) Region() nixl.Region {
	if m.gpu != nil {
		return nixl.CUDAMemory(m.gpu.ptr, m.Size, m.Dev)
	}
	return m.host.Region()
}

// Addr is where the memory starts.
func (m *Memory) Addr() uintptr { return m.Region().Addr }

func (m *Memory) each(write bool, f func(offset int, piece []byte) error) error {
	if m.gpu != nil {
		return m.gpu.each(write, f)
	}
	return f(0, m.host.Bytes())
}

// word is the pattern at a multiple of eight bytes.
func word(offset int, seed uint64) uint64 {
	return (uint64(offset)/8 + 1) * (seed*0x9e3779b97f4a7c15 | 1)
}

// Fill writes the pattern of a seed.
func (m *Memory) Fill(seed uint64) error {
	return m.each(true, func(offset int, p []byte) error {
		for i := 0; i+8 <= len(p); i += 8 {
			binary.LittleEndian.PutUint64(p[i:], word(offset+i, seed))
		}
		return nil
	})
}

// Check looks whether the descriptors of a case hold the pattern of a seed, and
// everything else that of old. Lengths and strides are multiples of eight.
func (m *Memory) Check(seed, old uint64, length, count, stride int) error {
	return m.each(false, func(offset int, p []byte) error {
		for i := 0; i+8 <= len(p); i += 8 {
			at := offset + i
			want := old
			if k := at / stride; k < count && at-k*stride < length {
				want = seed
			}
			if got := binary.LittleEndian.Uint64(p[i:]); got != word(at, want) {
				return fmt.Errorf("byte %d holds %016x, want %016x, the pattern of %d", at, got, word(at, want), want)
			}
		}
		return nil
	})
}
