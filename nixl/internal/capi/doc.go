// Package capi is the lowest layer of package nixl: the table of C functions
// that a NIXL library exports, and one C helper for each step of the API, so
// that a step is one crossing from Go to C whatever it carries.
//
// Handles are plain numbers here, nothing is counted, locked or checked: all of
// that is package nixl's. Memory never stays with the library beyond a call,
// except what is registered.
package capi

import "fmt"

// Statuses of NIXL 1.5.1's C API. Codes of later versions are folded into
// these, with the C++ code beside them.
const (
	Success      = 0
	InProgress   = 1
	InvalidParam = -1
	Backend      = -2
	InvalidState = -3
	Exception    = -4
	NoTelemetry  = -5
	NotFound     = -6
	NoMemory     = -100 // ours: the C heap is exhausted
	Unequal      = -101 // ours: a pair of descriptors of unequal lengths
	Uncovered    = -102 // ours: a descriptor outside the ranges
)

// CallError is what a failed call answered.
type CallError struct {
	Status int32  // C API 1.5.1 numbering
	Native int32  // of the C++ library; 0 when unknown
	Text   string // of the library, "" when it gives none
}

// Error is for logs; package nixl turns an Err into its own error.
func (e *CallError) Error() string {
	return fmt.Sprintf("status %d (native %d) %s", e.Status, e.Native, e.Text)
}

// Result is a status with the C++ library's code in the upper half.
type Result int64

// Status is the C status.
func (r Result) Status() int32 { return int32(uint32(uint64(r))) }

// Native is the C++ status, 0 when unknown.
func (r Result) Native() int32 { return int32(uint32(uint64(r) >> 32)) }

// Desc is one span of memory.
type Desc struct{ Addr, Len, Dev uint64 }

// Stride is a row of Count blocks of Len bytes, Stride bytes apart.
type Stride struct{ Addr, Len, Dev, Stride, Count uint64 }

// Range is one registered region.
type Range struct{ Dev, Start, End uint64 }

// AgentConfig configures a new agent. Delays are in microseconds.
type AgentConfig struct {
	Progress, Listen, Telemetry bool
	Sync                        int32
	Port                        uint16
	ProgressDelay, ListenDelay  uint64
}

// Telemetry of one finished transfer.
type Telemetry struct{ StartUsec, PostUsec, XferUsec, Bytes, Descs uint64 }

// MissingError lists what a library lacks.
type MissingError struct{ Symbols []string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("%d functions are missing, the first is %s", len(e.Symbols), e.Symbols[0])
}

// XferOptions go with the making of a transfer.
type XferOptions struct {
	Backend    uintptr
	HasNotif   bool
	Notif      []byte
	Custom     []byte
	SkipMerge  bool
	Sort       bool
	CUDADevice int // -1: none
}

// Side is one side of a transfer that is made from descriptors.
type Side struct {
	Mem    int
	Descs  []Desc
	Ranges []Range
	Spare  uintptr // an empty list to fill, 0 for none; CreateXfer puts one for the next time here
}

// Hot is a library and an agent as two numbers: posting and polling touch
// nothing else of either, which counts where each transfer is a system call and
// leaves the processor's caches cold.
type Hot struct{ lib, agent uintptr }
