//go:build linux && cgo

package fakecuda

// #cgo CFLAGS: -O2 -Wall -Wextra -Werror -I${SRCDIR}/../../cuda/internal/capi
// #cgo LDFLAGS: -lpthread
// #include <stdlib.h>
// #include "fake.h"
import "C"

import (
	"slices"
	"sync"
	"unsafe"
)

// Options configures a [Fake].
type Options struct {
	// Devices that the machine has. Default 1.
	Devices int
	// Version of the driver. Default 13000.
	Version int
	// MemoryBytes of each device. Default 64 GiB, of which only what is
	// touched is real.
	MemoryBytes int64
	// Without are functions that this driver lacks, by their symbol.
	Without []string
}

// Fake is the driver. One test at a time has it.
type Fake struct{ without []string }

var turn sync.Mutex

// New takes the fake and resets it. [Fake.Close] passes it on.
func New(o Options) *Fake {
	turn.Lock()
	if o.Devices < 1 {
		o.Devices = 1
	}
	if o.Version < 1 {
		o.Version = 13000
	}
	if o.MemoryBytes < 1 {
		o.MemoryBytes = 64 << 30
	}
	C.lmc_fake_reset()
	C.lmc_fake_start(C.int(o.Devices), C.int(o.Version), C.uint64_t(o.MemoryBytes))
	return &Fake{without: o.Without}
}

// Close ends everything: streams that wait for ever too, whose waiting calls
// return CUDA_ERROR_DEINITIALIZED.
func (f *Fake) Close() {
	C.lmc_fake_reset()
	turn.Unlock()
}

// Symbol is for cuda.LoadOptions.
func (f *Fake) Symbol(name string) unsafe.Pointer {
	if slices.Contains(f.without, name) {
		return nil
	}
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return C.lmc_fake_symbol(s)
}

// Fail makes the n-th call of a function from now on fail with a result,
// counting from 1; "" counts calls of all functions. 0 takes it back.
func (f *Fake) Fail(symbol string, nth int, result int) {
	s := C.CString(symbol)
	defer C.free(unsafe.Pointer(s))
	C.lmc_fake_fail(s, C.int64_t(nth), C.int(result))
}

// Calls so far of a function, or of all for "". Calls of an unknown function
// are -1.
func (f *Fake) Calls(symbol string) int {
	s := C.CString(symbol)
	defer C.free(unsafe.Pointer(s))
	return int(C.lmc_fake_calls(s))
}

// NoCopies leaves bytes where they are, for measurements of everything else.
func (f *Fake) NoCopies() { C.lmc_fake_no_copies(1) }

// Live counts what exists: holds of contexts, and objects.
type Live struct {
	Contexts, Streams, Events, Allocations, Mappings, Registrations, HostAllocations, Modules, Segments int
}

// Live objects of this process.
func (f *Fake) Live() Live {
	l := C.lmc_fake_live()
	return Live{
		int(l.contexts), int(l.streams), int(l.events), int(l.allocations), int(l.mappings),
		int(l.registrations), int(l.host_allocations), int(l.modules), int(l.segments),
	}
}

// Export makes memory as a process with that pid would, in this process. The
// bytes are the memory.
func (f *Fake) Export(pid int, n int64) (handle [64]byte, memory []byte) {
	var address C.uint64_t
	if C.lmc_fake_export(C.int64_t(pid), C.uint64_t(n), (*C.uchar)(&handle[0]), &address) < 0 {
		panic("fakecuda: no memory for an export")
	}
	p := uintptr(address)
	return handle, unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// ExportEvent makes a recorded event as a process with that pid would. It fires
// when fire is called; never calling it is a process that died.
func (f *Fake) ExportEvent(pid int) (handle [64]byte, fire func()) {
	slot := C.lmc_fake_export_event(C.int64_t(pid), (*C.uchar)(&handle[0]))
	if slot < 0 {
		panic("fakecuda: no event for an export")
	}
	return handle, func() { C.lmc_fake_fire(slot) }
}

// Fired says whether an event that the code under test exported has fired, as
// another process would see it.
func (f *Fake) Fired(handle [64]byte) bool {
	return C.lmc_fake_event_done((*C.uchar)(&handle[0])) == 1
}
