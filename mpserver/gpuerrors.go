package mpserver

import (
	"errors"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// registrationReason is the kind of a failed registration: for metrics, and
// for the remedy in GET /status.
func registrationReason(err error) string {
	for _, k := range []struct {
		is     error
		reason string
	}{
		{kvlayout.ErrChunkSize, "chunk_size"},
		{errLayoutConflict, "layout_conflict"},
		{errPin, "gpu_pin"},
		{errGPULate, "gpu_late"},
		{errUnknownGPU, "gpu_unknown"},
		{cuda.ErrNoSuchDevice, "gpu_unknown"},
		{errNoGPU, "no_gpu"},
		{errVMM, "gpu_memory_kind"},
		{errSegments, "gpu_memory_kind"},
		{wire.ErrUnsupportedDevice, "gpu_memory_kind"},
		{cuda.ErrUnsupported, "gpu_memory_kind"},
	} {
		if errors.Is(err, k.is) {
			return k.reason
		}
	}
	var call *cuda.Error
	if !errors.As(err, &call) {
		return "registration"
	}
	switch {
	case call.Call == "cuIpcOpenMemHandle_v2" && call.Result == cuda.InvalidContext:
		return "gpu_same_pid"
	case call.Call == "cuIpcOpenMemHandle_v2":
		return "gpu_ipc"
	case call.Result == cuda.OutOfMemory:
		return "gpu_memory"
	}
	return "gpu_driver"
}
