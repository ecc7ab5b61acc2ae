package mpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/l1cache"
)

// gpuDriver is what the server needs of the machine's GPUs. Tests have another.
type gpuDriver interface {
	// open makes the device of a GPU, with a context of its own that lives until
	// the device is closed.
	open(uuid string) (dev device.Device, name string, err error)
	// pin registers the pool with the driver in one span, so that copy engines
	// reach it. A context of that GPU holds the registration until it is undone,
	// whatever devices come and go.
	pin(uuid string, pool []byte) (unpin func() error, err error)
	// close ends the driver; no device is open any more.
	close() error
}

// gpus makes a device for each GPU that has a registered worker, and closes it
// with the last: its context holds half a gigabyte of GPU memory, which a
// restarting engine needs.
type gpus struct {
	load  func() (gpuDriver, error)
	arena *l1cache.Arena
	log   *slog.Logger
	run   func(func()) // starts a goroutine that the server's stop waits for

	// turn is held while a device is made or closed, which can take long in the
	// driver; it is not a mutex so that a wait for it can end early.
	turn  chan struct{}
	drv   gpuDriver    // guarded by turn; nil until the first worker comes
	unpin func() error // guarded by turn; nil while the pool is not registered
	open  int          // guarded by turn: devices

	mu     sync.Mutex
	byUUID map[string]*gpu // guarded by mu
}

// gpu is one device and how many registrations use it.
type gpu struct {
	uuid string
	made chan struct{} // closed when the fields below it are set
	dev  device.Device
	name string
	err  error

	refs int           // guarded by gpus.mu
	gone chan struct{} // closed when the device is closed, or could not be made
}

// Errors of GPUs.
var (
	errNoGPU      = errors.New("this server has no GPU driver")
	errUnknownGPU = errors.New("this server does not see that GPU")
	errPin        = errors.New("the pool could not be registered with the GPU driver")
	errGPULate    = errors.New("the GPU driver did not answer in time")
)

func newGPUs(load func() (gpuDriver, error), arena *l1cache.Arena, log *slog.Logger, run func(func())) *gpus {
	return &gpus{load: load, arena: arena, log: log, run: run, turn: make(chan struct{}, 1), byUUID: map[string]*gpu{}}
}

// acquire returns the device of a GPU, made if need be. It waits for the driver
// until ctx ends. Whoever has it must release it.
func (g *gpus) acquire(ctx context.Context, uuid string) (*gpu, error) {
	for {
		g.mu.Lock()
		u := g.byUUID[uuid]
		switch {
		case u == nil:
			u = &gpu{uuid: uuid, made: make(chan struct{}), gone: make(chan struct{}), refs: 1}
			g.byUUID[uuid] = u
			g.run(func() { g.make(u) })
		case u.refs > 0:
			u.refs++
		default: // being closed: a new one comes after it
			g.mu.Unlock()
			select {
			case <-u.gone:
				continue
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: while it closes GPU %s: %w", errGPULate, uuid, ctx.Err())
			}
		}
		g.mu.Unlock()
		select {
		case <-u.made:
		case <-ctx.Done():
			g.release(u)
			return nil, fmt.Errorf("%w: while it opens GPU %s: %w", errGPULate, uuid, ctx.Err())
		}
		if u.err != nil {
			err := u.err
			g.release(u)
			return nil, err
		}
		return u, nil
	}
}

// make opens the device and, with the first, registers the pool.
func (g *gpus) make(u *gpu) {
	g.turn <- struct{}{}
	defer func() { <-g.turn }()
	defer close(u.made)
	begin := time.Now()
	if g.drv == nil {
		var err error
		if g.drv, err = g.load(); err != nil {
			g.drv, u.err = nil, fmt.Errorf("%w: %w", errNoGPU, err)
			return
		}
	}
	if u.dev, u.name, u.err = g.drv.open(u.uuid); u.err != nil {
		return
	}
	opened := time.Since(begin)
	if g.unpin == nil {
		<-g.arena.Grown() // what is not there yet would be touched page by page
		begin = time.Now()
		if g.unpin, u.err = g.drv.pin(u.uuid, g.arena.Bytes()[:g.arena.ReadyBytes()]); u.err != nil {
			u.err = errors.Join(fmt.Errorf("%w: %w", errPin, u.err), u.dev.Close())
			u.dev = nil
			return
		}
		g.log.Info("registered the pool with the GPU driver", "component", "device", "bytes", g.arena.ReadyBytes(), "dur", time.Since(begin))
	}
	g.open++
	g.log.Info("opened a GPU", "component", "device", "device", u.name, "uuid", u.uuid, "dur", opened)
}

// release gives a device back; the last one closes it, beside everything else.
func (g *gpus) release(u *gpu) {
	g.mu.Lock()
	u.refs--
	last := u.refs == 0
	g.mu.Unlock()
	if last {
		g.run(func() { g.end(u) })
	}
}

// end closes a device that nobody uses, and the pool's registration with the
// last one.
func (g *gpus) end(u *gpu) {
	<-u.made
	g.turn <- struct{}{}
	defer func() { <-g.turn }()
	if u.dev != nil {
		begin := time.Now()
		err := u.dev.Close()
		if !errors.Is(err, device.ErrStuck) { // its copies still use the pool
			g.open--
		}
		if g.open == 0 && g.unpin != nil {
			err = errors.Join(err, g.unpin())
			g.unpin = nil
		}
		g.log.Info("closed a GPU", "component", "device", "device", u.name, "uuid", u.uuid, "dur", time.Since(begin), "err", err)
	}
	g.mu.Lock()
	delete(g.byUUID, u.uuid)
	g.mu.Unlock()
	close(u.gone)
}

// devices are those that are open now.
func (g *gpus) devices() []*gpu {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []*gpu
	for _, u := range g.byUUID {
		select {
		case <-u.made:
			if u.err == nil {
				out = append(out, u)
			}
		default:
		}
	}
	return out
}

// close ends the driver, after the last device.
func (g *gpus) close() error {
	select {
	case g.turn <- struct{}{}:
	default:
		return nil // something hangs in the driver: it ends with the process
	}
	defer func() { <-g.turn }()
	if g.drv == nil || g.open > 0 {
		return nil // or waits for a dead peer
	}
	err := g.drv.close()
	g.drv = nil
	return err
}
