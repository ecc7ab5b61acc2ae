//go:build !linux || !cgo

package capi

import "github.com/lmcache-go/lmcache-go/internal/dl"

// Lib is never made by this build, so none of its methods is ever called.
type Lib struct {
	Major, Minor, Patch             int
	ExactStatus, CustomParam, Views bool
}

var errNone = &CallError{Status: Backend}

// Open fails: this build cannot load libraries.
func Open(string) (*Lib, error) { return nil, dl.ErrUnsupported }

// IsGoMemory cannot tell.
func IsGoMemory(uintptr) (isGo, ok bool) { return false, false }

// The pure functions below are reached only through an agent.

func Cover([]Desc, []Range, []uint8) (int, uint64)                 { return 0, 0 }
func Expand([]Stride, []Desc) int                                  { return 0 }
func FirstUnequal([]Desc, []Desc) int                              { return 0 }
func FirstOutside([]int32, int) int                                { return 0 }
func Merge(a, b Side, _ bool) (outA, outB []Desc)                  { return a.Descs, b.Descs }
func SortIndex(a, b []int32) (outA, outB []int32)                  { return a, b }
func ThreadCPU() int64                                             { return 0 }
func (*Lib) Path() string                                          { return "" }
func (*Lib) EnableCUDA(int) error                                  { return dl.ErrUnsupported }
func (*Lib) CreateAgent(string, AgentConfig) (uintptr, *CallError) { return 0, errNone }
func (*Lib) DestroyAgent(uintptr) *CallError                       { return errNone }
func (*Lib) Connect(uintptr, string, uintptr) *CallError           { return errNone }
func (*Lib) Plugins(uintptr) ([]string, *CallError)                { return nil, errNone }
func (*Lib) PluginInfo(uintptr, string) (uint32, map[string]string, *CallError) {
	return 0, nil, errNone
}

func (*Lib) CreateBackend(uintptr, string, map[string]string, int) (uintptr, *CallError) {
	return 0, errNone
}

func (*Lib) BackendInfo(uintptr, uintptr) (uint32, map[string]string, *CallError) {
	return 0, nil, errNone
}
func (*Lib) DestroyBackend(uintptr)                                        {}
func (*Lib) Register(uintptr, uintptr, int, []Desc, [][]byte) *CallError   { return errNone }
func (*Lib) Deregister(uintptr, uintptr, int, []Desc, [][]byte) *CallError { return errNone }
func (*Lib) Query(uintptr, uintptr, int, []Desc, [][]byte) ([]map[string]string, *CallError) {
	return nil, errNone
}
func (*Lib) LocalMD(uintptr) ([]byte, *CallError) { return nil, errNone }
func (*Lib) PartialMD(uintptr, uintptr, int, []Desc, [][]byte) ([]byte, *CallError) {
	return nil, errNone
}
func (*Lib) LoadMD(uintptr, []byte) (string, *CallError) { return "", errNone }
func (*Lib) Invalidate(uintptr, string) *CallError       { return errNone }
func (*Lib) CheckMD(uintptr, string, int, []Desc) bool   { return false }
func (*Lib) SendMD(uintptr, string, uint16) *CallError   { return errNone }
func (*Lib) SendPartialMD(uintptr, uintptr, int, []Desc, [][]byte, string, uint16) *CallError {
	return errNone
}
func (*Lib) FetchMD(uintptr, string, string, uint16) *CallError { return errNone }
func (*Lib) WithdrawMD(uintptr, string, uint16) *CallError      { return errNone }
func (*Lib) Prep(uintptr, string, uintptr, int, []Desc) (uintptr, *CallError) {
	return 0, errNone
}
func (*Lib) ReleasePrep(uintptr, uintptr) {}
func (*Lib) MakeXfer(uintptr, int, uintptr, []int32, uintptr, []int32, *XferOptions) (uintptr, *CallError) {
	return 0, errNone
}

func (*Lib) CreateXfer(uintptr, int, *Side, *Side, string, *XferOptions) (uintptr, int, *CallError) {
	return 0, 0, errNone
}
func (*Lib) ReleaseXfer(uintptr, uintptr) *CallError            { return errNone }
func (*Lib) Telemetry(uintptr, uintptr) (Telemetry, *CallError) { return Telemetry{}, errNone }
func (*Lib) Estimate(uintptr, uintptr) (usec, marginUsec int64, err *CallError) {
	return 0, 0, errNone
}
func (*Lib) Drain(uintptr) ([]byte, int, *CallError)            { return nil, 0, errNone }
func (*Lib) Notify(uintptr, string, []byte, uintptr) *CallError { return errNone }
func (*Lib) LocalView(uintptr, uintptr, int, []Desc) (uintptr, *CallError) {
	return 0, errNone
}

func (*Lib) RemoteView(uintptr, uintptr, int, []Desc, []string) (uintptr, *CallError) {
	return 0, errNone
}
func (*Lib) ReleaseView(uintptr, uintptr) *CallError { return errNone }

func (*Lib) Hot(uintptr) Hot                            { return Hot{} }
func (Hot) Post(uintptr, int) Result                    { return Backend }
func (Hot) PostNotif(uintptr, []byte, bool, int) Result { return Backend }
func (Hot) Status(uintptr) Result                       { return Backend }
func (Hot) Wait(uintptr, int64) Result                  { return Backend }
func (Hot) StatusMany([]uintptr, []Result)              {}
func (*Lib) DestroySpare(uintptr)                       {}
