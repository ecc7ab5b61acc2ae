//go:build linux && cgo

package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

func TestInventory(t *testing.T) {
	sysfs := t.TempDir()
	dir := filepath.Join(sysfs, "bus/pci/devices/0000:18:00.0")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "numa_node"), []byte("1\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	dev := &mock.Device{
		GetUUIDFunc:                   func() (string, nvml.Return) { return "GPU-D5A55C39-9e1d-0000-0000-35aee317b5ad", nvml.SUCCESS },
		GetNameFunc:                   func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetMemoryInfoFunc:             func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 100, Used: 40}, nvml.SUCCESS },
		GetCurrPcieLinkGenerationFunc: func() (int, nvml.Return) { return 1, nvml.SUCCESS },
		GetMaxPcieLinkGenerationFunc:  func() (int, nvml.Return) { return 5, nvml.SUCCESS },
		GetCurrPcieLinkWidthFunc:      func() (int, nvml.Return) { return 8, nvml.SUCCESS },
		GetMaxPcieLinkWidthFunc:       func() (int, nvml.Return) { return 16, nvml.SUCCESS },
		GetMigModeFunc:                func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			var p nvml.PciInfo
			setBusID(&p, "00000000:18:00.0")
			return p, nvml.SUCCESS
		},
	}
	lib := &mock.Interface{
		InitFunc:                       func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:                   func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc:     func() (string, nvml.Return) { return "580.95.05", nvml.SUCCESS },
		SystemGetCudaDriverVersionFunc: func() (int, nvml.Return) { return 13000, nvml.SUCCESS },
		DeviceGetCountFunc:             func() (int, nvml.Return) { return 2, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if i == 1 {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return dev, nvml.SUCCESS
		},
	}
	inv, err := takeInventory(lib, sysfs)
	if err != nil {
		t.Fatal(err)
	}
	want := GPU{
		UUID: "d5a55c39-9e1d-0000-0000-35aee317b5ad", Name: "NVIDIA H200", MemoryBytes: 100, MemoryUsedBytes: 40,
		PCIeGeneration: 1, PCIeGenerationMax: 5, PCIeWidth: 8, PCIeWidthMax: 16, PCIBusID: "00000000:18:00.0", NUMANode: 1,
	}
	if inv.DriverVersion != "580.95.05" || inv.CUDAVersion != 13000 || len(inv.GPUs) != 1 || inv.GPUs[0] != want {
		t.Errorf("got %+v", inv)
	}
	if n := len(lib.ShutdownCalls()); n != 1 {
		t.Errorf("shut down %d times", n)
	}

	lib.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
	if _, err = takeInventory(lib, sysfs); !errors.Is(err, ErrNoNVML) || !strings.Contains(err.Error(), "libnvidia-ml.so.1") {
		t.Errorf("got %v", err)
	}
}

// setBusID writes a C string.
func setBusID(p *nvml.PciInfo, id string) {
	for i := range id {
		p.BusId[i] = int8(id[i])
	}
}

func TestInventoryOfThisMachine(t *testing.T) {
	inv, err := TakeInventory()
	if err != nil {
		if !errors.Is(err, ErrNoNVML) {
			t.Error(err)
		}
		t.Skip(err)
	}
	t.Logf("%+v", inv)
}
