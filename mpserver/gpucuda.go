package mpserver

import "errors"

// loadGPUDriver loads the driver of NVIDIA GPUs.
func loadGPUDriver() (gpuDriver, error) { return nil, errors.New("this build has none") }
