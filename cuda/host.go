package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/lmcache-go/lmcache-go/cuda/internal/capi"
)

// pins are the host memory that the driver has registered.
type pins struct {
	turn sync.Mutex   // held across registering: 20 ms a GiB where pages are there
	mu   sync.RWMutex // taken under turn
	list []*Pin       // guarded by mu
}

// at is the pin that holds an address.
func (ps *pins) at(address uint64) *Pin {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	for _, p := range ps.list {
		if address >= p.start && address-p.start < p.bytes {
			return p
		}
	}
	return nil
}

// Pin is host memory that devices copy from and to at full speed.
type Pin struct {
	home  *Context // the context that registered; held by the pin
	start uint64
	bytes uint64
	refs  int // guarded by pins.turn
}

// PinHost registers b for all devices in one span, or counts one more user of
// the same span. The pages should be there already: the driver would make them
// by one thread, 5 GB/s. The memory must outlive the pin.
//
// A copy must not cross two registered spans, and a registration ends with the
// context that made it: the pin holds the context of dev until its last user
// leaves, whatever other devices come and go.
func (d *Driver) PinHost(dev *Device, b []byte) (*Pin, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("%w: nothing to pin", ErrHandle)
	}
	start, n := addressOf(b), uint64(len(b))
	ps := &d.pins
	ps.turn.Lock()
	defer ps.turn.Unlock()
	for _, p := range ps.list {
		if p.start == start && p.bytes == n {
			p.refs++
			return p, nil
		}
	}
	home, err := d.Retain(dev)
	if err != nil {
		return nil, err
	}
	if err := home.do(capi.MemHostRegister, start, n, hostRegisterPortable|hostRegisterDevice); err != nil {
		return nil, fmt.Errorf("pinning %d bytes: %w", n, errors.Join(err, home.Release()))
	}
	// Copies use the host address as the device's. All 64-bit systems have
	// one address space; one that has not must not get wrong addresses.
	address, err := home.make(capi.MemHostGetDevicePointer, start)
	if err == nil && address != start {
		err = fmt.Errorf("%w: pinned memory has another address on the device", ErrUnsupported)
	}
	if err != nil {
		return nil, errors.Join(err, home.do(capi.MemHostUnregister, start), home.Release())
	}
	p := &Pin{home: home, start: start, bytes: n, refs: 1}
	ps.mu.Lock()
	ps.list = append(ps.list, p)
	ps.mu.Unlock()
	return p, nil
}

// PinnedFrom says how many bytes from the start of b on are in one pinned span.
func (d *Driver) PinnedFrom(b []byte) int64 {
	if len(b) == 0 {
		return 0
	}
	at := addressOf(b)
	p := d.pins.at(at)
	if p == nil {
		return 0
	}
	return int64(min(uint64(len(b)), p.bytes-(at-p.start)))
}

// Unpin gives one use back. The last one unregisters the memory; no copy may
// be under way then.
func (p *Pin) Unpin() error {
	ps := &p.home.d.pins
	ps.turn.Lock()
	defer ps.turn.Unlock()
	switch p.refs--; {
	case p.refs > 0:
		return nil
	case p.refs < 0:
		p.refs = 0
		return fmt.Errorf("%w: pinned memory", ErrReleased)
	}
	ps.mu.Lock()
	ps.list = slices.DeleteFunc(ps.list, func(q *Pin) bool { return q == p })
	ps.mu.Unlock()
	return errors.Join(p.home.do(capi.MemHostUnregister, p.start), p.home.Release())
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// bytesAt makes a slice of memory outside the Go heap.
func bytesAt(address uint64, n int64) []byte {
	p := uintptr(address)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}
