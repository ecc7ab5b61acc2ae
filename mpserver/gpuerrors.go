package mpserver

import (
	"errors"

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
		{errNoGPU, "no_gpu"},
		{errUnknownGPU, "gpu_unknown"},
		{errPin, "gpu_pin"},
		{errGPULate, "gpu_late"},
		{errVMM, "gpu_memory_kind"},
		{wire.ErrUnsupportedDevice, "gpu_memory_kind"},
	} {
		if errors.Is(err, k.is) {
			return k.reason
		}
	}
	return "registration"
}
