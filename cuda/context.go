package cuda

import (
	"fmt"
	"sync"

	"github.com/lmcache-go/lmcache-go/cuda/internal/capi"
)

// Flags of the driver (cuda.h).
const (
	ctxBlockingSync      = 4 // waiting threads sleep instead of spinning
	streamNonBlocking    = 1 // not ordered with the default stream
	hostRegisterPortable = 1 // pinned for all contexts
	hostRegisterDevice   = 2 // with an address for the device
)

// Context is the primary context of a device, which all its users in this
// process share. It costs about 0.5 GiB of GPU memory for as long as one of
// them holds it. All methods are safe for concurrent use.
type Context struct {
	d   *Driver
	dev *Device
	h   uint64

	mu       sync.Mutex
	mappings map[string]*Mapping // guarded by mu: by handle
	exported eventRing           // guarded by mu
	timeline *timeline           // guarded by mu; nil until the first answer of that kind
	module   *Module             // guarded by mu; our kernels, nil until the first launch
}

// context counts the holders of one device's context.
type context struct {
	mu   sync.Mutex // held across retain and release, which take 0.1 s
	refs int        // guarded by mu
	c    *Context   // guarded by mu; nil without holders
}

// Retain makes the context of a device, or counts one more holder of it.
// [Context.Release] gives it back.
func (d *Driver) Retain(dev *Device) (*Context, error) {
	d.mu.Lock()
	slot := d.contexts[dev]
	if slot == nil {
		slot = &context{}
		d.contexts[dev] = slot
	}
	d.mu.Unlock()

	slot.mu.Lock()
	defer slot.mu.Unlock()
	if slot.refs > 0 {
		slot.refs++
		return slot.c, nil
	}
	// Another library may have made the context already, with flags of its
	// own: then ours are refused, and everything works with spinning waits.
	flags := capi.Frame{In: [8]uint64{dev.handle, ctxBlockingSync}}
	_ = d.call(dev, capi.DevicePrimaryCtxSetFlags, &flags)
	f := capi.Frame{In: [8]uint64{dev.handle}}
	if err := d.call(dev, capi.DevicePrimaryCtxRetain, &f); err != nil {
		return nil, err
	}
	slot.refs, slot.c = 1, &Context{d: d, dev: dev, h: f.Out[0], mappings: map[string]*Mapping{}}
	return slot.c, nil
}

// Release gives one hold back. With the last, the context is destroyed and its
// GPU memory is free; whatever was not closed before goes with it. The context
// must not be used after.
func (c *Context) Release() error {
	d := c.d
	d.mu.Lock()
	slot := d.contexts[c.dev]
	d.mu.Unlock()
	slot.mu.Lock()
	defer slot.mu.Unlock()
	if slot.c != c || slot.refs == 0 {
		return fmt.Errorf("%w: context of device %s", ErrReleased, c.dev.UUID)
	}
	if slot.refs > 1 {
		slot.refs--
		return nil
	}
	c.tearDown()
	slot.refs, slot.c = 0, nil
	f := capi.Frame{In: [8]uint64{c.dev.handle}}
	return d.call(c.dev, capi.DevicePrimaryCtxRelease, &f)
}

// tearDown ends what the context made for itself.
func (c *Context) tearDown() {
	c.mu.Lock()
	ring, line, module := c.exported.all(), c.timeline, c.module
	c.exported, c.timeline, c.module = eventRing{}, nil, nil
	c.mu.Unlock()
	for _, h := range ring {
		c.destroyEvent(h)
	}
	if line != nil {
		_ = line.buffer.Free()
	}
	if module != nil {
		_ = module.Unload()
	}
}

// Retained says how many holders the context of a device has.
func (d *Driver) Retained(dev *Device) int {
	d.mu.Lock()
	slot := d.contexts[dev]
	d.mu.Unlock()
	if slot == nil {
		return 0
	}
	slot.mu.Lock()
	defer slot.mu.Unlock()
	return slot.refs
}

// Device of the context.
func (c *Context) Device() *Device { return c.dev }

// Driver of the context.
func (c *Context) Driver() *Driver { return c.d }

// call calls a function with this context current.
func (c *Context) call(fn capi.Func, f *capi.Frame) error {
	f.Ctx = c.h
	return c.d.call(c.dev, fn, f)
}

// do is call for functions that return nothing but success.
func (c *Context) do(fn capi.Func, in ...uint64) error {
	var f capi.Frame
	copy(f.In[:], in)
	return c.call(fn, &f)
}

// make is call for functions that return one handle.
func (c *Context) make(fn capi.Func, in ...uint64) (uint64, error) {
	var f capi.Frame
	copy(f.In[:], in)
	err := c.call(fn, &f)
	return f.Out[0], err
}

// MemoryInfo is how much memory of the device is free, and how much it has.
func (c *Context) MemoryInfo() (freeBytes, totalBytes int64, err error) {
	var f capi.Frame
	err = c.call(capi.MemGetInfo, &f)
	return int64(f.Out[0]), int64(f.Out[1]), err
}

// EnablePeer lets this context read and write memory of another device's
// context. Mapped IPC memory needs it not; memory of the same process does.
func (c *Context) EnablePeer(peer *Context) error {
	err := c.do(capi.CtxEnablePeerAccess, peer.h)
	if e := asResult(err); e == PeerAccessEnabled {
		return nil
	}
	return err
}
