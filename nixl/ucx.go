package nixl

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// cudaOnce serialises the preparation of CUDA contexts.
var cudaOnce sync.Mutex

// UCX moves data between host and GPU memory of processes, on one host and
// over the network. The zero value works.
type UCX struct {
	// Threads post long lists in parallel, each through a worker and
	// connections of its own (NIXL's num_threads). 0 chooses: on a machine
	// with an NVIDIA GPU up to 8, as scattered lists between GPUs go twice as
	// fast; elsewhere none. Negative: none.
	Threads int
	// SplitBatch is the length from which a list is split over the threads.
	// 0 is NIXL's default, 1024.
	SplitBatch int
	// Devices limits UCX to these, "mlx5_0:1", "eth0", "lo". Default: all.
	Devices []string
	// NoPeerErrors switches UCX's error handling off. Some transports are
	// usable only so; but a peer that dies is then not noticed.
	NoPeerErrors bool
	// Engine holds UCX settings by name without the prefix UCX_, "TLS": "tcp".
	// A variable UCX_… of the environment goes before them. A value cannot hold
	// a comma: use the environment for those.
	//
	// On a machine with an NVIDIA GPU, CUDA_IPC_ENABLE_GET_ZCOPY is "on" unless
	// it is set here: UCX's own "auto" reads GPU memory of another process over
	// emulated TCP where the GPUs have no NVLink, a thousandth of the speed.
	Engine map[string]string
	// CUDA lists the devices whose memory will be registered, where the
	// program knows. Their primary contexts are retained now, and the first is
	// current while UCX starts. Devices not listed are prepared when their
	// memory is registered.
	CUDA []int
	// Extra parameters, as the plugin names them. An engine_config among them
	// replaces Engine as a whole.
	Extra map[string]string
}

// Plugin is "UCX".
func (UCX) Plugin() string { return "UCX" }

// Params translates the fields.
func (u UCX) Params() (map[string]string, error) {
	m := params(u.Extra)
	threads := u.Threads
	if threads == 0 {
		threads = automaticThreads()
	}
	if threads > 0 {
		m["num_threads"] = strconv.Itoa(threads)
	}
	if u.SplitBatch > 0 {
		m["split_batch_size"] = strconv.Itoa(u.SplitBatch)
	}
	if len(u.Devices) > 0 {
		m["device_list"] = strings.Join(u.Devices, ",")
	}
	if u.NoPeerErrors {
		m["ucx_error_handling_mode"] = "none"
	}
	engine := map[string]string{}
	for k, v := range u.Engine {
		if strings.ContainsAny(k, ",=") || strings.Contains(v, ",") {
			return nil, fmt.Errorf("%w: UCX.Engine %s=%s holds a comma; set UCX_%s in the environment", ErrInvalidParam, k, v, k)
		}
		engine[strings.TrimPrefix(k, "UCX_")] = v
	}
	if _, given := engine[getZcopy]; !given && hasGPU() {
		engine[getZcopy] = "on"
	}
	if len(engine) > 0 && u.Extra["engine_config"] == "" {
		var list []string
		for k, v := range engine {
			list = append(list, k+"="+v)
		}
		slices.Sort(list)
		m["engine_config"] = strings.Join(list, ",")
	}
	return m, nil
}

// getZcopy is UCX's setting for reads of GPU memory by CUDA IPC.
const getZcopy = "CUDA_IPC_ENABLE_GET_ZCOPY"

// hasGPU says whether the machine has an NVIDIA driver. A variable for tests.
var hasGPU = func() bool {
	_, err := os.Stat("/dev/nvidiactl")
	return err == nil
}

// automaticThreads is the number of posting threads when none is given.
func automaticThreads() int {
	if !hasGPU() {
		return 0
	}
	return min(8, runtime.NumCPU()/2)
}
