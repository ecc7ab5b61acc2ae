package pair

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/lmcache-go/lmcache-go/internal/dl"
	"github.com/lmcache-go/lmcache-go/nixl"
)

// driver is the little of the CUDA driver API that memory on a GPU needs here.
// The API of package cuda is not used, so that nixl depends on nothing.
type driver struct {
	lib     *dl.Library
	scratch *nixl.HostBuffer // out parameters: C writes nothing into Go memory
	symbols map[string]unsafe.Pointer

	mu sync.Mutex // guards symbols
}

var loadDriver = sync.OnceValues(func() (*driver, error) {
	lib, err := dl.Open("libcuda.so.1", 0)
	if err != nil {
		return nil, fmt.Errorf("no CUDA driver: %w", err)
	}
	scratch, err := nixl.MapBuffer(64, nixl.MapOptions{})
	if err != nil {
		return nil, err
	}
	d := &driver{lib: lib, scratch: scratch, symbols: map[string]unsafe.Pointer{}}
	if err := d.call("cuInit", 0); err != nil {
		return nil, err
	}
	return d, nil
})

func (d *driver) call(name string, args ...uintptr) error {
	d.mu.Lock()
	f := d.symbols[name]
	if f == nil {
		var err error
		if f, err = d.lib.Symbol(name); err != nil {
			d.mu.Unlock()
			return err
		}
		d.symbols[name] = f
	}
	d.mu.Unlock()
	r, err := dl.Call(f, args...)
	if err != nil {
		return err
	}
	if code := int32(r); code != 0 {
		return fmt.Errorf("%s: CUDA error %d", name, code)
	}
	return nil
}

// out calls a function whose first argument is an out parameter.
func (d *driver) out(name string, args ...uintptr) (uintptr, error) {
	word := (*uintptr)(unsafe.Pointer(&d.scratch.Bytes()[0]))
	*word = 0
	err := d.call(name, append([]uintptr{d.scratch.Addr()}, args...)...)
	return *word, err
}

// use makes the primary context of a device current on this thread, which the
// caller keeps.
func (d *driver) use(device int) error {
	dev, err := d.out("cuDeviceGet", uintptr(device))
	if err != nil {
		return err
	}
	context, err := d.out("cuDevicePrimaryCtxRetain", dev&0xffffffff)
	if err != nil {
		return err
	}
	return d.call("cuCtxSetCurrent", context)
}

// gpuMemory is memory of one device.
type gpuMemory struct {
	d      *driver
	device int
	ptr    uintptr
	size   int
	stage  *nixl.HostBuffer
}

func newGPUMemory(device, size int) (*gpuMemory, error) {
	d, err := loadDriver()
	if err != nil {
		return nil, err
	}
	if err := d.use(device); err != nil {
		return nil, err
	}
	ptr, err := d.out("cuMemAlloc_v2", uintptr(size))
	if err != nil {
		return nil, err
	}
	stage, err := nixl.MapBuffer(min(size, 16<<20), nixl.MapOptions{Populate: true})
	if err != nil {
		return nil, err
	}
	return &gpuMemory{d, device, ptr, size, stage}, nil
}

// each hands the memory to f in pieces, staged in host memory, and writes them
// back when write is set.
func (m *gpuMemory) each(write bool, f func(offset int, piece []byte) error) error {
	if err := m.d.use(m.device); err != nil {
		return err
	}
	for off := 0; off < m.size; off += m.stage.Size() {
		n := min(m.stage.Size(), m.size-off)
		if !write {
			if err := m.d.call("cuMemcpyDtoH_v2", m.stage.Addr(), m.ptr+uintptr(off), uintptr(n)); err != nil {
				return err
			}
		}
		if err := f(off, m.stage.Bytes()[:n]); err != nil {
			return err
		}
		if write {
			if err := m.d.call("cuMemcpyHtoD_v2", m.ptr+uintptr(off), m.stage.Addr(), uintptr(n)); err != nil {
				return err
			}
		}
	}
	return m.d.call("cuCtxSynchronize")
}

// peer is a second memory to copy to and from, on the other device, for the
// raw copy that transfers are compared with.
func (m *gpuMemory) copyTo(other *gpuMemory, off, n int) error {
	if m.device == other.device {
		return m.d.call("cuMemcpyDtoDAsync_v2", other.ptr+uintptr(off), m.ptr+uintptr(off), uintptr(n), 0)
	}
	from, err := m.contextOf(m.device)
	if err != nil {
		return err
	}
	to, err := m.contextOf(other.device)
	if err != nil {
		return err
	}
	return m.d.call("cuMemcpyPeerAsync", other.ptr+uintptr(off), to, m.ptr+uintptr(off), from, uintptr(n), 0)
}

func (m *gpuMemory) contextOf(device int) (uintptr, error) {
	dev, err := m.d.out("cuDeviceGet", uintptr(device))
	if err != nil {
		return 0, err
	}
	return m.d.out("cuDevicePrimaryCtxRetain", dev&0xffffffff)
}

// GPUs is the number of devices that the driver shows; the error says why
// there are none.
func GPUs() (int, error) {
	d, err := loadDriver()
	if err != nil {
		return 0, err
	}
	n, err := d.out("cuDeviceGetCount")
	return int(int32(n)), err
}
