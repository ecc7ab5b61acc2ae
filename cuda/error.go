package cuda

import (
	"errors"
	"fmt"
	"strings"
)

// Errors of loading the driver and of finding a device.
var (
	// ErrNoDriver: libcuda.so.1 cannot be loaded. The error lists what was tried.
	ErrNoDriver = errors.New("cuda: no driver")
	// ErrOldDriver: it lacks functions that we need.
	ErrOldDriver = errors.New("cuda: the driver is too old")
	// ErrNoSuchDevice: no device of this process has that UUID.
	ErrNoSuchDevice = errors.New("cuda: no such device")
)

// Errors of use.
var (
	// ErrReleased: the context, stream or memory was given back.
	ErrReleased = errors.New("cuda: already released")
	// ErrHandle: a handle or key that is not well formed.
	ErrHandle = errors.New("cuda: malformed handle")
	// ErrUnsupported: a kind of memory or event that cannot be opened here.
	ErrUnsupported = errors.New("cuda: not supported")
	// ErrShort: the memory is smaller than was said.
	ErrShort = errors.New("cuda: memory is smaller than registered")
)

// Error is a failed call of the driver.
type Error struct {
	// Call is the driver's function.
	Call string
	// Device is the UUID of the device, or "".
	Device string
	Result Result
	// Remedy says what helps, where that is known.
	Remedy string
}

// Error names the call, the result, the device and the remedy.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cuda: %s: %s", e.Call, e.Result.Error())
	if e.Device != "" {
		fmt.Fprintf(&b, " on device %s", e.Device)
	}
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	return b.String()
}

// Unwrap is the result.
func (e *Error) Unwrap() error { return e.Result }

// remedy is what users were helped by when a call failed so.
func remedy(call string, r Result) string {
	switch {
	case call == "cuIpcOpenMemHandle_v2" && r == InvalidContext:
		return "the engine has the same process id as this server: both run in one process, or in two containers where each is, say, process 1; " +
			"share the pid namespace (hostPID: true, docker --pid=host) or let one of them have another pid"
	case call == "cuIpcOpenMemHandle_v2" && (r == MapFailed || r == InvalidValue):
		return "the engine has ended, or the two containers share too little: both need the same GPU (check DRA or CDI isolation) and the same /dev/shm " +
			"(ipc: host, or a hostPath of /dev/shm), or the engine sets lmcache.mp.isolated_ipc=true"
	case call == "cuIpcOpenMemHandle_v2" && r == NotSupported:
		return "this GPU or its virtualization has no CUDA IPC; use the engine_driven transfer"
	case call == "cuIpcOpenEventHandle":
		return "the engine has destroyed the event or ended, or /dev/shm is not shared between the two containers " +
			"(ipc: host, or a hostPath of /dev/shm), or the engine sets lmcache.mp.isolated_ipc=true"
	case call == "cuMemHostRegister_v2" && (r == OutOfMemory || r == NotPermitted || r == OperatingSystem):
		return "the pool cannot be pinned: raise the limit of locked memory (ulimit -l unlimited, docker --ulimit memlock=-1, LimitMEMLOCK=infinity) or make the pool smaller"
	case call == "cuMemHostRegister_v2" && r == HostRegistered:
		return "something else in this process has pinned a part of it"
	case call == "cuDevicePrimaryCtxRetain" && r == OutOfMemory:
		return "a context takes about 0.5 GiB of GPU memory: lower the engine's --gpu-memory-utilization"
	case call == "cuInit" && r == NoDevice:
		return "no GPU is visible to this process: check CUDA_VISIBLE_DEVICES and that the container was given one (--gpus)"
	case call == "cuInit" && (r == SystemDriverMismatch || r == CompatNotSupported):
		return "libcuda.so.1 does not fit the kernel's driver: the container brings a copy of its own that hides the host's"
	case call == "cuInit" && (r == Unknown || r == OperatingSystem):
		return "the kernel's driver does not answer: check nvidia-smi, /dev/nvidia* and the nvidia_uvm module"
	case call == "cuInit" && r == SystemNotReady:
		return "an NVSwitch machine needs nvidia-fabricmanager of the driver's version"
	case r == UnsupportedPTX:
		return "update the driver, or rebuild the kernels with an older compiler (make kernels)"
	case r.Sticky():
		return "the GPU has failed this process for good (see dmesg for Xid errors): restart it"
	}
	return ""
}
