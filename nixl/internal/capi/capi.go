//go:build linux && cgo

package capi

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror
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
// #cgo noescape nx_cover
// #cgo nocallback nx_cover
// #cgo noescape nx_pairs_equal
// #cgo nocallback nx_pairs_equal
// #cgo noescape nx_index_bounds
// #cgo nocallback nx_index_bounds
// #cgo noescape nx_drain
// #cgo nocallback nx_drain
// #cgo noescape nx_notify
// #cgo nocallback nx_notify
// #cgo noescape nx_make
// #cgo nocallback nx_make
// #include <stdlib.h>
// #include "capi.h"
import "C"

import (
	"errors"
	"runtime"
	"strings"
	"unsafe"

	"github.com/lmcache-go/lmcache-go/internal/dl"
)

// Lib is one loaded library. It is never unloaded: its plugins stay mapped and
// its threads may run.
type Lib struct {
	c    *C.struct_nx
	n    C.uintptr_t // c as a number
	path string

	// Version of the C API; 0.0.0 when the library has no version function.
	Major, Minor, Patch int
	// ExactStatus tells whether C++ status codes can be asked for.
	ExactStatus bool
	// CustomParam, Views tell whether these optional functions are there.
	CustomParam, Views bool
}

// exactStatusSymbol is nixlAgent::getXferStatus(nixlXferReqH*) const.
const exactStatusSymbol = "_ZNK9nixlAgent13getXferStatusEP12nixlXferReqH"

// Open loads the library at path, or whatever the loader finds for a plain
// file name. The error is a *dl.Error, a *MissingError, or says why the
// library was refused.
func Open(path string) (*Lib, error) {
	handle, err := dl.Open(path, 0)
	if err != nil {
		return nil, err
	}
	l := &Lib{c: (*C.struct_nx)(C.calloc(1, C.sizeof_struct_nx)), path: handle.Path()}
	if l.c == nil {
		return nil, errors.New("out of memory")
	}
	l.n = C.uintptr_t(uintptr(unsafe.Pointer(l.c)))
	var missing, since []string
	for i := range C.nx_symbol_count() {
		name := C.GoString(C.nx_symbol_name(i))
		address, err := handle.Symbol(name)
		if err == nil {
			C.nx_symbol_set(l.c, i, address)
			continue
		}
		switch C.nx_symbol_need(i) {
		case C.NX_REQUIRED:
			missing = append(missing, name)
		case C.NX_SINCE_VERSION:
			since = append(since, name)
		}
	}
	if len(missing) > 0 {
		return nil, &MissingError{Symbols: missing}
	}
	if C.nx_is_stub(l.c) != 0 {
		return nil, errors.New("it is a stub that was built in place of NIXL")
	}
	var major, minor, patch C.int
	if C.nx_version(l.c, &major, &minor, &patch) != 0 {
		l.Major, l.Minor, l.Patch = int(major), int(minor), int(patch)
		if l.Major > 0 || l.Minor > 1 {
			return nil, &VersionError{l.Major, l.Minor, l.Patch}
		}
		if len(since) > 0 {
			return nil, &MissingError{Symbols: since}
		}
		l.c.layout = C.NX_LAYOUT_0_1
	}
	if address, err := handle.Symbol(exactStatusSymbol); err == nil {
		C.nx_set_exact_status(l.c, address)
		l.ExactStatus = true
	}
	l.CustomParam = l.c.opt_args_set_custom_param != nil
	l.Views = l.c.prep_mem_view_local != nil && l.c.prep_mem_view_remote != nil && l.c.release_mem_view != nil &&
		l.c.create_remote_dlist != nil && l.c.destroy_remote_dlist != nil && l.c.remote_dlist_add_desc != nil
	return l, nil
}

// Path is the file that the loader mapped.
func (l *Lib) Path() string { return l.path }

// EnableCUDA makes the primary context of a device available to calls on its
// memory. The driver library is loaded when it is not there yet.
func (l *Lib) EnableCUDA(ordinal int) error {
	if l.c.cuda.get_current == nil {
		if err := l.bindCUDA(); err != nil {
			return err
		}
	}
	if status := C.nx_cuda_retain(l.c, C.int(ordinal)); status != 0 {
		return &CUDAError{Call: "cuDevicePrimaryCtxRetain", Result: int(status)}
	}
	return nil
}

func (l *Lib) bindCUDA() error {
	driver, err := dl.Open("libcuda.so.1", 0)
	if err != nil {
		return err
	}
	names := []string{"cuCtxGetCurrent", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuInit"}
	var f [6]unsafe.Pointer
	for i, name := range names {
		if f[i], err = driver.Symbol(name); err != nil {
			return err
		}
	}
	result, err := dl.Call(f[5], 0)
	if err != nil {
		return err
	}
	if r := int32(result); r != 0 {
		return &CUDAError{Call: "cuInit", Result: int(r)}
	}
	C.nx_cuda_set(l.c, f[0], f[1], f[2], f[3], f[4])
	return nil
}

func (l *Lib) err(e *C.struct_nx_err) *CallError {
	return &CallError{Status: int32(e.status), Native: int32(e.native), Text: strings.TrimSpace(C.GoString(&e.text[0]))}
}

func (l *Lib) done(status C.int, e *C.struct_nx_err) *CallError {
	if status == Success || status == InProgress {
		return nil
	}
	return l.err(e)
}

func take(b *C.struct_nx_bytes) []byte {
	defer C.nx_free(b)
	if b.len == 0 {
		return nil
	}
	return append([]byte(nil), unsafe.Slice((*byte)(b.data), int(b.len))...)
}

// cstr returns s as a C string in Go memory, good for one call.
func cstr(s string) *C.char {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return (*C.char)(unsafe.Pointer(&b[0]))
}

// CreateAgent makes an agent.
func (l *Lib) CreateAgent(name string, c AgentConfig) (uintptr, *CallError) {
	b := func(v bool) C.int32_t {
		if v {
			return 1
		}
		return 0
	}
	config := C.struct_nx_agent_config{
		progress: b(c.Progress), listen: b(c.Listen), telemetry: b(c.Telemetry), sync: C.int32_t(c.Sync),
		port: C.uint32_t(c.Port), progress_delay_usec: C.uint64_t(c.ProgressDelay), listen_delay_usec: C.uint64_t(c.ListenDelay),
	}
	var e C.struct_nx_err
	agent := C.nx_agent_create(l.c, cstr(name), &config, &e)
	if agent == 0 {
		return 0, l.err(&e)
	}
	return uintptr(agent), nil
}

// DestroyAgent ends an agent; it joins the agent's threads.
func (l *Lib) DestroyAgent(agent uintptr) *CallError {
	var e C.struct_nx_err
	return l.done(C.nx_agent_destroy(l.c, C.uintptr_t(agent), &e), &e)
}

// Connect connects to a remote now.
func (l *Lib) Connect(agent uintptr, remote string, backend uintptr) *CallError {
	var e C.struct_nx_err
	return l.done(C.nx_connect(l.c, C.uintptr_t(agent), cstr(remote), C.uintptr_t(backend), &e), &e)
}

func splitNames(data []byte) []string {
	if len(data) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
}

// splitParams reads key, value, key, value, each ended by NUL. An empty value
// leaves two NULs in a row.
func splitParams(data []byte) map[string]string {
	return toMap(splitNames(data))
}

// Plugins lists the plugins of the library.
func (l *Lib) Plugins(agent uintptr) ([]string, *CallError) {
	var e C.struct_nx_err
	var b C.struct_nx_bytes
	if err := l.done(C.nx_plugins(l.c, C.uintptr_t(agent), &b, &e), &e); err != nil {
		return nil, err
	}
	return splitNames(take(&b)), nil
}

// PluginInfo loads a plugin and tells its memory types (a bit set) and
// parameters with their defaults.
func (l *Lib) PluginInfo(agent uintptr, plugin string) (uint32, map[string]string, *CallError) {
	var e C.struct_nx_err
	var b C.struct_nx_bytes
	var mems C.uint32_t
	if err := l.done(C.nx_plugin_info(l.c, C.uintptr_t(agent), cstr(plugin), &mems, &b, &e), &e); err != nil {
		return 0, nil, err
	}
	return uint32(mems), splitParams(take(&b)), nil
}

// CreateBackend makes the backend of a plugin.
func (l *Lib) CreateBackend(agent uintptr, plugin string, params map[string]string, cudaDevice int) (uintptr, *CallError) {
	var flat []byte
	for k, v := range params {
		flat = append(append(append(append(flat, k...), 0), v...), 0)
	}
	n := len(flat)
	flat = append(flat, 0)
	var e C.struct_nx_err
	backend := C.nx_backend_create(l.c, C.uintptr_t(agent), cstr(plugin), (*C.char)(unsafe.Pointer(&flat[0])), C.size_t(n), C.int(cudaDevice), &e)
	if backend == 0 {
		return 0, l.err(&e)
	}
	return uintptr(backend), nil
}

// BackendInfo tells memory types and parameters of a backend.
func (l *Lib) BackendInfo(agent, backend uintptr) (uint32, map[string]string, *CallError) {
	var e C.struct_nx_err
	var b C.struct_nx_bytes
	var mems C.uint32_t
	if err := l.done(C.nx_backend_info(l.c, C.uintptr_t(agent), C.uintptr_t(backend), &mems, &b, &e), &e); err != nil {
		return 0, nil, err
	}
	return uint32(mems), splitParams(take(&b)), nil
}

// DestroyBackend frees the handle; the backend lives as long as its agent.
func (l *Lib) DestroyBackend(backend uintptr) { C.nx_backend_destroy(l.c, C.uintptr_t(backend)) }

// regions holds the C view of descriptors with metadata for one call.
type regions struct {
	d     *C.struct_nx_desc
	n     C.size_t
	metas *C.char
	lens  *C.size_t
}

func flatten(descs []Desc, metas [][]byte) regions {
	r := regions{d: descPtr(descs), n: C.size_t(len(descs))}
	if len(metas) == 0 {
		return r
	}
	lens := make([]C.size_t, len(metas))
	flat := make([]byte, 0, 64)
	for i, m := range metas {
		lens[i] = C.size_t(len(m))
		flat = append(flat, m...)
	}
	flat = append(flat, 0)
	r.metas, r.lens = (*C.char)(unsafe.Pointer(&flat[0])), &lens[0]
	return r
}

func descPtr(descs []Desc) *C.struct_nx_desc {
	return (*C.struct_nx_desc)(unsafe.Pointer(unsafe.SliceData(descs)))
}

func rangePtr(ranges []Range) *C.struct_nx_range {
	return (*C.struct_nx_range)(unsafe.Pointer(unsafe.SliceData(ranges)))
}

// Register hands memory to one backend.
func (l *Lib) Register(agent, backend uintptr, mem int, descs []Desc, metas [][]byte) *CallError {
	var e C.struct_nx_err
	r := flatten(descs, metas)
	return l.done(C.nx_register(l.c, C.uintptr_t(agent), C.uintptr_t(backend), C.int(mem), r.d, r.n, r.metas, r.lens, &e), &e)
}

// Deregister takes memory back; the arguments must equal those of Register.
func (l *Lib) Deregister(agent, backend uintptr, mem int, descs []Desc, metas [][]byte) *CallError {
	var e C.struct_nx_err
	r := flatten(descs, metas)
	return l.done(C.nx_deregister(l.c, C.uintptr_t(agent), C.uintptr_t(backend), C.int(mem), r.d, r.n, r.metas, r.lens, &e), &e)
}

// Query asks a backend about files, objects or memory. A nil map means: not
// there.
func (l *Lib) Query(agent, backend uintptr, mem int, descs []Desc, metas [][]byte) ([]map[string]string, *CallError) {
	var e C.struct_nx_err
	var b C.struct_nx_bytes
	r := flatten(descs, metas)
	if err := l.done(C.nx_query(l.c, C.uintptr_t(agent), C.uintptr_t(backend), C.int(mem), r.d, r.n, r.metas, r.lens, &b, &e), &e); err != nil {
		return nil, err
	}
	return splitAnswers(take(&b)), nil
}

// LocalMD returns the agent's metadata.
func (l *Lib) LocalMD(agent uintptr) ([]byte, *CallError) {
	var e C.struct_nx_err
	var b C.struct_nx_bytes
	if err := l.done(C.nx_local_md(l.c, C.uintptr_t(agent), &b, &e), &e); err != nil {
		return nil, err
	}
	return take(&b), nil
}

// PartialMD returns metadata of some regions, or of the connections only.
func (l *Lib) PartialMD(agent, backend uintptr, mem int, descs []Desc, metas [][]byte) ([]byte, *CallError) {
	var e C.struct_nx_err
	var b C.struct_nx_bytes
	r := flatten(descs, metas)
	if err := l.done(C.nx_partial_md(l.c, C.uintptr_t(agent), C.uintptr_t(backend), C.int(mem), r.d, r.n, r.metas, r.lens, &b, &e), &e); err != nil {
		return nil, err
	}
	return take(&b), nil
}

// LoadMD loads a peer's metadata and returns the peer's name.
func (l *Lib) LoadMD(agent uintptr, blob []byte) (string, *CallError) {
	var e C.struct_nx_err
	var b C.struct_nx_bytes
	status := C.nx_load_md(l.c, C.uintptr_t(agent), unsafe.Pointer(unsafe.SliceData(blob)), C.size_t(len(blob)), &b, &e)
	if err := l.done(status, &e); err != nil {
		return "", err
	}
	return string(take(&b)), nil
}

// Invalidate forgets a peer.
func (l *Lib) Invalidate(agent uintptr, remote string) *CallError {
	var e C.struct_nx_err
	return l.done(C.nx_invalidate(l.c, C.uintptr_t(agent), cstr(remote), &e), &e)
}

// CheckMD tells whether a peer is known and, with descriptors, covers them.
func (l *Lib) CheckMD(agent uintptr, remote string, mem int, descs []Desc) bool {
	var e C.struct_nx_err
	return C.nx_check_md(l.c, C.uintptr_t(agent), cstr(remote), C.int(mem), descPtr(descs), C.size_t(len(descs)), &e) == 1
}

// route returns nil for the metadata server.
func route(ip string) *C.char {
	if ip == "" {
		return nil
	}
	return cstr(ip)
}

// SendMD sends the agent's metadata to a peer's listener, or with ip "" to the
// metadata server.
func (l *Lib) SendMD(agent uintptr, ip string, port uint16) *CallError {
	var e C.struct_nx_err
	return l.done(C.nx_send_md(l.c, C.uintptr_t(agent), route(ip), C.uint16_t(port), &e), &e)
}

// SendPartialMD sends part of the metadata.
func (l *Lib) SendPartialMD(agent, backend uintptr, mem int, descs []Desc, metas [][]byte, ip string, port uint16) *CallError {
	var e C.struct_nx_err
	r := flatten(descs, metas)
	return l.done(C.nx_send_partial_md(l.c, C.uintptr_t(agent), C.uintptr_t(backend), C.int(mem), r.d, r.n, r.metas, r.lens,
		route(ip), C.uint16_t(port), &e), &e)
}

// FetchMD asks a listener, or the metadata server, for a peer's metadata. It
// arrives later.
func (l *Lib) FetchMD(agent uintptr, remote, ip string, port uint16) *CallError {
	var e C.struct_nx_err
	return l.done(C.nx_fetch_md(l.c, C.uintptr_t(agent), cstr(remote), route(ip), C.uint16_t(port), &e), &e)
}

// WithdrawMD tells a peer, or the metadata server, to forget this agent.
func (l *Lib) WithdrawMD(agent uintptr, ip string, port uint16) *CallError {
	var e C.struct_nx_err
	return l.done(C.nx_withdraw_md(l.c, C.uintptr_t(agent), route(ip), C.uint16_t(port), &e), &e)
}

// Cover returns how many descriptors, from the first, lie in one of the ranges
// each; it marks the ranges met and adds up the bytes.
func Cover(descs []Desc, ranges []Range, used []uint8) (n int, bytes uint64) {
	if len(descs) == 0 || len(ranges) == 0 {
		return 0, 0
	}
	var sum C.uint64_t
	covered := C.nx_cover(descPtr(descs), C.size_t(len(descs)), rangePtr(ranges), C.size_t(len(ranges)),
		(*C.uint8_t)(unsafe.Pointer(&used[0])), &sum)
	return int(covered), uint64(sum)
}

// Expand writes the blocks of strides to out, which must hold them all.
func Expand(strides []Stride, out []Desc) int {
	return int(C.nx_expand((*C.struct_nx_stride)(unsafe.Pointer(unsafe.SliceData(strides))), C.size_t(len(strides)), descPtr(out), C.size_t(len(out))))
}

// FirstUnequal returns the index of the first pair of unequal lengths, or the
// number of pairs.
func FirstUnequal(a, b []Desc) int {
	return int(C.nx_pairs_equal(descPtr(a), descPtr(b), C.size_t(min(len(a), len(b)))))
}

// FirstOutside returns the index of the first entry outside [0, limit), or
// len(idx).
func FirstOutside(idx []int32, limit int) int {
	return int(C.nx_index_bounds((*C.int32_t)(unsafe.Pointer(unsafe.SliceData(idx))), C.size_t(len(idx)), C.int32_t(limit)))
}

// Merge joins neighbours as CreateXfer does; it is here for tests and tools.
func Merge(a, b Side, sort bool) (outA, outB []Desc) {
	n := len(a.Descs)
	if n == 0 {
		return nil, nil
	}
	outA, outB = make([]Desc, n), make([]Desc, n)
	flag := C.int(0)
	if sort {
		flag = 1
	}
	left := C.nx_merge(descPtr(a.Descs), descPtr(b.Descs), C.size_t(n), rangePtr(a.Ranges), C.size_t(len(a.Ranges)),
		rangePtr(b.Ranges), C.size_t(len(b.Ranges)), flag, descPtr(outA), descPtr(outB))
	return outA[:left], outB[:left]
}

// SortIndex orders index pairs by the first, as MakeXfer does; it is here for
// tests.
func SortIndex(a, b []int32) (outA, outB []int32) {
	outA, outB = make([]int32, len(a)), make([]int32, len(a))
	p := func(s []int32) *C.int32_t { return (*C.int32_t)(unsafe.Pointer(unsafe.SliceData(s))) }
	if C.nx_sort_index(p(a), p(b), C.size_t(len(a)), p(outA), p(outB)) == 0 {
		return a, b
	}
	return outA, outB
}

// Prep prepares a list: remote "" is the local side.
func (l *Lib) Prep(agent uintptr, remote string, backend uintptr, mem int, descs []Desc) (uintptr, *CallError) {
	var e C.struct_nx_err
	handle := C.nx_prep(l.c, C.uintptr_t(agent), cstr(remote), C.uintptr_t(backend), C.int(mem), descPtr(descs), C.size_t(len(descs)), &e)
	if handle == 0 {
		return 0, l.err(&e)
	}
	return uintptr(handle), nil
}

// ReleasePrep frees a prepared list.
func (l *Lib) ReleasePrep(agent, handle uintptr) {
	C.nx_prep_release(l.c, C.uintptr_t(agent), C.uintptr_t(handle))
}

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
func (l *Lib) CreateXfer(agent uintptr, op int, local, remote Side, name string, o *XferOptions) (uintptr, int, *CallError) {
	var e C.struct_nx_err
	var c C.struct_nx_xfer_opt
	var made C.size_t
	var pin runtime.Pinner
	defer pin.Unpin()
	o.fill(&c, &pin)
	side := func(s Side) C.struct_nx_side {
		pin.Pin(&s.Descs[0])
		out := C.struct_nx_side{descs: descPtr(s.Descs), mem: C.int32_t(s.Mem)}
		if len(s.Ranges) > 0 {
			pin.Pin(&s.Ranges[0])
			out.ranges, out.range_count = rangePtr(s.Ranges), C.size_t(len(s.Ranges))
		}
		return out
	}
	a, b := side(local), side(remote)
	req := C.nx_create(l.c, C.uintptr_t(agent), C.int(op), &a, &b, C.size_t(len(local.Descs)), cstr(name), &c, &made, &e)
	if req == 0 {
		return 0, int(made), l.err(&e)
	}
	return uintptr(req), int(made), nil
}

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

// LocalView prepares a view of local memory for transfers that a GPU starts.
func (l *Lib) LocalView(agent, backend uintptr, mem int, descs []Desc) (uintptr, *CallError) {
	var e C.struct_nx_err
	view := C.nx_view_local(l.c, C.uintptr_t(agent), C.uintptr_t(backend), C.int(mem), descPtr(descs), C.size_t(len(descs)), &e)
	if view == 0 {
		return 0, l.err(&e)
	}
	return uintptr(view), nil
}

// RemoteView prepares a view of peers' memory; names holds the peer of each
// descriptor.
func (l *Lib) RemoteView(agent, backend uintptr, mem int, descs []Desc, names []string) (uintptr, *CallError) {
	var e C.struct_nx_err
	var flat []byte
	offsets := make([]C.uint32_t, len(descs)+1)
	for i, name := range names {
		offsets[i] = C.uint32_t(len(flat))
		flat = append(append(flat, name...), 0)
	}
	flat = append(flat, 0)
	view := C.nx_view_remote(l.c, C.uintptr_t(agent), C.uintptr_t(backend), C.int(mem), descPtr(descs), C.size_t(len(descs)),
		(*C.char)(unsafe.Pointer(&flat[0])), &offsets[0], &e)
	if view == 0 {
		return 0, l.err(&e)
	}
	return uintptr(view), nil
}

// ReleaseView frees a view.
func (l *Lib) ReleaseView(agent, view uintptr) *CallError {
	var e C.struct_nx_err
	return l.done(C.nx_view_release(l.c, C.uintptr_t(agent), C.uintptr_t(view), &e), &e)
}

// ThreadCPU is the CPU time of the calling thread in nanoseconds.
func ThreadCPU() int64 { return int64(C.nx_thread_cpu_nsec()) }

// sizes lets a test compare the layouts of both sides.
func sizes() map[string][2]uintptr {
	return map[string][2]uintptr{
		"desc":   {unsafe.Sizeof(Desc{}), C.sizeof_struct_nx_desc},
		"stride": {unsafe.Sizeof(Stride{}), C.sizeof_struct_nx_stride},
		"range":  {unsafe.Sizeof(Range{}), C.sizeof_struct_nx_range},
	}
}
