// Package capi is the C side of package cuda: the table of driver functions,
// one call for any of them, and one call for a whole request. Nothing here
// checks arguments or counts references; package cuda does.
package capi

// Func is a function of the driver, by its place in the table of driver.h.
type Func int32

// The functions.
const (
	Init Func = iota
	DriverGetVersion
	GetErrorName
	DeviceGetCount
	DeviceGet
	DeviceGetUUID
	DeviceGetName
	DeviceTotalMem
	DeviceGetAttribute
	DeviceGetPCIBusID
	DeviceCanAccessPeer
	CtxEnablePeerAccess
	DevicePrimaryCtxSetFlags
	DevicePrimaryCtxRetain
	DevicePrimaryCtxRelease
	CtxSetCurrent
	IpcGetMemHandle
	IpcOpenMemHandle
	IpcCloseMemHandle
	IpcGetEventHandle
	IpcOpenEventHandle
	EventCreate
	EventRecord
	EventQuery
	EventSynchronize
	EventElapsedTime
	EventDestroy
	StreamCreate
	StreamDestroy
	StreamWaitEvent
	StreamWaitValue64
	StreamWriteValue64
	StreamQuery
	StreamSynchronize
	MemHostRegister
	MemHostUnregister
	MemHostGetDevicePointer
	MemHostAlloc
	MemFreeHost
	MemAlloc
	MemFree
	MemGetAddressRange
	MemGetInfo
	MemsetD8Async
	MemcpyAsync
	Memcpy2DAsync
	MemcpyBatchAsyncV1
	MemcpyBatchAsyncV2
	ModuleLoadDataEx
	ModuleUnload
	ModuleGetFunction
	LaunchKernel
	MemImportFromShareableHandle
	MemExportToShareableHandle
	MemCreate
	MemRelease
	MemAddressReserve
	MemAddressFree
	MemMap
	MemUnmap
	MemSetAccess

	numFuncs
)

var names = [numFuncs]string{
	Init:                         "cuInit",
	DriverGetVersion:             "cuDriverGetVersion",
	GetErrorName:                 "cuGetErrorName",
	DeviceGetCount:               "cuDeviceGetCount",
	DeviceGet:                    "cuDeviceGet",
	DeviceGetUUID:                "cuDeviceGetUuid_v2",
	DeviceGetName:                "cuDeviceGetName",
	DeviceTotalMem:               "cuDeviceTotalMem_v2",
	DeviceGetAttribute:           "cuDeviceGetAttribute",
	DeviceGetPCIBusID:            "cuDeviceGetPCIBusId",
	DeviceCanAccessPeer:          "cuDeviceCanAccessPeer",
	CtxEnablePeerAccess:          "cuCtxEnablePeerAccess",
	DevicePrimaryCtxSetFlags:     "cuDevicePrimaryCtxSetFlags_v2",
	DevicePrimaryCtxRetain:       "cuDevicePrimaryCtxRetain",
	DevicePrimaryCtxRelease:      "cuDevicePrimaryCtxRelease_v2",
	CtxSetCurrent:                "cuCtxSetCurrent",
	IpcGetMemHandle:              "cuIpcGetMemHandle",
	IpcOpenMemHandle:             "cuIpcOpenMemHandle_v2",
	IpcCloseMemHandle:            "cuIpcCloseMemHandle",
	IpcGetEventHandle:            "cuIpcGetEventHandle",
	IpcOpenEventHandle:           "cuIpcOpenEventHandle",
	EventCreate:                  "cuEventCreate",
	EventRecord:                  "cuEventRecord",
	EventQuery:                   "cuEventQuery",
	EventSynchronize:             "cuEventSynchronize",
	EventElapsedTime:             "cuEventElapsedTime",
	EventDestroy:                 "cuEventDestroy_v2",
	StreamCreate:                 "cuStreamCreate",
	StreamDestroy:                "cuStreamDestroy_v2",
	StreamWaitEvent:              "cuStreamWaitEvent",
	StreamWaitValue64:            "cuStreamWaitValue64_v2",
	StreamWriteValue64:           "cuStreamWriteValue64_v2",
	StreamQuery:                  "cuStreamQuery",
	StreamSynchronize:            "cuStreamSynchronize",
	MemHostRegister:              "cuMemHostRegister_v2",
	MemHostUnregister:            "cuMemHostUnregister",
	MemHostGetDevicePointer:      "cuMemHostGetDevicePointer_v2",
	MemHostAlloc:                 "cuMemHostAlloc",
	MemFreeHost:                  "cuMemFreeHost",
	MemAlloc:                     "cuMemAlloc_v2",
	MemFree:                      "cuMemFree_v2",
	MemGetAddressRange:           "cuMemGetAddressRange_v2",
	MemGetInfo:                   "cuMemGetInfo_v2",
	MemsetD8Async:                "cuMemsetD8Async",
	MemcpyAsync:                  "cuMemcpyAsync",
	Memcpy2DAsync:                "cuMemcpy2DAsync_v2",
	MemcpyBatchAsyncV1:           "cuMemcpyBatchAsync",
	MemcpyBatchAsyncV2:           "cuMemcpyBatchAsync_v2",
	ModuleLoadDataEx:             "cuModuleLoadDataEx",
	ModuleUnload:                 "cuModuleUnload",
	ModuleGetFunction:            "cuModuleGetFunction",
	LaunchKernel:                 "cuLaunchKernel",
	MemImportFromShareableHandle: "cuMemImportFromShareableHandle",
	MemExportToShareableHandle:   "cuMemExportToShareableHandle",
	MemCreate:                    "cuMemCreate",
	MemRelease:                   "cuMemRelease",
	MemAddressReserve:            "cuMemAddressReserve",
	MemAddressFree:               "cuMemAddressFree",
	MemMap:                       "cuMemMap",
	MemUnmap:                     "cuMemUnmap",
	MemSetAccess:                 "cuMemSetAccess",
}

// String is the driver's symbol.
func (f Func) String() string {
	if f < 0 || f >= numFuncs {
		return "unknown function"
	}
	return names[f]
}

// Frame is lmc_frame: arguments and results of one call.
type Frame struct {
	Ctx  uint64
	In   [8]uint64
	Out  [2]uint64
	Blob [128]byte
}

// Directions of a [Job].
const (
	ToHost int32 = iota
	ToDevice
	Anywhere
)

// Ways to wait and to answer of a [Job].
const (
	SyncNone int32 = iota
	SyncEvent
	SyncTimeline
)

// Rect is lmc_rect, one 2-D copy.
type Rect struct{ Dst, Src, Width, Height, DstPitch, SrcPitch uint64 }

// What a failed [Job] left behind.
const (
	QueuedNothing int32 = iota
	// QueuedCopies: copies may be on their way, with DoneEvent behind them.
	QueuedCopies
	// QueuedUnmarked: and DoneEvent is not behind them.
	QueuedUnmarked
)

// Job is lmc_job, what one request does on a stream.
type Job struct {
	Ctx, Stream                uint64
	Direction                  int32
	Wait, Record               int32
	BatchMax                   uint32
	WaitAddress, WaitValue     uint64
	RecordAddress, RecordValue uint64
	BeginEvent, DoneEvent      uint64
	WaitHandle                 [64]byte
	Imported, Exported         uint64
	Failed                     Func
	Queued                     int32
	Copies                     uint64
	ExportedHandle             [64]byte
}
