package pd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"unsafe"
)

// fileID tells a file apart from others of the same path, in other containers or
// made anew.
func fileID(path string) (dev, ino uint64, err error) {
	st, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	return statID(st)
}

func statID(st os.FileInfo) (dev, ino uint64, err error) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || !st.Mode().IsRegular() {
		return 0, 0, fmt.Errorf("%s is no regular file", st.Name())
	}
	return uint64(sys.Dev), sys.Ino, nil //nolint:unconvert // the width differs between systems
}

// mapFiles maps a producer's shared memory, for reading only.
func mapFiles(files []sharedFile) (_ *directSource, err error) {
	d := &directSource{kind: directHost}
	var maps [][]byte
	d.unmap = func() {
		for _, b := range maps {
			_ = syscall.Munmap(b)
		}
	}
	defer func() {
		if err != nil {
			d.unmap()
		}
	}()
	for _, s := range files {
		b, err := mapFile(&s)
		if err != nil {
			return nil, err
		}
		maps = append(maps, b)
		d.pieces = append(d.pieces, reach{far: uint64(s.Addr), bytes: uint64(s.Bytes), here: uintptr(unsafe.Pointer(unsafe.SliceData(b)))})
	}
	return d, nil
}

func mapFile(s *sharedFile) ([]byte, error) {
	// A path that a peer names: no devices, no links, no waiting.
	f, err := os.OpenFile(s.Path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	dev, ino, err := statID(st)
	if err != nil {
		return nil, err
	}
	if dev != s.dev || ino != s.ino {
		return nil, fmt.Errorf("%s is another file here than there", s.Path)
	}
	if s.Bytes < 1 || st.Size() < s.Bytes {
		return nil, fmt.Errorf("%s has %d bytes, not %d", s.Path, st.Size(), s.Bytes)
	}
	return syscall.Mmap(int(f.Fd()), 0, int(s.Bytes), syscall.PROT_READ, syscall.MAP_SHARED)
}

// errFault: the producer's memory has gone while it was read.
var errFault = errors.New("the producer has cut its shared memory short")

// copyHost copies spans of mapped memory. A producer can truncate its file under
// us; that fault ends the copy, not the process.
func copyHost(ctx context.Context, spans []span) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%w (at %#x)", errFault, fault.Addr())
		}
	}()
	for i, s := range spans {
		if i%256 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		copy(hostBytes(s.local, s.bytes), hostBytes(s.remote, s.bytes))
	}
	return nil
}

// hostBytes is memory outside the Go heap by its address.
func hostBytes(addr, n uintptr) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}
