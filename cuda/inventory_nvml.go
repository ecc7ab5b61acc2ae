//go:build linux && cgo

package cuda

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// nvmlTurn: the library is loaded and unloaded as a whole.
var nvmlTurn sync.Mutex

// TakeInventory asks the management library for the machine's GPUs. It costs no
// GPU memory and needs no context. It fails with [ErrNoNVML] where the library
// is not there.
func TakeInventory() (Inventory, error) { return takeInventory(nvml.New(), "/sys") }

func takeInventory(lib nvml.Interface, sysfs string) (inv Inventory, err error) {
	nvmlTurn.Lock()
	defer nvmlTurn.Unlock()
	if r := lib.Init(); r != nvml.SUCCESS {
		return inv, fmt.Errorf("%w: libnvidia-ml.so.1: %w; the NVIDIA driver brings it, and a container gets it by NVIDIA_DRIVER_CAPABILITIES=compute,utility", ErrNoNVML, nvmlError{r})
	}
	defer func() { _ = lib.Shutdown() }()
	var r nvml.Return
	if inv.DriverVersion, r = lib.SystemGetDriverVersion(); r != nvml.SUCCESS {
		return inv, fmt.Errorf("cuda: nvml: driver version: %w", nvmlError{r})
	}
	inv.CUDAVersion, _ = lib.SystemGetCudaDriverVersion()
	n, r := lib.DeviceGetCount()
	if r != nvml.SUCCESS {
		return inv, fmt.Errorf("cuda: nvml: device count: %w", nvmlError{r})
	}
	for i := range n {
		d, r := lib.DeviceGetHandleByIndex(i)
		if r != nvml.SUCCESS {
			continue // one that has fallen off the bus says nothing of the others
		}
		inv.GPUs = append(inv.GPUs, lookAt(d, sysfs))
	}
	return inv, nil
}

// lookAt collects what one GPU tells; what it does not stays zero.
func lookAt(d nvml.Device, sysfs string) GPU {
	g := GPU{NUMANode: -1}
	if uuid, r := d.GetUUID(); r == nvml.SUCCESS {
		g.UUID = uuid
		if bare, err := ParseUUID(uuid); err == nil {
			g.UUID = bare
		}
	}
	g.Name, _ = d.GetName()
	if m, r := d.GetMemoryInfo(); r == nvml.SUCCESS {
		g.MemoryBytes, g.MemoryUsedBytes = int64(m.Total), int64(m.Used)
	}
	g.PCIeGeneration, _ = d.GetCurrPcieLinkGeneration()
	g.PCIeGenerationMax, _ = d.GetMaxPcieLinkGeneration()
	g.PCIeWidth, _ = d.GetCurrPcieLinkWidth()
	g.PCIeWidthMax, _ = d.GetMaxPcieLinkWidth()
	if pci, r := d.GetPciInfo(); r == nvml.SUCCESS {
		id := make([]byte, 0, len(pci.BusId))
		for _, c := range pci.BusId {
			id = append(id, byte(c))
		}
		id, _, _ = bytes.Cut(id, []byte{0})
		g.PCIBusID = string(bytes.ToLower(id))
		g.NUMANode = numaNode(sysfs, g.PCIBusID)
	}
	if mode, _, r := d.GetMigMode(); r == nvml.SUCCESS {
		g.MIG = mode == nvml.DEVICE_MIG_ENABLE
	}
	return g
}

// nvmlError gives a code of the library its name also where the library, which
// knows the texts, could not be loaded.
type nvmlError struct{ nvml.Return }

// Error is the name and the number.
func (e nvmlError) Error() string {
	return fmt.Sprintf("%s (%d)", nvml.ErrorString(e.Return), int(e.Return))
}
