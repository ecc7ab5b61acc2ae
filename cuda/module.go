package cuda

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/lmcache-go/lmcache-go/cuda/internal/capi"
)

// Module is a set of kernels on a device.
type Module struct {
	c *Context
	h uint64
}

// Function is one kernel.
type Function struct {
	c *Context
	h uint64
}

// LoadPTX compiles kernels for the device. It takes milliseconds, once.
func (c *Context) LoadPTX(ptx string) (*Module, error) {
	// The driver reads a C string.
	text := append([]byte(ptx), 0)
	var f capi.Frame
	f.In[0] = addressOf(text)
	err := c.call(capi.ModuleLoadDataEx, &f)
	runtime.KeepAlive(text)
	if err != nil {
		return nil, err
	}
	return &Module{c, f.Out[0]}, nil
}

// Unload gives the module back. No kernel of it may run.
func (m *Module) Unload() error { return m.c.do(capi.ModuleUnload, m.h) }

// Function finds a kernel by its name.
func (m *Module) Function(name string) (*Function, error) {
	f := capi.Frame{In: [8]uint64{m.h}}
	if len(name) >= len(f.Blob) {
		return nil, fmt.Errorf("%w: kernel %q", ErrHandle, name)
	}
	copy(f.Blob[:], name)
	if err := m.c.call(capi.ModuleGetFunction, &f); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	return &Function{m.c, f.Out[0]}, nil
}

// Launch queues a kernel of blocks × threads. The arguments are those of the
// kernel, laid out as C does (8-byte numbers and addresses need no care), at
// most 128 bytes.
func (s *Stream) Launch(fn *Function, blocks, threads int, args ...uint64) error {
	f := capi.Frame{In: [8]uint64{fn.h, uint64(blocks), uint64(threads), 0, s.h, uint64(len(args) * 8)}}
	if len(args)*8 > len(f.Blob) {
		return fmt.Errorf("%w: %d arguments", ErrHandle, len(args))
	}
	for i, a := range args {
		*(*uint64)(unsafe.Pointer(&f.Blob[i*8])) = a
	}
	return s.c.call(capi.LaunchKernel, &f)
}
