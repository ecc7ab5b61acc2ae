package l1cache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lmcache-go/lmcache-go/internal/memlimit"
)

// headroomMarginBytes is what the population leaves untouched for the rest of
// the process and its neighbours in the cgroup.
const headroomMarginBytes = 64 << 20

func mapPrivate(size int64) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("l1cache: mapping %d bytes: %w", size, err)
	}
	return mem, nil
}

func unmap(mem []byte) error {
	if mem == nil {
		return nil
	}
	return unix.Munmap(mem)
}

// segment is a named shared memory file that this process owns. Ownership is
// an exclusive flock on it, which the kernel drops with the process: a segment
// without one is stale.
type segment struct {
	path string
	file *os.File
}

// openSegment creates and maps the segment, unlinking a stale one first.
func openSegment(dir, name string, size int64, lockWait time.Duration) (_ *segment, _ []byte, err error) {
	if name == "" || name == "." || name == ".." || len(name) > 255 || strings.ContainsAny(name, "/\x00") {
		return nil, nil, fmt.Errorf("l1cache: shared memory name %q must be 1 to 255 bytes without a slash", name)
	}
	s := &segment{path: filepath.Join(dir, name)}
	if err := unlinkStale(s.path, lockWait); err != nil {
		return nil, nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, nil, fmt.Errorf("l1cache: %s: %w", dir, err)
	}
	if free := int64(fs.Bavail) * fs.Bsize; fs.Blocks > 0 && free < size {
		return nil, nil, fmt.Errorf("%w: %s has %d bytes free, the pool needs %d: enlarge it (docker --shm-size, or an emptyDir of medium Memory) or lower --l1-size-gb",
			ErrShmTooSmall, dir, free, size)
	}
	s.file, err = os.OpenFile(s.path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("l1cache: creating shared memory segment: %w", err)
	}
	defer func() {
		if err != nil {
			_ = s.close()
		}
	}()
	fd := int(s.file.Fd())
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, nil, fmt.Errorf("l1cache: locking %s: %w", s.path, err)
	}
	if err := s.file.Truncate(size); err != nil {
		return nil, nil, fmt.Errorf("l1cache: sizing %s to %d bytes: %w", s.path, size, err)
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("l1cache: mapping %s: %w", s.path, err)
	}
	return s, mem, nil
}

// unlinkStale removes a segment that no live server owns.
func unlinkStale(path string, lockWait time.Duration) error {
	for deadline := time.Now().Add(lockWait); ; time.Sleep(20 * time.Millisecond) {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("l1cache: a shared memory segment of this name exists and cannot be opened; remove it or choose another --shm-name: %w", err)
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			err = os.Remove(path)
			_ = f.Close()
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("l1cache: removing a stale shared memory segment: %w", err)
			}
			return nil
		}
		_ = f.Close()
		if !time.Now().Before(deadline) {
			return fmt.Errorf("%w: another server owns %s; stop it or choose another --shm-name", ErrShmInUse, path)
		}
	}
}

// close unlinks the segment, if the name still means ours, and gives up its lock.
func (s *segment) close() error {
	var err error
	mine, err1 := s.file.Stat()
	named, err2 := os.Lstat(s.path)
	if err1 == nil && err2 == nil && os.SameFile(mine, named) {
		err = os.Remove(s.path)
	}
	return errors.Join(err, s.file.Close())
}

// populator makes pages present. All methods but newPopulator are safe from
// several goroutines.
type populator struct {
	mem      []byte
	fd       int  // -1 when private
	reserve  bool // fallocate before touching
	noMadv   atomic.Bool
	headroom func() (int64, string)
}

func newPopulator(mem []byte, seg *segment, headroom func() (int64, string)) *populator {
	p := &populator{mem: mem, fd: -1, headroom: headroom}
	// Advice only: what it cannot do costs speed, not correctness.
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
	huge := unix.Madvise(mem, unix.MADV_HUGEPAGE) == nil
	if seg != nil {
		p.fd = int(seg.file.Fd())
		p.reserve = !huge || !shmemHugeAllowed()
	}
	return p
}

// shmemHugeAllowed tells whether shared memory may be made of huge pages. Then
// the pages must come from touching: fallocate would make small ones.
func shmemHugeAllowed() bool {
	b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	if err != nil {
		return false
	}
	return !strings.Contains(string(b), "[never]") && !strings.Contains(string(b), "[deny]")
}

// room checks that the cgroup and the machine have n more bytes, so that the
// pool does not wake the out-of-memory killer.
func (p *populator) room(n int64) error {
	left, source := p.headroom()
	if left >= 0 && left < n+headroomMarginBytes {
		return fmt.Errorf("%w: %s leaves %d bytes, the next piece of the pool needs %d and a margin of %d: raise the limit or lower --l1-size-gb",
			ErrMemoryLimit, source, left, n, int64(headroomMarginBytes))
	}
	return nil
}

// populate makes [from, to) present.
func (p *populator) populate(from, to int64) error {
	if p.reserve {
		if err := p.allocate(from, to); err != nil {
			return err
		}
	}
	if !p.noMadv.Load() {
		err := retry(func() error { return unix.Madvise(p.mem[from:to], unix.MADV_POPULATE_WRITE) })
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EFAULT) && p.fd >= 0:
			return p.full()
		case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS):
			p.noMadv.Store(true) // before Linux 5.14
		default:
			return fmt.Errorf("madvise: %w", err)
		}
	}
	if p.fd >= 0 && !p.reserve {
		if err := p.allocate(from, to); err != nil {
			return err
		}
	}
	step := int64(os.Getpagesize())
	for i := from; i < to; i += step {
		p.mem[i] = 0 // nobody owns these bytes yet
	}
	return nil
}

// allocate reserves the file's pages, so that touching them cannot fail.
func (p *populator) allocate(from, to int64) error {
	err := retry(func() error { return unix.Fallocate(p.fd, 0, from, to-from) })
	switch {
	case err == nil || errors.Is(err, unix.EOPNOTSUPP):
		return nil
	case errors.Is(err, unix.ENOSPC):
		return p.full()
	}
	return fmt.Errorf("fallocate: %w", err)
}

func (p *populator) full() error {
	return fmt.Errorf("%w: its file system is full; the pool stays what it is: enlarge it, remove what else it holds, or lower --l1-size-gb", ErrShmTooSmall)
}

// discard gives the pages of [from, to) back.
func (p *populator) discard(from, to int64) {
	if p.fd >= 0 {
		_ = unix.Fallocate(p.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
		return
	}
	_ = unix.Madvise(p.mem[from:to], unix.MADV_DONTNEED)
}

// machineHeadroom returns how much memory is left to this process, by the host
// and each level of its cgroup, and which of them leaves least; -1 when unknown.
func machineHeadroom() (freeBytes int64, source string) {
	m, err := memlimit.Read()
	if err != nil {
		return -1, ""
	}
	least, ok := m.Tightest()
	if !ok {
		return -1, ""
	}
	return least.LeftBytes(), least.Name
}

// populateNice is mild: requests go first, but a store that waits for pages is
// not starved by them on a machine whose CPUs are busy.
const populateNice = 5

// lowerPriority makes the calling thread yield to the rest of the process.
func (p *populator) lowerPriority() { _ = unix.Setpriority(unix.PRIO_PROCESS, 0, populateNice) }

// retry repeats a call that a signal interrupted; Go's scheduler sends them.
func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}
