package device

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/copyplan"
)

// What the keys of storages on a GPU begin with. Behind it come the handle in
// hexadecimal digits, a colon, and the byte offset of the storage in the
// allocation, in decimal.
const (
	// CUDAIPCPrefix: the handle is the 64 bytes of a cudaIpcMemHandle.
	CUDAIPCPrefix = "cudaipc:"
	// CUDAExpandablePrefix: it is torch's handle of expandable segments, with
	// its bytes of version and kind.
	CUDAExpandablePrefix = "cudaexp:"
)

// Errors of a [CUDA] device.
var (
	// ErrStuck is returned by Close when copies still wait for a peer that may
	// have died. They keep their memory and the GPU's context.
	ErrStuck = errors.New("device: copies still wait for an engine")
	// ErrBegun is returned by Submit when a copy failed in the middle and what
	// was queued of it before still waits for its engine: other than for any
	// other error, Done will come, when nothing can touch the memory any more.
	ErrBegun = errors.New("device: a part of the copy is under way")
	// ErrUnpinned: the pool is not pinned, and the copy is too large to be
	// made by way of a buffer that is.
	ErrUnpinned = errors.New("device: the pool is not registered with the GPU driver")
)

// CUDAOptions configures a [CUDA].
type CUDAOptions struct {
	// QueueLen is how many jobs of one stream may be pending. Default 1024.
	QueueLen int
	// PatternsBelow is the mean size of runs, in bytes, below which 2-D copies
	// are used. Default 32 KiB, where they overtake batches of runs on an H200.
	PatternsBelow int64
	// CloseTimeout bounds how long Close waits for copies. Default 10 s.
	CloseTimeout time.Duration
	// DrainTimeout bounds how long Submit waits for the part of a copy that
	// was queued before the rest failed. Default 2 s.
	DrainTimeout time.Duration
}

// CUDA is the device for engines whose KV cache is in the memory of one NVIDIA
// GPU. Copies are made by the GPU's copy engines, never by kernels, so that an
// engine that computes loses nothing.
//
// The pool has to be pinned ([cuda.Driver.PinHost]) for as long as jobs run. A
// job with another pool, of at most 256 MiB, goes through a pinned buffer of
// its own.
//
// A job begins when its engine has come to the event it named; until then
// Cancel and Close end it, so that an engine that has died keeps nothing. One
// that has begun is in the hands of the hardware, and short. A stream whose
// copies do not end within Close all the same is left alone with its mappings
// and its threads, and counted in [Stats.Stuck].
type CUDA struct {
	ctx  *cuda.Context
	opts CUDAOptions
	wg   sync.WaitGroup // of streams and of mappings that are being closed

	mu       sync.Mutex
	streams  map[*cudaStream]struct{} // guarded by mu
	mappings map[*cuda.Mapping]int    // guarded by mu: holds of each
	closed   bool                     // guarded by mu
	released bool                     // guarded by mu
	stats    Stats                    // guarded by mu
}

var _ Device = (*CUDA)(nil)

// NewCUDA opens a GPU by its UUID: it retains the context, which costs about
// half a gigabyte of GPU memory and 0.1 s, until Close.
func NewCUDA(drv *cuda.Driver, uuid string, o CUDAOptions) (*CUDA, error) {
	dev, err := drv.Device(uuid)
	if err != nil {
		return nil, err
	}
	if o.QueueLen < 1 {
		o.QueueLen = 1024
	}
	if o.PatternsBelow < 1 {
		o.PatternsBelow = 32 << 10
	}
	if o.CloseTimeout <= 0 {
		o.CloseTimeout = 10 * time.Second
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = 2 * time.Second
	}
	ctx, err := drv.Retain(dev)
	if err != nil {
		return nil, err
	}
	return &CUDA{ctx: ctx, opts: o, streams: map[*cudaStream]struct{}{}, mappings: map[*cuda.Mapping]int{}}, nil
}

// Context of the GPU, for who needs more of it than copies. It is the
// device's: not to be released, and not to be used after Close.
func (d *CUDA) Context() *cuda.Context { return d.ctx }

// Traits of a GPU: batches of long runs, 2-D copies of short ones, events, and
// no reordering.
func (d *CUDA) Traits() Traits {
	return Traits{
		Plans:      copyplan.Options{PatternsBelow: d.opts.PatternsBelow, MaxPitch: d.ctx.Device().MaxPitch},
		CopiesOnly: true,
	}
}

// Open maps memory of an engine by a key of [CUDAIPCPrefix] or
// [CUDAExpandablePrefix].
func (d *CUDA) Open(key string, sizeBytes int64) (Memory, error) {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	handle, offset, expandable, err := parseCUDAKey(key)
	if err != nil {
		return nil, err
	}
	var m *cuda.Mapping
	if expandable {
		m, err = d.ctx.OpenExpandable(handle)
	} else {
		m, err = d.ctx.OpenMemory(cuda.MemHandle(handle))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOpen, err)
	}
	d.mu.Lock()
	d.mappings[m]++
	closed = d.closed
	d.mu.Unlock()
	switch {
	case closed:
		err = ErrClosed
	case sizeBytes < 0 || offset > m.SizeBytes || sizeBytes > m.SizeBytes-offset:
		err = fmt.Errorf("%w: %d bytes at %d, the allocation has %d", ErrShort, sizeBytes, offset, m.SizeBytes)
	}
	if err != nil {
		d.drop(m)
		return nil, err
	}
	return &cudaMemory{dev: d, m: m, address: m.Address + uint64(offset), n: sizeBytes}, nil
}

// parseCUDAKey takes a key apart.
func parseCUDAKey(key string) (handle []byte, offset int64, expandable bool, err error) {
	text, ok := strings.CutPrefix(key, CUDAIPCPrefix)
	if !ok {
		if text, expandable = strings.CutPrefix(key, CUDAExpandablePrefix); !expandable {
			return nil, 0, false, fmt.Errorf("%w: %.80q is no memory of a GPU", ErrName, key)
		}
	}
	digits, number, _ := strings.Cut(text, ":")
	handle, err = hex.DecodeString(digits)
	if err == nil {
		offset, err = strconv.ParseInt(number, 10, 64)
	}
	if err != nil || offset < 0 || (!expandable && len(handle) != len(cuda.MemHandle{})) {
		return nil, 0, false, fmt.Errorf("%w: %.200q", ErrName, key)
	}
	return handle, offset, expandable, nil
}

// cudaMemory is one open storage.
type cudaMemory struct {
	dev     *CUDA
	m       *cuda.Mapping
	address uint64
	n       int64
	closed  bool // guarded by dev.mu
}

// SizeBytes of the registration.
func (m *cudaMemory) SizeBytes() int64 { return m.n }

// Close gives the storage up.
func (m *cudaMemory) Close() {
	m.dev.mu.Lock()
	was := m.closed
	m.closed = true
	m.dev.mu.Unlock()
	if !was {
		m.dev.drop(m.m)
	}
}

// hold counts a job that uses the mapping. d.mu is held.
func (d *CUDA) hold(m *cuda.Mapping) {
	d.mappings[m]++
	m.Retain()
}

// drop gives one hold back. The last one unmaps, beside everything else: the
// driver may wait for other copies of the GPU.
func (d *CUDA) drop(m *cuda.Mapping) {
	d.mu.Lock()
	d.mappings[m]--
	last := d.mappings[m] == 0
	if last {
		delete(d.mappings, m)
		d.wg.Add(1)
	}
	d.mu.Unlock()
	if !last {
		_ = m.Release() // not the last: nothing happens
		return
	}
	go func() {
		defer d.wg.Done()
		if err := m.Release(); err != nil {
			d.mu.Lock()
			d.stats.Faults++
			d.mu.Unlock()
		}
	}()
}

// Stats of now.
func (d *CUDA) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.stats
	st.Mappings, st.StreamsActive = len(d.mappings), len(d.streams)
	for m := range d.mappings {
		st.MappedBytes += m.SizeBytes
	}
	for s := range d.streams {
		if s.late {
			st.Stuck++
		}
	}
	return st
}

// Close ends the device. Copies on their way are waited for, as long as the
// options say; then [ErrStuck] is returned and the context stays, until they
// end or the process does. Memories that are still open are given up.
func (d *CUDA) Close() error {
	d.mu.Lock()
	d.closed = true
	streams := make([]*cudaStream, 0, len(d.streams))
	for s := range d.streams {
		streams = append(streams, s)
	}
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), d.opts.CloseTimeout)
	defer cancel()
	var stuck []error
	for _, s := range streams {
		if err := s.Close(ctx); err != nil {
			stuck = append(stuck, err)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.wg.Wait()
		d.release()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return errors.Join(append(stuck, ErrStuck)...)
	}
}

// release gives the context back, once, when nothing uses it any more.
func (d *CUDA) release() {
	d.mu.Lock()
	was := d.released
	d.released = true
	open := d.mappings
	d.mappings = map[*cuda.Mapping]int{}
	d.mu.Unlock()
	if was {
		return
	}
	for m, n := range open {
		for range n {
			_ = m.Release()
		}
	}
	_ = d.ctx.Release() // the device is of no more use either way
}

// count books a job that ended.
func (d *CUDA) count(j *cudaJob, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	bytes := uint64(j.bytes)
	switch {
	case err != nil:
		d.stats.Failed++
		if errors.Is(err, ErrLost) {
			d.stats.Faults++
		}
	case j.job.Direction == copyplan.Store:
		d.stats.Stores++
		d.stats.StoreBytes += bytes
	default:
		d.stats.Loads++
		d.stats.LoadBytes += bytes
	}
}
