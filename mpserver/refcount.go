package mpserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refCounter names a counter of torch's that says how many processes have a
// storage open (torch 2.11, torch/csrc/CudaIPCTypes.h). The producer keeps the
// memory while it is above 0, so whoever received a storage counts it down.
type refCounter struct {
	name  string // of the file, with a leading slash
	index int64
}

// shmDir is where POSIX shared memory lives on Linux.
const shmDir = "/dev/shm"

// The file: a head, then counters of 64 bits.
const (
	refFileHead     = 64
	refFileCounters = 10000
	refFileBytes    = refFileHead + 8*refFileCounters
)

var refFileName = regexp.MustCompile(`^/torch_[A-Za-z0-9_]+$`)

var errRefFile = errors.New("not a file of torch's reference counters")

// countDown counts the storages of a worker down, as far as their files can be
// reached, which they cannot where containers share no /dev/shm. It returns how
// many it did, and what went wrong last.
func countDown(dir string, counters []refCounter) (n int, err error) {
	byFile := map[string][]int64{}
	for _, c := range counters {
		byFile[c.name] = append(byFile[c.name], c.index)
	}
	for name, indices := range byFile {
		done, e := countDownFile(dir, name, indices)
		n += done
		if e != nil {
			err = e
		}
	}
	return n, err
}

// countDownFile maps one file. Its owner can cut it short at any time, which
// is a fault here: the file is given up then.
func countDownFile(dir, name string, indices []int64) (n int, err error) {
	if !refFileName.MatchString(name) || len(name) > 255 {
		return 0, fmt.Errorf("%w: %.80q", errRefFile, name)
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !st.Mode().IsRegular() || st.Size() != refFileBytes {
		return 0, fmt.Errorf("%w: %s, %v of %d bytes", errRefFile, name, st.Mode(), st.Size())
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, refFileBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("map %s: %w", name, err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %s: %v", errRefFile, name, r)
		}
	}()
	for _, i := range indices {
		if i < 0 || i >= refFileCounters {
			err = fmt.Errorf("%w: %s has no counter %d", errRefFile, name, i)
			continue
		}
		if decrement((*int64)(unsafe.Pointer(&mem[refFileHead+8*i]))) {
			n++
		}
	}
	return n, err
}

// decrement counts down, but not below 0.
func decrement(p *int64) bool {
	for {
		v := atomic.LoadInt64(p)
		if v <= 0 {
			return false
		}
		if atomic.CompareAndSwapInt64(p, v, v-1) {
			return true
		}
	}
}
