package mpserver

import (
	"errors"
	"fmt"
	"sync"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/device"
)

// cudaDriver is the NVIDIA driver. It is loaded once in a process and never
// unloaded, so servers of one process share it.
type cudaDriver struct{ drv *cuda.Driver }

var loadedDriver struct {
	mu  sync.Mutex
	drv *cuda.Driver // guarded by mu
}

// loadGPUDriver loads the driver of NVIDIA GPUs. That it fails is not
// remembered: a driver can be installed while the server runs.
func loadGPUDriver() (gpuDriver, error) {
	loadedDriver.mu.Lock()
	defer loadedDriver.mu.Unlock()
	if loadedDriver.drv == nil {
		drv, err := cuda.Load(cuda.LoadOptions{})
		if err != nil {
			return nil, err
		}
		loadedDriver.drv = drv
	}
	return cudaDriver{loadedDriver.drv}, nil
}

func (c cudaDriver) open(uuid string) (device.Device, string, error) {
	dev, err := c.drv.Device(uuid)
	if err != nil {
		return nil, "", err
	}
	d, err := device.NewCUDA(c.drv, uuid, device.CUDAOptions{})
	if err != nil {
		return nil, "", err
	}
	return d, fmt.Sprintf("cuda:%d", dev.Ordinal), nil
}

func (c cudaDriver) pin(uuid string, pool []byte) (unpin func() error, err error) {
	dev, err := c.drv.Device(uuid)
	if err != nil {
		return nil, err
	}
	p, err := c.drv.PinHost(dev, pool)
	if err != nil {
		return nil, err
	}
	return p.Unpin, nil
}

func (cudaDriver) close() error { return nil }

// ListGPUs lists the machine's NVIDIA GPUs, also those that CUDA does not show to this
// process. Without the management library it lists what CUDA shows. The error
// says why neither is possible, as on a machine that has none.
func ListGPUs() ([]GPUInfo, error) {
	inv, err := cuda.TakeInventory()
	if err != nil {
		return listDevices(err)
	}
	list := make([]GPUInfo, 0, len(inv.GPUs))
	for i := range inv.GPUs {
		g := &inv.GPUs[i]
		list = append(list, GPUInfo{
			UUID: g.UUID, Name: g.Name, PCIAddress: g.PCIBusID, MemoryBytes: g.MemoryBytes, UsedBytes: g.MemoryUsedBytes,
			PCIeGen: g.PCIeGenerationMax, PCIeWidth: g.PCIeWidth, NUMANode: g.NUMANode,
		})
	}
	return list, nil
}

// listDevices lists what CUDA shows.
func listDevices(why error) ([]GPUInfo, error) {
	drv, err := loadGPUDriver()
	if err != nil {
		return nil, errors.Join(why, err)
	}
	var list []GPUInfo
	for _, d := range drv.(cudaDriver).drv.Devices() {
		list = append(list, GPUInfo{UUID: d.UUID, Name: d.Name, PCIAddress: d.PCIBusID, MemoryBytes: d.MemoryBytes, UsedBytes: -1, NUMANode: -1})
	}
	return list, nil
}
