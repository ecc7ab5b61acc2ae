//go:build linux && cgo

package capi

// #cgo noescape nx_post
// #cgo nocallback nx_post
// #cgo noescape nx_post_notif
// #cgo nocallback nx_post_notif
// #cgo noescape nx_status
// #cgo nocallback nx_status
// #cgo noescape nx_wait
// #cgo nocallback nx_wait
// #cgo noescape nx_status_many
// #cgo nocallback nx_status_many
// #cgo noescape nx_drain
// #cgo nocallback nx_drain
// #cgo noescape nx_notify
// #cgo nocallback nx_notify
// #cgo noescape nx_make
// #cgo nocallback nx_make
// #include "capi.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// fill puts the options where C finds them. The pins hold the bytes in place
// for the call: a Go pointer inside a struct that is passed to C needs one.
func (o *XferOptions) fill(c *C.struct_nx_xfer_opt, pin *runtime.Pinner) {
	c.backend, c.cuda_device = C.uintptr_t(o.Backend), C.int32_t(o.CUDADevice)
	if o.HasNotif {
		c.flags |= C.NX_HAS_NOTIF
		if len(o.Notif) > 0 {
			pin.Pin(&o.Notif[0])
			c.notif, c.notif_len = unsafe.Pointer(&o.Notif[0]), C.size_t(len(o.Notif))
		}
	}
	if len(o.Custom) > 0 {
		pin.Pin(&o.Custom[0])
		c.custom, c.custom_len = unsafe.Pointer(&o.Custom[0]), C.size_t(len(o.Custom))
	}
	if o.SkipMerge {
		c.flags |= C.NX_SKIP_MERGE
	}
	if o.Sort {
		c.flags |= C.NX_SORT
	}
}

// MakeXfer makes a transfer from two prepared lists and index lists of equal,
// non-zero length.
func (l *Lib) MakeXfer(agent uintptr, op int, local uintptr, li []int32, remote uintptr, ri []int32, o *XferOptions) (uintptr, *CallError) {
	var e C.struct_nx_err
	var c C.struct_nx_xfer_opt
	var pin runtime.Pinner
	defer pin.Unpin()
	o.fill(&c, &pin)
	req := C.nx_make(l.c, C.uintptr_t(agent), C.int(op), C.uintptr_t(local), (*C.int32_t)(unsafe.Pointer(&li[0])),
		C.uintptr_t(remote), (*C.int32_t)(unsafe.Pointer(&ri[0])), C.size_t(len(li)), &c, &e)
	if req == 0 {
		return 0, l.err(&e)
	}
	return uintptr(req), nil
}

// CreateXfer makes a transfer from two lists of equal, non-zero length and
// tells how many pairs it has after joining neighbours.
func (l *Lib) CreateXfer(agent uintptr, op int, local, remote *Side, name string, o *XferOptions) (uintptr, int, *CallError) {
	var e C.struct_nx_err
	var c C.struct_nx_xfer_opt
	var made C.size_t
	var pin runtime.Pinner
	defer pin.Unpin()
	o.fill(&c, &pin)
	side := func(s *Side) C.struct_nx_side {
		pin.Pin(&s.Descs[0])
		out := C.struct_nx_side{descs: descPtr(s.Descs), mem: C.int32_t(s.Mem), spare: C.uintptr_t(s.Spare)}
		if len(s.Ranges) > 0 {
			pin.Pin(&s.Ranges[0])
			out.ranges, out.range_count = rangePtr(s.Ranges), C.size_t(len(s.Ranges))
		}
		return out
	}
	a, b := side(local), side(remote)
	req := C.nx_create(l.c, C.uintptr_t(agent), C.int(op), &a, &b, C.size_t(len(local.Descs)), cstr(name), &c, &made, &e)
	local.Spare, remote.Spare = uintptr(a.spare), uintptr(b.spare)
	if req == 0 {
		return 0, int(made), l.err(&e)
	}
	return uintptr(req), int(made), nil
}

// DestroySpare frees a list that CreateXfer left; 0 is none.
func (l *Lib) DestroySpare(spare uintptr) { C.nx_spare_destroy(l.c, C.uintptr_t(spare)) }

// Hot returns what the hot path needs of an agent.
func (l *Lib) Hot(agent uintptr) Hot { return Hot{uintptr(l.n), agent} }

// Post starts a transfer; cudaDevice is -1 without GPU memory.
func (h Hot) Post(req uintptr, cudaDevice int) Result {
	return Result(C.nx_post(C.uintptr_t(h.lib), C.uintptr_t(h.agent), C.uintptr_t(req), C.int(cudaDevice)))
}

// PostNotif starts a transfer with another notification than it was made with,
// or with none.
func (h Hot) PostNotif(req uintptr, notif []byte, has bool, cudaDevice int) Result {
	flag := C.int(0)
	if has {
		flag = 1
	}
	return Result(C.nx_post_notif(C.uintptr_t(h.lib), C.uintptr_t(h.agent), C.uintptr_t(req), unsafe.Pointer(unsafe.SliceData(notif)),
		C.size_t(len(notif)), flag, C.int(cudaDevice)))
}

// Status asks how a transfer stands.
func (h Hot) Status(req uintptr) Result {
	return Result(C.nx_status(C.uintptr_t(h.lib), C.uintptr_t(h.agent), C.uintptr_t(req)))
}

// Wait polls a transfer until it ends or spinNsec have passed; it holds the
// thread for that long.
func (h Hot) Wait(req uintptr, spinNsec int64) Result {
	return Result(C.nx_wait(C.uintptr_t(h.lib), C.uintptr_t(h.agent), C.uintptr_t(req), C.int64_t(spinNsec)))
}

// StatusMany asks for many transfers at once.
func (h Hot) StatusMany(reqs []uintptr, out []Result) {
	if len(reqs) == 0 {
		return
	}
	C.nx_status_many(C.uintptr_t(h.lib), C.uintptr_t(h.agent), (*C.uintptr_t)(unsafe.Pointer(&reqs[0])), C.size_t(len(reqs)), (*C.int64_t)(unsafe.Pointer(&out[0])))
}

// ReleaseXfer frees a transfer that is not running.
func (l *Lib) ReleaseXfer(agent, req uintptr) *CallError {
	var e C.struct_nx_err
	return l.done(C.nx_req_release(l.c, C.uintptr_t(agent), C.uintptr_t(req), &e), &e)
}

// Telemetry of a finished transfer.
func (l *Lib) Telemetry(agent, req uintptr) (Telemetry, *CallError) {
	var e C.struct_nx_err
	var t C.struct_nx_telemetry
	if err := l.done(C.nx_telemetry_get(l.c, C.uintptr_t(agent), C.uintptr_t(req), &t, &e), &e); err != nil {
		return Telemetry{}, err
	}
	return Telemetry{uint64(t.start_usec), uint64(t.post_usec), uint64(t.xfer_usec), uint64(t.bytes), uint64(t.descs)}, nil
}

// Estimate asks the backend what a transfer would take, in microseconds.
func (l *Lib) Estimate(agent, req uintptr) (usec, marginUsec int64, err *CallError) {
	var e C.struct_nx_err
	var u, m C.int64_t
	err = l.done(C.nx_estimate(l.c, C.uintptr_t(agent), C.uintptr_t(req), &u, &m, &e), &e)
	return int64(u), int64(m), err
}

// Drain takes all notifications that have arrived, in the form that
// SplitNotifs reads.
func (l *Lib) Drain(agent uintptr) ([]byte, int, *CallError) {
	var e C.struct_nx_err
	var b C.struct_nx_bytes
	var count C.size_t
	if err := l.done(C.nx_drain(l.c, C.uintptr_t(agent), &b, &count, &e), &e); err != nil {
		return nil, 0, err
	}
	return take(&b), int(count), nil
}

// Notify sends a message to a peer.
func (l *Lib) Notify(agent uintptr, remote string, msg []byte, backend uintptr) *CallError {
	var e C.struct_nx_err
	return l.done(C.nx_notify(l.c, C.uintptr_t(agent), cstr(remote), unsafe.Pointer(unsafe.SliceData(msg)), C.size_t(len(msg)), C.uintptr_t(backend), &e), &e)
}
