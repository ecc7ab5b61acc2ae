// Package memlimit tells how much memory is left to this process: by its cgroup
// (v1 or v2, each level), by the host, and in a file system such as /dev/shm.
//
// [Read] looks at the kernel's files once. The answer is a snapshot and somebody
// else's allocation can make it wrong a moment later; it is meant for sizing
// something large at start, and for saying why it does not fit.
package memlimit

import (
	"errors"
	"fmt"
	"path/filepath"
)

// Limit is one bound on this process's memory and how much of it is used.
type Limit struct {
	// Name says what bounds: "host memory", "cgroup /kubepods/pod1" ….
	Name string
	// Bytes is the bound; UsedBytes what counts against it already, less what
	// the kernel takes back by itself (clean file pages).
	Bytes, UsedBytes int64
}

// LeftBytes is what may still be allocated, never negative.
func (l Limit) LeftBytes() int64 { return max(0, l.Bytes-l.UsedBytes) }

// Memory is every bound that was found: the host, then cgroups from the
// innermost outwards.
type Memory struct {
	Limits []Limit
}

// Tightest is the bound that leaves least. Without any it reports false.
func (m Memory) Tightest() (Limit, bool) {
	if len(m.Limits) == 0 {
		return Limit{}, false
	}
	best := m.Limits[0]
	for _, l := range m.Limits[1:] {
		if l.LeftBytes() < best.LeftBytes() {
			best = l
		}
	}
	return best, true
}

// ErrUnknown is returned when not even the host's memory can be read.
var ErrUnknown = errors.New("cannot tell how much memory there is")

// Read looks at this process's bounds.
func Read() (Memory, error) { return readAt("/") }

// readAt is Read below another root folder.
func readAt(root string) (Memory, error) {
	host, err := readMeminfo(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return Memory{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	m := Memory{Limits: []Limit{host}}
	// A host without cgroups has no further bound: what cannot be read is left out.
	m.Limits = append(m.Limits, cgroups(root)...)
	return m, nil
}
