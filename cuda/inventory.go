package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNoNVML says that the management library cannot be loaded. A driver without
// it works; only the inventory is missing.
var ErrNoNVML = errors.New("cuda: no NVML")

// GPU is what the management library says of one, without a context on it.
type GPU struct {
	// UUID as in [Device.UUID]; of the whole GPU where it is cut into MIG
	// instances.
	UUID string `json:"uuid"`
	Name string `json:"name"`
	// Memory of the GPU, and what all processes use of it.
	MemoryBytes     int64 `json:"memory_bytes"`
	MemoryUsedBytes int64 `json:"memory_used_bytes"`
	// PCIe generation and lanes, now and at best. An idle GPU lowers its
	// generation; fewer lanes than it could have is a card in the wrong slot.
	PCIeGeneration    int    `json:"pcie_generation"`
	PCIeGenerationMax int    `json:"pcie_generation_max"`
	PCIeWidth         int    `json:"pcie_width"`
	PCIeWidthMax      int    `json:"pcie_width_max"`
	PCIBusID          string `json:"pci_bus_id"`
	// NUMANode that the GPU hangs at, -1 where the machine does not say.
	NUMANode int `json:"numa_node"`
	// MIG: it is cut into instances.
	MIG bool `json:"mig,omitempty"`
}

// Inventory is the machine's GPUs.
type Inventory struct {
	// DriverVersion as nvidia-smi shows it, "580.95.05".
	DriverVersion string `json:"driver_version"`
	// CUDAVersion that the driver has: 13000 is 13.0.
	CUDAVersion int   `json:"cuda_version"`
	GPUs        []GPU `json:"gpus"`
}

// numaNode reads the node of a PCI device from sysfs, mounted at root.
func numaNode(root, busID string) int {
	// NVML writes a domain of eight digits, sysfs one of four.
	id := strings.ToLower(busID)
	if domain, rest, ok := strings.Cut(id, ":"); ok && len(domain) > 4 {
		id = domain[len(domain)-4:] + ":" + rest
	}
	b, err := os.ReadFile(filepath.Join(root, "bus/pci/devices", filepath.Base(id), "numa_node"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return -1
	}
	return n
}
