package mpserver

import "errors"

// loadGPUDriver loads the driver of NVIDIA GPUs.
func loadGPUDriver() (gpuDriver, error) { return nil, errors.New("this build has none") }

// ListGPUs lists the machine's NVIDIA GPUs. The error says why that is not possible,
// as on a machine that has none.
func ListGPUs() ([]GPUInfo, error) { return nil, errors.New("this build has no driver") }
