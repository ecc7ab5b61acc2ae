package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/memlimit"
	"github.com/lmcache-go/lmcache-go/mpserver"
)

// shmFolder is where POSIX shared memory lives on Linux.
const shmFolder = "/dev/shm"

// machine is what the checks ask about the host; a struct of functions so that
// tests can be any host.
type machine struct {
	memory func() (memlimit.Memory, error)
	// shm is the size and the free bytes of /dev/shm.
	shm func() (size, free int64, err error)
	// segment is the bytes that a segment of that name holds, 0 if there is none.
	segment func(name string) int64
	// mappedBy lists who maps the segment, as far as this user may see.
	mappedBy func(name string) []process
	// listener is who listens on the TCP port, as far as this user may see.
	listener func(port int) (process, bool)
	// gpus lists NVIDIA GPUs, or says why that is not possible.
	gpus func() ([]mpserver.GPUInfo, error)
	self process
}

// process is somebody on this host.
type process struct {
	pid  int
	name string
}

func (p process) String() string { return fmt.Sprintf("%s (pid %d)", p.name, p.pid) }

func thisMachine() machine {
	return machine{
		memory:   memlimit.Read,
		shm:      func() (int64, int64, error) { return memlimit.Filesystem(shmFolder) },
		segment:  segmentBytes,
		mappedBy: mappers,
		listener: portOwner,
		gpus:     listGPUs,
		self:     process{os.Getpid(), processName("self")},
	}
}

// gpuWait bounds a look at the GPUs: the library hangs with some broken drivers.
const gpuWait = 3 * time.Second

var errGPUWait = errors.New("the GPU driver did not answer: look at dmesg, and try nvidia-smi")

var errGPUsHidden = errors.New("CUDA_VISIBLE_DEVICES hides all GPUs from this process")

// listGPUs lists the GPUs, within a limit.
func listGPUs() ([]mpserver.GPUInfo, error) {
	// What CUDA takes for "none": nothing, or a list that begins with no device.
	if v, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok && (v == "" || strings.HasPrefix(v, "-1") || v == "NoDevFiles" || v == "void") {
		return nil, errGPUsHidden
	}
	type answer struct {
		list []mpserver.GPUInfo
		err  error
	}
	c := make(chan answer, 1)
	go func() {
		list, err := mpserver.ListGPUs()
		c <- answer{list, err}
	}()
	select {
	case a := <-c:
		return a.list, a.err
	case <-time.After(gpuWait):
		return nil, errGPUWait
	}
}

func segmentBytes(name string) int64 {
	st, err := os.Stat(filepath.Join(shmFolder, name))
	if err != nil {
		return 0
	}
	return st.Size()
}

// processName is the command name of a process, "?" when it is gone.
func processName(pid string) string {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(data))
}

// pids lists the processes of this pid namespace.
func pids() []string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, e.Name())
		}
	}
	return out
}

// mappers finds who maps a segment that still has its name.
func mappers(name string) []process {
	path := filepath.Join(shmFolder, name)
	var out []process
	for _, pid := range pids() {
		data, err := os.ReadFile(filepath.Join("/proc", pid, "maps"))
		if err != nil {
			continue // gone, or somebody else's
		}
		for line := range strings.Lines(string(data)) {
			// An unlinked segment has " (deleted)" behind its path.
			if strings.HasSuffix(strings.TrimRight(line, "\n"), " "+path) {
				n, _ := strconv.Atoi(pid)
				out = append(out, process{n, processName(pid)})
				break
			}
		}
	}
	return out
}

// portOwner finds who listens on a TCP port.
func portOwner(port int) (process, bool) {
	inode := listeningInode(port)
	if inode == "" {
		return process{}, false
	}
	want := "socket:[" + inode + "]"
	for _, pid := range pids() {
		fds, err := filepath.Glob(filepath.Join("/proc", pid, "fd", "*"))
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && target == want {
				n, _ := strconv.Atoi(pid)
				return process{n, processName(pid)}, true
			}
		}
	}
	return process{}, false
}

// listeningInode finds the socket that listens on a TCP port, see proc(5),
// net/tcp: the second field is address:port in hexadecimal, the fourth the
// state (0A is LISTEN), the tenth the inode.
func listeningInode(port int) string {
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" {
				continue
			}
			_, hex, ok := strings.Cut(f[1], ":")
			if !ok {
				continue
			}
			if n, err := strconv.ParseUint(hex, 16, 16); err == nil && int(n) == port {
				return f[9]
			}
		}
	}
	return ""
}
