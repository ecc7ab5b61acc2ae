//go:build linux && cgo

package capi

// #cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror
// #include <stdlib.h>
// #include "capi.h"
import "C"

import (
	"errors"
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
		if err := l.bindCUDA("libcuda.so.1"); err != nil {
			return err
		}
	}
	if status := C.nx_cuda_retain(l.c, C.int(ordinal)); status != 0 {
		return &CUDAError{Call: "cuDevicePrimaryCtxRetain", Result: int(status)}
	}
	return nil
}

func (l *Lib) bindCUDA(path string) error {
	driver, err := dl.Open(path, 0)
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
