package main

import (
	"errors"
	"fmt"

	"github.com/lmcache-go/lmcache-go/internal/bytesize"
	"github.com/lmcache-go/lmcache-go/internal/memlimit"
	"github.com/lmcache-go/lmcache-go/mpserver"
)

// defaultPoolBytes is the pool of a server that was not told otherwise, where
// memory allows it; and it takes no more than this share of what is left.
const (
	defaultPoolBytes = 4 * bytesize.GiB
	defaultPoolShare = 4
)

func sizeText(n int64) string { return bytesize.Format(n) }

// room is how much the pool may take, and what bounds it.
type room struct {
	memory     memlimit.Limit
	memoryLeft int64
	// shmFree is the free bytes of /dev/shm; set with shared.
	shmSize, shmFree int64
	shared           bool
	// stale is the bytes of a segment of an earlier run, which the start
	// removes; they count as left already.
	stale int64
	// users map that segment still: its memory comes back only when they let go.
	users []process
}

// measure asks the host. The error means that it cannot be told, or that the
// segment belongs to a running server.
func (h machine) measure(shmName string) (room, error) {
	m, err := h.memory()
	if err != nil {
		return room{}, err
	}
	r := room{shared: shmName != ""}
	r.memory, _ = m.Tightest()
	r.memoryLeft = r.memory.LeftBytes()
	if !r.shared {
		return r, nil
	}
	if r.shmSize, r.shmFree, err = h.shm(); err != nil {
		return r, fmt.Errorf("--shm-name needs %s: %w", shmFolder, err)
	}
	name := mpserver.SegmentName(shmName)
	held := h.segment(name)
	if held == 0 {
		return r, nil
	}
	for _, p := range h.mappedBy(name) {
		if p.pid == h.self.pid {
			continue
		}
		if p.name == h.self.name {
			return r, fmt.Errorf("--shm-name %s: segment %s/%s is the pool of %s, which runs: stop it or choose another name", shmName, shmFolder, name, p)
		}
		r.users = append(r.users, p)
	}
	if len(r.users) == 0 {
		r.stale = held
		r.shmFree += held
		r.memoryLeft += held
	}
	return r, nil
}

// pool decides the size of a pool that nobody has sized.
func (r room) pool() (size int64, note string) {
	size, note = defaultPoolBytes, "the default of 4 GiB, which is less than a quarter of what "+r.memory.Name+" leaves"
	if share := r.memoryLeft / defaultPoolShare; share < size {
		size, note = share, fmt.Sprintf("a quarter of the %s that %s leaves", sizeText(r.memoryLeft), r.memory.Name)
	}
	if r.shared && r.shmFree < size {
		size, note = r.shmFree, "all that is free in "+shmFolder
	}
	return size &^ (bytesize.MiB - 1), note
}

// fits says why a pool of that size cannot be had, with numbers and the way out.
func (r room) fits(size int64) error {
	var errs []error
	if size > r.memoryLeft {
		errs = append(errs, fmt.Errorf("--l1-size-gb asks for %s, but %s leaves %s (%s used of %s): give at most --l1-size-gb %s, or raise the limit",
			sizeText(size), r.memory.Name, sizeText(r.memoryLeft), sizeText(r.memory.UsedBytes), sizeText(r.memory.Bytes), advise(r.memoryLeft)))
	}
	if r.shared && size > r.shmFree {
		errs = append(errs, fmt.Errorf("--shm-name puts the pool of %s in %s, which has %s free of %s: make it larger (docker run --shm-size, or a memory-backed volume at %s), give at most --l1-size-gb %s, or leave --shm-name out",
			sizeText(size), shmFolder, sizeText(r.shmFree), sizeText(r.shmSize), shmFolder, advise(r.shmFree)))
	}
	return errors.Join(errs...)
}

// advise is a size to type that fits into n and leaves a little.
func advise(n int64) string {
	n -= n / 20
	if n < bytesize.GiB {
		return fmt.Sprintf("%dMiB", n/bytesize.MiB)
	}
	return fmt.Sprintf("%.1f", float64(n/(bytesize.GiB/10))/10)
}

// size settles --l1-size-gb and checks it against the host.
func (s *settings) size(h machine) (room, error) {
	v := s.get("l1-size-gb")
	r, err := h.measure(s.get("shm-name").text)
	switch {
	case errors.Is(err, memlimit.ErrUnknown) && v.given():
		return r, nil // nothing to hold it against
	case errors.Is(err, memlimit.ErrUnknown):
		return r, fmt.Errorf("--l1-size-gb is needed here: %w", err)
	case err != nil && !v.given():
		return r, err
	}
	if !v.given() {
		size, note := r.pool()
		if size < bytesize.MiB {
			return r, fmt.Errorf("--l1-size-gb: no room for a pool: %s leaves %s", r.memory.Name, sizeText(r.memoryLeft))
		}
		s.derive("l1-size-gb", value{n: size, text: fmt.Sprint(size)}, note)
		return r, nil
	}
	if s.row("l1-size-gb").problem(v) != "" {
		return r, err // the size itself is wrong already
	}
	return r, errors.Join(err, r.fits(v.n))
}

func (s *settings) row(name string) *row {
	for i := range s.rows {
		if s.rows[i].name == name {
			return &s.rows[i]
		}
	}
	panic("no flag --" + name)
}
