package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/memlimit"
)

// examine looks at everything, with a child in the part of the engine.
func (d *gpuDoctor) examine(uuid string) {
	drv := d.driver()
	d.sharedMemory()
	d.process(nil)
	d.lockedMemory()
	if drv == nil {
		return
	}
	devices := drv.Devices()
	if uuid != "" {
		dev, err := drv.Device(uuid)
		if !d.r.outcome("gpu", err, "", "%s", uuid) {
			return
		}
		devices = []*cuda.Device{dev}
	}
	for _, dev := range devices {
		d.gpu(drv, dev, func(c *cuda.Context) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*d.limit)
			defer cancel()
			t, stop, err := d.tools.exporter(ctx, dev.UUID)
			if !d.r.outcome("exporter", err, "", "a second process plays the engine, pid %d", t.PID) {
				return
			}
			defer stop()
			d.open(c, t)
		})
	}
}

// openToken looks at what the server needs of an engine elsewhere.
func (d *gpuDoctor) openToken(t gpuToken) {
	drv := d.driver()
	d.sharedMemory()
	d.process(&t)
	if drv == nil {
		return
	}
	dev, err := drv.Device(t.UUID)
	if d.r.outcome("gpu", err, "", "%s is visible here", t.UUID) {
		d.gpu(drv, dev, func(c *cuda.Context) { d.open(c, t) })
	}
}

// sharedMemory: CUDA's IPC events, and torch's reference counters, are files in /dev/shm.
func (d *gpuDoctor) sharedMemory() {
	const remedy = "mount a memory-backed /dev/shm that engine and server share (docker --ipc, a hostPath or emptyDir of medium Memory), or set lmcache.mp.isolated_ipc to true in the engine"
	size, free, err := memlimit.Filesystem(shmFolder)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(shmFolder, ".lmcache-go-doctor-"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	d.r.outcome("shared memory", err, remedy, "%s: %s free of %s", shmFolder, sizeText(free), sizeText(size))
}

// process tells who we are to the driver, which tells processes apart by the number
// of their pid alone.
func (d *gpuDoctor) process(other *gpuToken) {
	pid, ns := os.Getpid(), namespaces()
	text := fmt.Sprintf("pid %d, namespaces %s %s", pid, ns["pid"], ns["ipc"])
	const collide = "CUDA IPC refuses to open memory of a process with the same pid: share the pid namespace (hostPID, docker --pid=host), or start the server under an init (docker --init) so that its pid is another than the engine's"
	switch {
	case other != nil && other.PID == pid && other.Namespaces["pid"] != ns["pid"]:
		d.r.add("process", gpuFail, collide, "%s; the engine has the same pid in %s", text, other.Namespaces["pid"])
	case other != nil:
		d.r.add("process", gpuOK, "", "%s; the engine: pid %d, %s %s", text, other.PID, other.Namespaces["pid"], other.Namespaces["ipc"])
	case pid == 1:
		d.r.add("process", gpuNote, collide, "%s: an engine that is pid 1 of its own container has the same", text)
	default:
		d.r.add("process", gpuOK, "", "%s", text)
	}
}

// lockedMemory: the pool is pinned.
func (d *gpuDoctor) lockedMemory() {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		return
	}
	switch {
	case lim.Cur == unix.RLIM_INFINITY:
		d.r.add("locked memory", gpuOK, "", "no limit")
	case os.Geteuid() == 0:
		d.r.add("locked memory", gpuOK, "", "limit of %s, which root does not feel", sizeText(int64(lim.Cur)))
	default:
		d.r.add("locked memory", gpuNote, "if registering the pool fails: ulimit -l unlimited, LimitMEMLOCK=infinity, docker --ulimit memlock=-1",
			"limit of %s; the pool is pinned for the GPU", sizeText(int64(lim.Cur)))
	}
}

// gpu makes a context, pins some memory, and lets f look further.
func (d *gpuDoctor) gpu(drv *cuda.Driver, dev *cuda.Device, f func(*cuda.Context)) {
	var c *cuda.Context
	err := d.within(func() (err error) {
		c, err = drv.Retain(dev)
		return err
	})
	if !d.r.outcome("context", err, "", "on %s (%s)", dev.UUID, dev.Name) {
		return
	}
	const pinned = 64 << 20
	err = d.within(func() error {
		b, err := unix.Mmap(-1, 0, pinned, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(b) }()
		p, err := drv.PinHost(dev, b)
		if err != nil {
			return err
		}
		return p.Unpin()
	})
	d.r.outcome("pinning", err, "raise the memlock limit", "%s of host memory could be registered", sizeText(pinned))
	f(c)
	if err := d.within(c.Release); err != nil {
		d.r.outcome("context", err, "", "")
	}
}

// open opens what an exporter told of and compares every byte.
func (d *gpuDoctor) open(c *cuda.Context, t gpuToken) {
	const remedy = "let both containers have the same GPU and /dev/shm"
	err := d.within(func() error { return readMemory(c, cuda.MemHandle(t.Memory)) })
	d.r.outcome("IPC memory", err, remedy, "%s of another process were opened and read", sizeText(exportedBytes))
	err = d.within(func() error { return waitForEvent(c, cuda.EventHandle(t.Event)) })
	if err != nil {
		if shm, _ := filepath.Glob(shmFolder + "/cuda.shm.*"); len(shm) == 0 {
			err = fmt.Errorf("%w (there is no cuda.shm file in %s)", err, shmFolder)
		}
	}
	d.r.outcome("IPC events", err, "share /dev/shm between the containers, or set lmcache.mp.isolated_ipc to true in the engine, which needs none", "an event of another process was opened and waited for")
}

var errWrongBytes = errors.New("other bytes were read than the exporter wrote")

func readMemory(c *cuda.Context, h cuda.MemHandle) (err error) {
	m, err := c.OpenMemory(h)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Release()) }()
	host, err := c.AllocHost(exportedBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Free()) }()
	s, err := c.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Destroy()) }()
	if err := errors.Join(s.Copy(host.Address, m.Address, exportedBytes), s.Wait()); err != nil {
		return err
	}
	if !bytes.Equal(host.Bytes(), bytes.Repeat([]byte{exportedValue}, exportedBytes)) {
		return errWrongBytes
	}
	return nil
}

func waitForEvent(c *cuda.Context, h cuda.EventHandle) (err error) {
	e, err := c.OpenEvent(h)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Destroy()) }()
	s, err := c.NewStream()
	if err != nil {
		return err
	}
	if err := errors.Join(s.WaitFor(e), s.Wait()); err != nil {
		return err
	}
	return s.Destroy()
}
