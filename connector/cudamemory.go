package connector

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// CUDAOptions configures a [CUDAMemory].
type CUDAOptions struct {
	// Stream that the engine computes on. A server waits for what was submitted
	// to it before [Memory].Record. Required, and not closed by the memory.
	Stream *cuda.Stream
	// IsolatedIPC tells how far streams are by numbers in device memory instead
	// of CUDA events, which need a common /dev/shm: [Config].IsolatedIPC.
	IsolatedIPC bool
}

// CUDAMemory is memory of one GPU that a server opens by CUDA IPC: the KV cache
// of an engine with a GPU. Server and engine are different processes on one
// machine. Its methods may be called by one goroutine at a time, but for
// Complete, which any may call.
type CUDAMemory struct {
	ctx     *cuda.Context
	stream  *cuda.Stream
	kind    cuda.SignalKind
	buffers []*cuda.Buffer
	handles []cuda.MemHandle

	mu     sync.Mutex
	events map[cuda.EventHandle]*cuda.Event // guarded by mu: the server's, not yet done
	// What a timeline is looked at with, made for the first one.
	side  *cuda.Stream                     // guarded by mu
	seen  *cuda.HostBuffer                 // guarded by mu
	lines map[cuda.MemHandle]*cuda.Mapping // guarded by mu: the server's
}

// NewCUDAMemory allocates a storage of each size, undefined in content, on the
// GPU of ctx, which must outlive it. Close frees them.
func NewCUDAMemory(ctx *cuda.Context, o CUDAOptions, sizes ...int64) (_ *CUDAMemory, err error) {
	if o.Stream == nil {
		return nil, fmt.Errorf("%w: CUDA memory needs the stream that the engine computes on", ErrConfig)
	}
	m := &CUDAMemory{
		ctx: ctx, stream: o.Stream, kind: cuda.SignalEvent,
		events: make(map[cuda.EventHandle]*cuda.Event), lines: make(map[cuda.MemHandle]*cuda.Mapping),
	}
	if o.IsolatedIPC {
		m.kind = cuda.SignalTimeline
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	for _, n := range sizes {
		b, err := ctx.Alloc(n)
		if err != nil {
			return nil, fmt.Errorf("connector: %d bytes of the GPU: %w", n, err)
		}
		m.buffers = append(m.buffers, b)
		h, err := b.Handle()
		if err != nil {
			return nil, fmt.Errorf("connector: name the memory to a server: %w", err)
		}
		m.handles = append(m.handles, h)
	}
	return m, nil
}

// Address of a storage on the device, for the engine's own kernels and copies.
func (m *CUDAMemory) Address(storage int) uint64 { return m.buffers[storage].Address }

// Sizes of the storages.
func (m *CUDAMemory) Sizes() []int64 {
	out := make([]int64, len(m.buffers))
	for i, b := range m.buffers {
		out[i] = b.SizeBytes
	}
	return out
}

// Host is nil: the server copies.
func (m *CUDAMemory) Host() [][]byte { return nil }

// Source is the driver's handle of the storage.
func (m *CUDAMemory) Source(storage int) (wire.DeviceSource, error) {
	return &wire.CUDARaw{Handle: m.handles[storage], SizeBytes: m.buffers[storage].SizeBytes}, nil
}

// DeviceUUID of the GPU.
func (m *CUDAMemory) DeviceUUID() string { return m.ctx.Device().UUID }

// Record marks the end of what the engine has submitted to its stream.
func (m *CUDAMemory) Record() ([]byte, error) {
	r, err := m.stream.Submit(&cuda.Request{Answer: m.kind})
	if err != nil {
		return nil, err
	}
	return r.Answer.AppendTo(nil), nil
}

// Complete looks whether a server's copy is done. An event that cannot be
// opened is an error: whether the bytes have arrived is not known then.
func (m *CUDAMemory) Complete(event []byte) (bool, error) {
	s, err := cuda.ParseSignal(event)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch s.Kind {
	case cuda.SignalEvent:
		return m.fired(s.Event)
	case cuda.SignalTimeline:
		return m.reached(&s)
	case cuda.SignalNone:
	}
	return true, nil
}

// fired looks at an event of the server, which stays open until it is done.
// m.mu is held.
func (m *CUDAMemory) fired(h cuda.EventHandle) (bool, error) {
	e := m.events[h]
	if e == nil {
		var err error
		if e, err = m.ctx.OpenEvent(h); err != nil {
			return false, err
		}
		m.events[h] = e
	}
	done, err := e.Done()
	if done || err != nil {
		delete(m.events, h)
		err = errors.Join(err, e.Destroy())
	}
	return done, err
}

// reached looks at a number of the server. m.mu is held.
func (m *CUDAMemory) reached(s *cuda.Signal) (_ bool, err error) {
	if s.Sequence == 0 {
		return true, nil
	}
	if m.side == nil {
		if m.side, err = m.ctx.NewStream(); err != nil {
			return false, err
		}
	}
	if m.seen == nil {
		if m.seen, err = m.ctx.AllocHost(8); err != nil {
			return false, err
		}
	}
	line := m.lines[s.Buffer]
	if line == nil {
		if line, err = m.ctx.OpenMemory(s.Buffer); err != nil {
			return false, err
		}
		m.lines[s.Buffer] = line
	}
	if int64(s.Offset)+8 > line.SizeBytes {
		return false, fmt.Errorf("%w: timeline event at byte %d of %d", cuda.ErrHandle, s.Offset, line.SizeBytes)
	}
	// Nothing else is on this stream: the wait is for 8 bytes.
	if err = m.side.Copy(m.seen.Address, line.Address+s.Offset, 8); err == nil {
		err = m.side.Wait()
	}
	return err == nil && binary.NativeEndian.Uint64(m.seen.Bytes()) >= s.Sequence, err
}

// Close frees the storages and what was opened of servers. Close the [Worker]
// first: a server that copies still has the memory open.
func (m *CUDAMemory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, e := range m.events {
		errs = append(errs, e.Destroy())
	}
	for _, line := range m.lines {
		errs = append(errs, line.Release())
	}
	if m.seen != nil {
		errs = append(errs, m.seen.Free())
	}
	if m.side != nil {
		errs = append(errs, m.side.Destroy())
	}
	for _, b := range m.buffers {
		errs = append(errs, b.Free())
	}
	clear(m.events)
	clear(m.lines)
	m.seen, m.side, m.buffers, m.handles = nil, nil, nil, nil
	return errors.Join(errs...)
}
