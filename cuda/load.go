package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/lmcache-go/lmcache-go/cuda/internal/capi"
	"github.com/lmcache-go/lmcache-go/internal/dl"
)

// LoadOptions says where the driver is.
type LoadOptions struct {
	// Path of the library; "" looks for libcuda.so.1 as the loader does, and
	// where WSL puts it.
	Path string
	// Symbol stands in for the library: it returns the address of a function
	// of the driver, or nil. For tests against a driver that is none.
	Symbol func(name string) unsafe.Pointer
}

var libNames = []string{"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"}

// Driver is a loaded and initialized CUDA driver. It is never unloaded.
type Driver struct {
	c       *capi.Driver
	path    string
	version int
	devices []*Device

	mu       sync.Mutex
	contexts map[*Device]*context // guarded by mu
	pins     pins                 // guarded by its own mu
}

// Load loads and initializes the driver. It fails with [ErrNoDriver] where
// there is none, [ErrOldDriver] where it is too old, and a [*Error] when it
// does not start. A machine without a GPU is no reason for a program to end:
// Load when the first GPU is asked for.
//
// Nothing is allocated on a GPU before [Driver.Retain]. Load once in a process
// and keep the driver.
func Load(o LoadOptions) (*Driver, error) {
	symbol, path := o.Symbol, "given"
	if symbol == nil {
		var err error
		if symbol, path, err = open(o.Path); err != nil {
			return nil, err
		}
	}
	c, missing := capi.New(symbol)
	if c == nil {
		if len(missing) == 0 {
			return nil, fmt.Errorf("%w: %w", ErrNoDriver, dl.ErrUnsupported)
		}
		return nil, fmt.Errorf("%w: %s lacks %s; drivers from 450 on have them", ErrOldDriver, path, strings.Join(missing, ", "))
	}
	d := &Driver{c: c, path: path, contexts: map[*Device]*context{}}
	if err := d.start(); err != nil {
		return nil, err
	}
	return d, nil
}

// open finds the library.
func open(path string) (symbol func(string) unsafe.Pointer, found string, err error) {
	names := libNames
	if path != "" {
		names = []string{path}
	}
	var tried []error
	for _, name := range names {
		lib, err := dl.Open(name, 0)
		if err != nil {
			tried = append(tried, err)
			continue
		}
		return func(name string) unsafe.Pointer {
			f, err := lib.Symbol(name)
			if err != nil {
				return nil
			}
			return f
		}, lib.Path(), nil
	}
	return nil, "", fmt.Errorf("%w: looked for %s: %w; the NVIDIA driver brings it, and a container gets it by --gpus all (NVIDIA Container Toolkit); "+
		"without a GPU engines use the engine_driven transfer", ErrNoDriver, strings.Join(names, ", "), errors.Join(tried...))
}

// start initializes the driver and looks at its devices.
func (d *Driver) start() error {
	var f capi.Frame
	if err := d.call(nil, capi.Init, &f); err != nil {
		return err
	}
	if err := d.call(nil, capi.DriverGetVersion, &f); err != nil {
		return err
	}
	d.version = int(f.Out[0])
	if err := d.call(nil, capi.DeviceGetCount, &f); err != nil {
		return err
	}
	for i := range int(f.Out[0]) {
		dev, err := d.look(i)
		if err != nil {
			return err
		}
		d.devices = append(d.devices, dev)
	}
	return nil
}

// call calls a function; the frame names the context, dev only the error.
func (d *Driver) call(dev *Device, fn capi.Func, f *capi.Frame) error {
	r := Result(d.c.Call(fn, f))
	if r == 0 {
		return nil
	}
	return d.fail(dev, fn, r)
}

// fail makes the error of a call.
func (d *Driver) fail(dev *Device, fn capi.Func, r Result) error {
	e := &Error{Call: fn.String(), Result: r, Remedy: remedy(fn.String(), r)}
	if dev != nil {
		e.Device = dev.UUID
	}
	return e
}

// Version of the CUDA API that the driver has: 13000 is 13.0.
func (d *Driver) Version() int { return d.version }

// Path is the library that was loaded.
func (d *Driver) Path() string { return d.path }

// Devices that this process can use, by ordinal.
func (d *Driver) Devices() []*Device { return slices.Clone(d.devices) }

// Device finds a device by its UUID, as [ParseUUID] takes it. The error names
// what was seen, and matches [ErrNoSuchDevice].
func (d *Driver) Device(uuid string) (*Device, error) {
	want, err := ParseUUID(uuid)
	if err != nil {
		return nil, err
	}
	seen := make([]string, len(d.devices))
	for i, dev := range d.devices {
		if dev.UUID == want {
			return dev, nil
		}
		seen[i] = dev.UUID
	}
	return nil, fmt.Errorf("%w: %s; this process sees %s: check CUDA_VISIBLE_DEVICES here and that server and engine were given the same GPU, "+
		"or let the engine use the engine_driven transfer", ErrNoSuchDevice, want, orNone(seen))
}

func orNone(seen []string) string {
	if len(seen) == 0 {
		return "no device"
	}
	return strings.Join(seen, ", ")
}

// BatchCopies says how copies of one request go to the driver: 2 or 1 for the
// version of cuMemcpyBatchAsync, 0 for one call a copy, which is three times
// slower (drivers before 570).
func (d *Driver) BatchCopies() int {
	switch {
	case d.c.Has(capi.MemcpyBatchAsyncV2):
		return 2
	case d.c.Has(capi.MemcpyBatchAsyncV1):
		return 1
	}
	return 0
}
