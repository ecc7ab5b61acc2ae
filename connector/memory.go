package connector

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// Memory is where an engine keeps its KV tensors: one or more storages, each
// with its tensors at some offset. [SharedMemory] and [HostMemory] are in host
// memory; memory of a GPU is another implementation, with IPC handles as
// sources and device events as handles.
type Memory interface {
	// Sizes of the storages in bytes.
	Sizes() []int64
	// Host is the storages as the processor sees them, nil when it cannot. It
	// is what engine-driven transfers copy from and to.
	Host() [][]byte
	// Source tells how a server opens a storage, or an [ErrMode] when it cannot.
	Source(storage int) (wire.DeviceSource, error)
	// Record returns a handle of an event behind all work that the engine has
	// submitted so far: a server waits for it before it touches the memory.
	Record() ([]byte, error)
	// Complete says whether the work is done that a server's event marks. It
	// does not wait.
	Complete(event []byte) (bool, error)
	// DeviceUUID is "cpu", or a GPU's UUID without the GPU- prefix.
	DeviceUUID() string
}

// HostMemory is ordinary memory of this process. No server can open it, so
// transfers are engine-driven.
type HostMemory [][]byte

// Sizes of the slices.
func (m HostMemory) Sizes() []int64 {
	out := make([]int64, len(m))
	for i := range m {
		out[i] = int64(len(m[i]))
	}
	return out
}

// Host is m.
func (m HostMemory) Host() [][]byte { return m }

// Source fails.
func (m HostMemory) Source(int) (wire.DeviceSource, error) {
	return nil, fmt.Errorf("%w: a server cannot open ordinary memory: use SharedMemory, or transfer mode engine_driven", ErrMode)
}

// Record returns the handle of processors, which have no events.
func (m HostMemory) Record() ([]byte, error) { return []byte(device.StubEvent), nil }

// Complete is true: on a processor an answer means that the copy is done.
func (m HostMemory) Complete([]byte) (bool, error) { return true, nil }

// DeviceUUID is "cpu".
func (m HostMemory) DeviceUUID() string { return "cpu" }

// SharedMemory is POSIX shared memory that a server can open by name: the KV
// cache of an engine without a GPU. Client and server need the same user and
// the same /dev/shm.
type SharedMemory struct {
	HostMemory
	names []string
}

// shmDir is where Linux shows POSIX shared memory.
const shmDir = "/dev/shm"

// NewSharedMemory makes a segment of each size, filled with zeros and backed by
// memory at once, so that none can be missing later. Close removes them.
func NewSharedMemory(sizes ...int64) (_ *SharedMemory, err error) {
	m := &SharedMemory{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	for _, n := range sizes {
		var salt [8]byte
		_, _ = rand.Read(salt[:]) // never fails
		name := fmt.Sprintf("%s%d_%s", device.SegmentPrefix, os.Getpid(), hex.EncodeToString(salt[:]))
		f, err := os.OpenFile(filepath.Join(shmDir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, fmt.Errorf("connector: make shared memory: %w", err)
		}
		m.names = append(m.names, name)
		b, err := mapFile(f, n, true)
		if err != nil {
			return nil, fmt.Errorf("connector: shared memory of %d bytes (is %s large enough?): %w", n, shmDir, err)
		}
		m.HostMemory = append(m.HostMemory, b)
	}
	return m, nil
}

// mapFile maps n bytes of f, which it closes; grow makes it that large first.
func mapFile(f *os.File, n int64, grow bool) ([]byte, error) {
	defer f.Close()
	if grow {
		if err := unix.Fallocate(int(f.Fd()), 0, 0, n); err != nil {
			return nil, err
		}
	}
	return unix.Mmap(int(f.Fd()), 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// Source is the segment's name.
func (m *SharedMemory) Source(storage int) (wire.DeviceSource, error) {
	return &wire.CPUShm{Name: m.names[storage], SizeBytes: int64(len(m.HostMemory[storage]))}, nil
}

// Close unmaps and removes the segments. A server that has them open keeps its
// mapping.
func (m *SharedMemory) Close() error {
	var errs []error
	for _, b := range m.HostMemory {
		errs = append(errs, unix.Munmap(b))
	}
	for _, name := range m.names {
		errs = append(errs, os.Remove(filepath.Join(shmDir, name)))
	}
	m.HostMemory, m.names = nil, nil
	return errors.Join(errs...)
}
