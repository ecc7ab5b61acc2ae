package mpserver

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// Errors of the memory that a registration names.
var (
	errMixedDevices = errors.New("its tensors lie on several devices: a worker registers the cache of one device")
	errVMM          = errors.New("cuda_vmm memory cannot be opened here: no file descriptor travels with a registration of lmcache 0.5.6, and fabric handles need an IMEX domain: leave out lmcache.mp.use_vmm_api, and set lmcache.mp.isolated_ipc to true where containers share no /dev/shm")
	errSegments     = errors.New("the engine's memory is of torch's expandable segments (a handle of kind 'e'), which can be opened only by a process of the same user that may ptrace it, in the same pid namespace: leave expandable_segments out of PYTORCH_CUDA_ALLOC_CONF, and switch sleep mode off")
	errNoMemory     = errors.New("it names no memory: an empty storage was registered")
)

// place is where a registered tensor lies.
type place struct {
	// uuid of the GPU, "" for host memory.
	uuid string
	// key of the allocation or segment, see [device.Device]. On a GPU a byte
	// offset follows it.
	key string
	// offset of the storage in the allocation, and its size, in bytes.
	offset, size int64
	counter      refCounter
}

// placeOf reads a wrapper.
func placeOf(w *wire.DeviceWrapper) (p place, err error) {
	switch src := w.Source.(type) {
	case *wire.CPUShm:
		return place{key: src.Name, size: src.SizeBytes}, nil
	case *wire.CUDAStorage:
		if src.Handle == nil {
			return p, errNoMemory
		}
		h, err := wire.ParseMemoryHandle(src.Handle)
		if err != nil {
			return p, err
		}
		p = place{offset: src.OffsetBytes, size: src.SizeBytes, counter: refCounter{name: string(src.RefCounterHandle), index: src.RefCounterOffset}}
		if h.Kind == wire.HandleExpandable {
			p.key = device.CUDAExpandablePrefix + hex.EncodeToString(src.Handle)
		} else {
			p.key = device.CUDAIPCPrefix + hex.EncodeToString(h.IPC[:])
		}
	case *wire.CUDARaw:
		p = place{key: device.CUDAIPCPrefix + hex.EncodeToString(src.Handle[:]), offset: src.OffsetBytes, size: src.SizeBytes}
	case *wire.CUDAVMM:
		return p, errVMM
	default:
		return p, fmt.Errorf("%w (%s)", wire.ErrUnsupportedDevice, w.Source.Tag())
	}
	if p.uuid, err = gpuUUID(w.Metadata.DeviceUUID); err != nil {
		return p, err
	}
	return p, nil
}

// gpuUUID checks a UUID of the wire and brings it into the form that we use:
// lower case, without GPU-. A slice of a GPU keeps its MIG-.
func gpuUUID(s string) (string, error) {
	u := strings.TrimPrefix(strings.ToLower(s), "gpu-")
	bare := strings.TrimPrefix(u, "mig-")
	if len(bare) != 36 || strings.Trim(bare, "0123456789abcdef-") != "" {
		return "", fmt.Errorf("device_uuid %.64q is not a GPU's", s)
	}
	return u, nil
}

// tensorsOf turns wrappers into tensors of storages and says which GPU has
// them, "" for host memory. Storages that lie in one allocation become one, from
// the first to the last byte that a tensor names: an engine that registers its
// layers one by one still has them at a constant distance then.
func tensorsOf(wrappers []wire.DeviceWrapper) (tensors []kvlayout.Tensor, uuid string, counters []refCounter, err error) {
	places := make([]place, len(wrappers))
	type span struct{ from, to int64 }
	spans := map[string]span{}
	for i := range wrappers {
		p, err := placeOf(&wrappers[i])
		if err != nil {
			return nil, "", nil, fmt.Errorf("tensor %d (%s): %w", i, wrappers[i].Source.Tag(), err)
		}
		if i == 0 {
			uuid = p.uuid
		} else if p.uuid != uuid {
			return nil, "", nil, fmt.Errorf("tensor %d is on %s, tensor 0 on %s: %w", i, onDevice(p.uuid), onDevice(uuid), errMixedDevices)
		}
		if p.offset > maxAllocation || p.size > maxAllocation {
			return nil, "", nil, fmt.Errorf("tensor %d: a storage of %d bytes at %d", i, p.size, p.offset)
		}
		places[i] = p
		if p.counter.name != "" {
			counters = append(counters, p.counter)
		}
		s, seen := spans[p.key]
		if !seen {
			s = span{p.offset, p.offset + p.size}
		}
		spans[p.key] = span{min(s.from, p.offset), max(s.to, p.offset+p.size)}
	}
	// Elements of all tensors of an allocation must fit the offset of the whole.
	joined := map[string]bool{}
	for key := range spans {
		joined[key] = true
	}
	for i := range wrappers {
		p := &places[i]
		if (p.offset-spans[p.key].from)%int64(wrappers[i].Metadata.DType.Size) != 0 {
			joined[p.key] = false
		}
	}
	for i := range wrappers {
		m, p := &wrappers[i].Metadata, &places[i]
		t := kvlayout.Tensor{
			DType: m.DType.Name, ElemBytes: m.DType.Size, Shape: m.Shape, Stride: m.Stride, Offset: m.StorageOffset,
			Storage: p.key, StorageBytes: p.size,
		}
		if uuid != "" {
			from := p.offset
			if joined[p.key] {
				s := spans[p.key]
				from = s.from
				t.Offset += (p.offset - from) / int64(m.DType.Size)
				t.StorageBytes = s.to - s.from
			}
			t.Storage = fmt.Sprintf("%s:%d", p.key, from)
		}
		tensors = append(tensors, t)
	}
	return tensors, uuid, slices.Clip(counters), nil
}

// maxAllocation bounds what a registration may say, so that sums fit.
const maxAllocation = 1 << 56

func onDevice(uuid string) string {
	if uuid == "" {
		return "the CPU"
	}
	return "GPU " + uuid
}
