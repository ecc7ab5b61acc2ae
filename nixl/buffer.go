package nixl

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PageSize chooses the pages behind a [HostBuffer].
type PageSize int

const (
	// PagesDefault: the system's 4 KiB pages.
	PagesDefault PageSize = iota
	// PagesTransparent asks for transparent huge pages: the kernel gives 2 MiB
	// pages where it has them. The buffer is aligned to 2 MiB.
	PagesTransparent
	// PagesHuge2M takes 2 MiB pages from the reserved pool
	// (vm.nr_hugepages); without enough of them MapBuffer fails.
	PagesHuge2M
	// PagesHuge1G takes 1 GiB pages from the reserved pool.
	PagesHuge1G
)

// MapOptions tell [MapBuffer] what memory to take. The zero value is private
// anonymous memory of default pages, zeroed, taken from the system when first
// touched.
type MapOptions struct {
	// Pages chooses the page size. Huge pages make registration cheaper on
	// RDMA hardware; the size is rounded up to whole pages.
	Pages PageSize
	// Align is the least alignment of the buffer in bytes, a power of two.
	// Default: the page size.
	Align int
	// Populate touches all pages at once, so that no transfer waits for the
	// system; it takes about 0.2 s per GiB.
	Populate bool
	// Lock keeps the pages in memory (mlock); RLIMIT_MEMLOCK bounds it.
	Lock bool
	// File maps this file, a memfd or an object of /dev/shm for instance,
	// shared with other processes, from Offset on. The file may be closed
	// afterwards.
	File   *os.File
	Offset int64
}

// HostBuffer is host memory outside the Go heap. Close gives it back, but never
// before the last registration of it has ended.
//
// Its methods may be called from several goroutines; the bytes are the
// caller's to guard, against the network too.
type HostBuffer struct {
	data []byte // nil once unmapped; guarded by mu for Close, else constant
	addr uintptr
	size int

	mu     sync.Mutex
	users  int  // registrations; guarded by mu
	closed bool // guarded by mu
	done   chan struct{}
}

// MapBuffer maps size bytes, at least one.
func MapBuffer(size int, o MapOptions) (*HostBuffer, error) {
	page, flags := os.Getpagesize(), unix.MAP_PRIVATE|unix.MAP_ANONYMOUS
	switch o.Pages {
	case PagesTransparent:
		o.Align = max(o.Align, 2<<20)
	case PagesHuge2M:
		page, flags = 2<<20, flags|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB
	case PagesHuge1G:
		page, flags = 1<<30, flags|unix.MAP_HUGETLB|unix.MAP_HUGE_1GB
	default: // the system's pages
	}
	align := max(o.Align, page)
	if size <= 0 || align&(align-1) != 0 || size > 1<<60 {
		return nil, &Error{Op: "map buffer", Cause: ErrInvalidParam, Detail: fmt.Sprintf("size %d, alignment %d", size, o.Align)}
	}
	length := (size + page - 1) &^ (page - 1)
	data, err := mapAligned(length, align, page, flags, o)
	if err != nil {
		remedy := ""
		if o.Pages >= PagesHuge2M {
			remedy = "reserve huge pages (sysctl vm.nr_hugepages) or use PagesTransparent"
		}
		return nil, &Error{Op: "map buffer", Cause: err, Detail: fmt.Sprintf("%d bytes", length), Remedy: remedy}
	}
	if err := prepare(data, o); err != nil {
		_ = unix.MunmapPtr(unsafe.Pointer(&data[0]), uintptr(len(data)))
		return nil, err
	}
	return &HostBuffer{data: data, addr: uintptr(unsafe.Pointer(&data[0])), size: size, done: make(chan struct{})}, nil
}

// mapAligned maps a little more than asked for and gives the edges back.
func mapAligned(length, align, page, flags int, o MapOptions) ([]byte, error) {
	fd, extra := -1, align-page
	if o.File != nil {
		fd, flags, extra = int(o.File.Fd()), unix.MAP_SHARED, 0
	}
	p, err := unix.MmapPtr(fd, o.Offset, nil, uintptr(length+extra), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if extra == 0 {
		return unsafe.Slice((*byte)(p), length), nil
	}
	head := (align - int(uintptr(p)&uintptr(align-1))) & (align - 1)
	data := unsafe.Slice((*byte)(p), length+extra)
	if head > 0 {
		_ = unix.MunmapPtr(p, uintptr(head))
	}
	if tail := extra - head; tail > 0 {
		_ = unix.MunmapPtr(unsafe.Pointer(&data[head+length]), uintptr(tail))
	}
	return data[head : head+length : head+length], nil
}

func prepare(data []byte, o MapOptions) error {
	if o.Pages == PagesTransparent {
		_ = unix.Madvise(data, unix.MADV_HUGEPAGE) // a kernel without it gives small pages
	}
	if o.Populate {
		if err := unix.Madvise(data, unix.MADV_POPULATE_WRITE); err != nil {
			if o.File != nil && err != unix.EINVAL {
				return &Error{Op: "map buffer", Cause: os.NewSyscallError("madvise", err), Detail: "populating a shared file", Remedy: "is there room behind the file (df /dev/shm)?"}
			}
			for i := 0; i < len(data); i += os.Getpagesize() {
				data[i] += 0 // a write that changes nothing: the page becomes present
			}
		}
	}
	if o.Lock {
		if err := unix.Mlock(data); err != nil {
			return &Error{Op: "map buffer", Cause: os.NewSyscallError("mlock", err), Remedy: "raise RLIMIT_MEMLOCK (ulimit -l)"}
		}
	}
	return nil
}

// Bytes is the memory. It must not be used after Close.
func (b *HostBuffer) Bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(b.data))), b.size)
}

// Addr is the address of the first byte.
func (b *HostBuffer) Addr() uintptr { return b.addr }

// Size is the size in bytes, as asked for.
func (b *HostBuffer) Size() int { return b.size }

// Region is the whole buffer, to be registered.
func (b *HostBuffer) Region() Region {
	return Region{Mem: DRAM, Desc: Desc{Addr: b.addr, Len: uintptr(b.size)}, buffer: b}
}

// Desc is length bytes of the buffer from offset on.
func (b *HostBuffer) Desc(offset, length int) Desc {
	if offset < 0 || length < 0 || offset > b.size-length {
		panic(fmt.Sprintf("nixl: HostBuffer.Desc(%d, %d) of %d bytes", offset, length, b.size))
	}
	return Desc{Addr: b.addr + uintptr(offset), Len: uintptr(length)}
}

// Close gives the memory back. While it is registered Close returns an error
// that matches [ErrBusy], and the memory goes when the last registration ends.
// A second Close does nothing but report the same.
func (b *HostBuffer) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := !b.closed
	b.closed = true
	if b.users > 0 {
		return &Error{Op: "close buffer", Cause: ErrBusy, Detail: fmt.Sprintf("registered %d times", b.users)}
	}
	if first {
		return b.unmap()
	}
	return nil
}

// Done is closed when the memory has been given back.
func (b *HostBuffer) Done() <-chan struct{} { return b.done }

// unmap needs mu.
func (b *HostBuffer) unmap() error {
	err := unix.MunmapPtr(unsafe.Pointer(&b.data[0]), uintptr(len(b.data)))
	close(b.done)
	if err != nil {
		return os.NewSyscallError("munmap", err)
	}
	return nil
}

// retain counts a registration; it fails once the buffer is closed.
func (b *HostBuffer) retain() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	b.users++
	return nil
}

// release ends a registration. With quarantine the memory is never given
// back: something may still write to it.
func (b *HostBuffer) release(quarantine bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if quarantine {
		quarantined.Add(int64(b.size))
		return
	}
	b.users--
	if b.users == 0 && b.closed {
		_ = b.unmap() // nobody is left to tell
	}
}
