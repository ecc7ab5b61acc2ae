//go:build linux && cgo

package capi

// #include "capi.h"
import "C"

import (
	"unsafe"
)

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
