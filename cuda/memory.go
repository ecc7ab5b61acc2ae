package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/lmcache-go/lmcache-go/cuda/internal/capi"
)

// asResult is the driver's result in an error, 0 without one.
func asResult(err error) Result {
	var r Result
	if errors.As(err, &r) {
		return r
	}
	return 0
}

// Buffer is memory of a device that this process allocated.
type Buffer struct {
	c *Context
	// Address on the device.
	Address uint64
	// SizeBytes as allocated.
	SizeBytes int64
}

// Alloc allocates memory of the device. Its content is undefined.
func (c *Context) Alloc(sizeBytes int64) (*Buffer, error) {
	p, err := c.make(capi.MemAlloc, uint64(sizeBytes))
	if err != nil {
		return nil, err
	}
	return &Buffer{c: c, Address: p, SizeBytes: sizeBytes}, nil
}

// Free gives the memory back. Like every free of the driver it may wait for
// copies that are under way in the context.
func (b *Buffer) Free() error { return b.c.do(capi.MemFree, b.Address) }

// Handle makes the memory known to other processes. It stays valid until Free.
// The buffer must be an allocation of its own, as Alloc makes it.
func (b *Buffer) Handle() (MemHandle, error) {
	f := capi.Frame{In: [8]uint64{b.Address}}
	if err := b.c.call(capi.IpcGetMemHandle, &f); err != nil {
		return MemHandle{}, err
	}
	return MemHandle(f.Blob[:64]), nil
}

// HostBuffer is pinned host memory that the driver allocated.
type HostBuffer struct {
	c *Context
	// Address is the same for host and device.
	Address   uint64
	SizeBytes int64
}

// AllocHost allocates pinned host memory, usable by all contexts.
func (c *Context) AllocHost(sizeBytes int64) (*HostBuffer, error) {
	p, err := c.make(capi.MemHostAlloc, uint64(sizeBytes), hostRegisterPortable|hostRegisterDevice)
	if err != nil {
		return nil, err
	}
	return &HostBuffer{c: c, Address: p, SizeBytes: sizeBytes}, nil
}

// Bytes of the buffer; not to be used after Free.
func (b *HostBuffer) Bytes() []byte { return bytesAt(b.Address, b.SizeBytes) }

// Free gives the memory back.
func (b *HostBuffer) Free() error { return b.c.do(capi.MemFreeHost, b.Address) }

// MemHandle names a device allocation to other processes of the machine: the
// 64 bytes of cudaIpcMemHandle.
type MemHandle [64]byte

// String says what the driver writes into its handles, as far as it is known:
// exporter and size. For logs only.
func (h MemHandle) String() string {
	return fmt.Sprintf("memory of process %d, %d bytes", h.PID(), binary.LittleEndian.Uint64(h[16:]))
}

// PID is the exporter's process id in its own pid namespace, as observed in
// handles of driver 580. For diagnostics only.
func (h MemHandle) PID() int { return int(int64(binary.LittleEndian.Uint64(h[8:]))) }

// Mapping is memory of another process that is mapped here. Users of one
// handle share it.
type Mapping struct {
	c   *Context
	key string
	// Address and SizeBytes of the whole allocation.
	Address   uint64
	SizeBytes int64

	open  sync.Mutex // held while the driver opens it
	refs  int        // guarded by c.mu
	err   error      // set under open
	done  bool       // opened or failed; set under open
	close func() error
}

// OpenMemory maps memory of another process, or counts one more user of the
// mapping. It takes about half a millisecond. A process cannot open its own
// memory.
func (c *Context) OpenMemory(h MemHandle) (*Mapping, error) {
	return c.openMapping(string(h[:]), func(m *Mapping) error {
		f := capi.Frame{}
		copy(f.Blob[:], h[:])
		if err := c.call(capi.IpcOpenMemHandle, &f); err != nil {
			return fmt.Errorf("%v: %w", h, err)
		}
		m.Address = f.Out[0]
		m.close = func() error { return c.do(capi.IpcCloseMemHandle, m.Address) }
		size := capi.Frame{In: [8]uint64{m.Address}}
		if err := c.call(capi.MemGetAddressRange, &size); err != nil {
			return errors.Join(err, m.close())
		}
		m.SizeBytes = int64(size.Out[1])
		return nil
	})
}

// openMapping counts users by key and opens with the first.
func (c *Context) openMapping(key string, open func(*Mapping) error) (*Mapping, error) {
	c.mu.Lock()
	m := c.mappings[key]
	if m == nil {
		m = &Mapping{c: c, key: key}
		c.mappings[key] = m
	}
	m.refs++
	c.mu.Unlock()

	m.open.Lock()
	defer m.open.Unlock()
	if !m.done {
		m.err = open(m)
		m.done = true
	}
	if m.err != nil {
		c.mu.Lock()
		m.refs--
		if c.mappings[key] == m {
			delete(c.mappings, key)
		}
		c.mu.Unlock()
		return nil, m.err
	}
	return m, nil
}

// Retain counts one more user.
func (m *Mapping) Retain() {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.refs++
}

// Release gives one use back, and unmaps with the last. No copy of it may be
// under way then. It must not be called with a lock held: the driver may wait
// for other copies.
func (m *Mapping) Release() error {
	c := m.c
	c.mu.Lock()
	m.refs--
	last := m.refs == 0
	if last && c.mappings[m.key] == m {
		delete(c.mappings, m.key)
	}
	c.mu.Unlock()
	if !last {
		return nil
	}
	return m.close()
}

// Mappings counts what is mapped of other processes, and its bytes.
func (c *Context) Mappings() (n int, sizeBytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.mappings {
		n++
		sizeBytes += m.SizeBytes
	}
	return n, sizeBytes
}
