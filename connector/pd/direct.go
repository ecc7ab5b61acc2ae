package pd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/nixl"
)

// A way around NIXL between peers of this package on one host. The producer adds
// to its handshake, under a key that vLLM ignores, how its memory can be mapped;
// the reader maps it and copies by itself, and tells the producer by the same
// notification as ever. Nothing is asked of the producer, and a reader that
// cannot map, or does not know the key, reads through NIXL.

// SharedMemory names a part of Options.Memory that other processes of this host
// can map: readers of this package then copy from it themselves.
type SharedMemory struct {
	// Path of the file in /dev/shm, or of any file that is mapped shared.
	Path string
	// Addr is where byte 0 of the file is mapped here, Bytes how much of it.
	Addr  uintptr
	Bytes int64
}

// SharedGPU names an allocation of GPU memory within Options.Memory that other
// processes of this host can map by CUDA IPC: see cuda.Buffer.Handle.
type SharedGPU struct {
	Handle cuda.MemHandle
	// Addr is where the allocation begins here, Bytes how long it is.
	Addr  uintptr
	Bytes int64
}

// directVersion begins the offer; a reader ignores others.
const directVersion = 1

// hostID names the running kernel; the same paths elsewhere are other files. A
// variable for tests.
var hostID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// directOffer is what this rank tells readers on its host; nil for nothing:
//
//	[1, host, [[path, device, inode, address, bytes]…], [[handle, address, bytes]…]]
func (o *Options) directOffer() []byte {
	if len(o.Shared)+len(o.SharedGPU) == 0 || hostID() == "" {
		return nil
	}
	b := appendInt(appendArray(nil, 4), directVersion)
	b = appendString(b, hostID())
	b = appendArray(b, len(o.Shared))
	for _, s := range o.Shared {
		dev, ino, err := fileID(s.Path)
		if err != nil {
			o.Logger.Warn("shared memory cannot be offered to readers on this host, they use NIXL", "path", s.Path, "err", err)
			return nil
		}
		b = appendString(appendArray(b, 5), s.Path)
		b = appendUint(appendUint(b, dev), ino)
		b = appendInt(appendUint(b, uint64(s.Addr)), s.Bytes)
	}
	b = appendArray(b, len(o.SharedGPU))
	for _, s := range o.SharedGPU {
		b = appendBin(appendArray(b, 3), s.Handle[:])
		b = appendInt(appendUint(b, uint64(s.Addr)), s.Bytes)
	}
	return b
}

// reach is one piece of a producer's memory, mapped here.
type reach struct {
	far   uint64 // its first byte in the producer
	bytes uint64
	here  uintptr // the same byte here
}

// directSource is a producer's memory as this process reaches it.
type directSource struct {
	kind   directKind
	pieces []reach
	unmap  func()
}

type directKind int

const (
	directHost directKind = iota // copied by the processor
	directGPU                    // pulled by the GPU
)

// openDirect maps what a producer offers; nil when it offers nothing, is on
// another host, or the two memories need NIXL.
func (p *Peer) openDirect(offer []byte, m *AgentMetadata) *directSource {
	if offer == nil {
		return nil
	}
	d, err := p.mapDirect(offer)
	if err != nil {
		p.opts.Logger.Info("a producer's memory cannot be mapped, it is read through NIXL", "engine", m.EngineID, "err", err)
		return nil
	}
	return d
}

func (p *Peer) mapDirect(offer []byte) (*directSource, error) {
	r := &reader{b: offer}
	n := r.arrayLen()
	if version := r.size(); r.err == nil && (n != 4 || version != directVersion) {
		return nil, fmt.Errorf("%w: an offer of version %d", ErrMessage, version)
	}
	if host := r.string(); r.err == nil && host != hostID() {
		return nil, errOtherHost
	}
	files := readList(r, func() sharedFile { return r.sharedFile() })
	gpus := readList(r, func() SharedGPU { return r.sharedGPU() })
	if err := r.end(); err != nil {
		return nil, err
	}
	switch {
	case p.mem == nixl.DRAM && len(files) > 0:
		return mapFiles(files)
	case p.mem == nixl.VRAM && len(gpus) > 0 && p.opts.CUDA != nil:
		return p.mapGPU(gpus)
	default:
		return nil, errNoWay
	}
}

var (
	errOtherHost = errors.New("it is on another host")
	errNoWay     = errors.New("it has no memory of our kind that we can map")
)

type sharedFile struct {
	SharedMemory
	dev, ino uint64
}

// tuple takes the head of an array of n.
func (r *reader) tuple(n int) {
	if got := r.arrayLen(); r.err == nil && got != n {
		r.fail("%d elements instead of %d", got, n)
	}
}

func (r *reader) sharedFile() (s sharedFile) {
	r.tuple(5)
	s.Path, s.dev, s.ino = r.string(), r.address(), r.address()
	s.Addr, s.Bytes = uintptr(r.address()), r.int()
	return s
}

func (r *reader) sharedGPU() (s SharedGPU) {
	r.tuple(3)
	if h := r.bin(); r.err == nil && copy(s.Handle[:], h) != len(s.Handle) {
		r.fail("a handle of %d bytes", len(h))
	}
	s.Addr, s.Bytes = uintptr(r.address()), r.int()
	return s
}

func (d *directSource) close() {
	if d != nil {
		d.unmap()
	}
}

// directCopy is one copy around NIXL.
type directCopy struct {
	rank  *farRank
	spans []span // remote addresses are ours
	bytes int64
	took  time.Duration
}

// prepare translates what is to be read; ok is false when some of it is not
// mapped here.
func (d *directSource) prepare(spans []span) (c directCopy, ok bool) {
	if d == nil {
		return c, false
	}
	c.spans = make([]span, len(spans))
	at := 0
	for i, s := range spans {
		if !d.pieces[at].holds(s) {
			if at = slices.IndexFunc(d.pieces, func(r reach) bool { return r.holds(s) }); at < 0 {
				return c, false
			}
		}
		r := d.pieces[at]
		c.spans[i] = span{s.local, r.here + uintptr(uint64(s.remote)-r.far), s.bytes}
		c.bytes += int64(s.bytes)
	}
	return c, true
}

func (r reach) holds(s span) bool {
	at := uint64(s.remote)
	return at >= r.far && uint64(s.bytes) <= r.bytes && at-r.far <= r.bytes-uint64(s.bytes)
}

// runDirect copies what can be copied, one rank after the other, and tells the
// producer. When ctx ends first, the copy under way ends by itself: see
// pull.end.
func (x *pull) runDirect(ctx context.Context) error {
	if len(x.copies) == 0 {
		return nil
	}
	done := make(chan error, 1)
	ended := make(chan struct{})
	x.copying = ended
	x.p.work.Go(func() { // Pull counts as work, so Close has not ended
		defer close(ended)
		done <- x.copyAll(ctx)
	})
	select {
	case err := <-done:
		if err != nil {
			x.p.engines.drop(x.e)
			return fmt.Errorf("%w: copying from engine %s: %w", ErrTransfer, x.e.id, err)
		}
	case <-ctx.Done():
		return fmt.Errorf("%w: copying from engine %s: %w", ErrTransfer, x.e.id, context.Cause(ctx))
	}
	for _, c := range x.copies {
		if err := c.rank.remote.Notify(x.notif); err != nil {
			x.p.stats.add(func(s *Stats) { s.FailedNotifications++ })
			x.p.engines.drop(x.e)
			x.p.opts.Logger.Warn("a producer was not told that its blocks were read, it keeps them until their lease ends", "engine", x.e.id, "err", err)
		}
	}
	return nil
}

func (x *pull) copyAll(ctx context.Context) error {
	for i := range x.copies {
		c := &x.copies[i]
		start := time.Now()
		var err error
		if c.rank.direct.kind == directGPU {
			err = x.p.gpu.pull(ctx, c.spans)
		} else {
			err = copyHost(ctx, c.spans)
		}
		if err != nil {
			return err
		}
		c.took = time.Since(start)
	}
	return nil
}
