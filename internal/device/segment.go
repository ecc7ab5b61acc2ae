package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// SegmentPrefix begins the names of KV segments on the wire
// (CpuShmTensorWrapper.SHM_NAME_PREFIX, lmcache 0.5.6,
// v1/platform/devices/cpu/shm.py).
const SegmentPrefix = "/lmcache_kv_"

// segment is one mapping of a POSIX shared memory object that a client made.
type segment struct {
	name string
	key  segmentKey
	data []byte
	refs int         // guarded by segments.mu: open memories and jobs
	gone atomic.Bool // a copy faulted: the client cut the segment short

	local bool // not a mapping of ours
}

// segmentKey tells segments apart by what they are, not by their names: a name
// can be unlinked and made again.
type segmentKey struct {
	dev, ino uint64
	bytes    int64
}

// segments are the mappings of a device.
type segments struct {
	dir string // where POSIX shared memory appears

	mu    sync.Mutex
	byKey map[segmentKey]*segment // guarded by mu
	bytes int64                   // guarded by mu
}

// checkName allows one path element with the prefix, so that a client cannot
// name any other file, in or outside of the directory.
func checkName(name string) error {
	rest, ok := strings.CutPrefix(name, SegmentPrefix)
	if !ok || rest == "" || len(name) > 255 || strings.ContainsAny(rest, "/\x00") {
		return fmt.Errorf("%w: %q, expected %s and one path element", ErrName, name, SegmentPrefix)
	}
	return nil
}

// open maps a segment or takes another reference to the mapping that exists.
func (s *segments) open(name string, sizeBytes int64) (*segment, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if sizeBytes < 1 || int64(int(sizeBytes)) != sizeBytes {
		return nil, fmt.Errorf("%w: %s with %d bytes", ErrOpen, name, sizeBytes)
	}
	path := filepath.Join(s.dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w (client and server need the same user and the same %s)", ErrOpen, err, s.dir)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrOpen, name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%w: %s is not shared memory", ErrOpen, name)
	}
	if st.Size < sizeBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes, registered as %d", ErrShort, name, st.Size, sizeBytes)
	}
	key := segmentKey{st.Dev, st.Ino, sizeBytes}
	if seg := s.find(key); seg != nil {
		return seg, nil
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(sizeBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%w: mmap of %s, %d bytes: %w", ErrOpen, name, sizeBytes, err)
	}
	seg := &segment{name: name, key: key, data: data, refs: 1}
	if other := s.insert(seg); other != nil {
		_ = unix.Munmap(data) // another call was quicker
		return other, nil
	}
	return seg, nil
}

// find takes a reference to a mapping that is in order.
func (s *segments) find(key segmentKey) *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	seg := s.byKey[key]
	if seg == nil || seg.gone.Load() {
		return nil
	}
	seg.refs++
	return seg
}

// insert adds a new mapping, unless there is one; then a reference to that is
// returned. One that has faulted gives way: its holders keep it.
func (s *segments) insert(seg *segment) *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.byKey[seg.key]; other != nil && !other.gone.Load() {
		other.refs++
		return other
	}
	s.byKey[seg.key] = seg
	s.bytes += seg.key.bytes
	return nil
}

// hold takes another reference for somebody who has one.
func (s *segments) hold(seg *segment) {
	s.mu.Lock()
	seg.refs++
	s.mu.Unlock()
}

// release gives a reference back and unmaps with the last.
func (s *segments) release(seg *segment) {
	s.mu.Lock()
	seg.refs--
	last := seg.refs == 0 && !seg.local
	if last {
		if s.byKey[seg.key] == seg {
			delete(s.byKey, seg.key)
		}
		s.bytes -= seg.key.bytes
	}
	s.mu.Unlock()
	if last {
		_ = unix.Munmap(seg.data) // fails only for an address that is not mapped
	}
}

func (s *segments) count() (n int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byKey), s.bytes
}

// mapped is a [Memory] of the CPU device.
type mapped struct {
	dev *CPU

	mu  sync.Mutex
	seg *segment // guarded by mu; nil when closed
	n   int64
}

// SizeBytes of the registration.
func (m *mapped) SizeBytes() int64 { return m.n }

// Close gives the mapping up.
func (m *mapped) Close() {
	m.mu.Lock()
	seg := m.seg
	m.seg = nil
	m.mu.Unlock()
	if seg != nil {
		m.dev.segs.release(seg)
	}
}

// hold takes a reference for a job.
func (m *mapped) hold() *segment {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seg != nil {
		m.dev.segs.hold(m.seg)
	}
	return m.seg
}
