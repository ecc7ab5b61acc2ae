package cuda

import "fmt"

// Result is a result code of the driver. Every error of a driver call wraps
// one: errors.Is(err, cuda.InvalidContext).
type Result int32 //nolint:errname // as the driver says it

// Results that this package or its callers tell apart (cuda.h, CUresult).
//
//nolint:errname // they are the driver's names, and the type says what they are
const (
	InvalidValue         Result = 1
	OutOfMemory          Result = 2
	NotInitialized       Result = 3
	Deinitialized        Result = 4
	NoDevice             Result = 100
	InvalidDevice        Result = 101
	InvalidImage         Result = 200
	InvalidContext       Result = 201
	MapFailed            Result = 205
	NoBinaryForGPU       Result = 209
	ECCUncorrectable     Result = 214
	UnsupportedPTX       Result = 222
	OperatingSystem      Result = 304
	InvalidHandle        Result = 400
	NotFound             Result = 500
	NotReady             Result = 600
	IllegalAddress       Result = 700
	PeerAccessEnabled    Result = 704
	ContextDestroyed     Result = 709
	HostRegistered       Result = 712
	HostNotRegistered    Result = 713
	LaunchFailed         Result = 719
	NotPermitted         Result = 800
	NotSupported         Result = 801
	SystemNotReady       Result = 802
	SystemDriverMismatch Result = 803
	CompatNotSupported   Result = 804
	Unknown              Result = 999
)

var resultNames = map[Result]string{
	0:                    "CUDA_SUCCESS",
	InvalidValue:         "CUDA_ERROR_INVALID_VALUE",
	OutOfMemory:          "CUDA_ERROR_OUT_OF_MEMORY",
	NotInitialized:       "CUDA_ERROR_NOT_INITIALIZED",
	Deinitialized:        "CUDA_ERROR_DEINITIALIZED",
	NoDevice:             "CUDA_ERROR_NO_DEVICE",
	InvalidDevice:        "CUDA_ERROR_INVALID_DEVICE",
	InvalidImage:         "CUDA_ERROR_INVALID_IMAGE",
	InvalidContext:       "CUDA_ERROR_INVALID_CONTEXT",
	MapFailed:            "CUDA_ERROR_MAP_FAILED",
	NoBinaryForGPU:       "CUDA_ERROR_NO_BINARY_FOR_GPU",
	ECCUncorrectable:     "CUDA_ERROR_ECC_UNCORRECTABLE",
	UnsupportedPTX:       "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
	OperatingSystem:      "CUDA_ERROR_OPERATING_SYSTEM",
	InvalidHandle:        "CUDA_ERROR_INVALID_HANDLE",
	NotFound:             "CUDA_ERROR_NOT_FOUND",
	NotReady:             "CUDA_ERROR_NOT_READY",
	IllegalAddress:       "CUDA_ERROR_ILLEGAL_ADDRESS",
	PeerAccessEnabled:    "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
	ContextDestroyed:     "CUDA_ERROR_CONTEXT_IS_DESTROYED",
	HostRegistered:       "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	HostNotRegistered:    "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
	LaunchFailed:         "CUDA_ERROR_LAUNCH_FAILED",
	NotPermitted:         "CUDA_ERROR_NOT_PERMITTED",
	NotSupported:         "CUDA_ERROR_NOT_SUPPORTED",
	SystemNotReady:       "CUDA_ERROR_SYSTEM_NOT_READY",
	SystemDriverMismatch: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
	CompatNotSupported:   "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
	Unknown:              "CUDA_ERROR_UNKNOWN",
}

// Error is the symbol and the number.
func (r Result) Error() string {
	if name, ok := resultNames[r]; ok {
		return fmt.Sprintf("%s (%d)", name, int32(r))
	}
	return fmt.Sprintf("CUDA result %d", int32(r))
}

// Sticky says that the context is lost for this process: every later call in it
// fails alike, and no copy of it runs any more.
func (r Result) Sticky() bool {
	switch r {
	case IllegalAddress, LaunchFailed, ECCUncorrectable, ContextDestroyed, Deinitialized, Unknown:
		return true
	default:
		return r >= 714 && r <= 718 // bad instructions and addresses of kernels
	}
}
