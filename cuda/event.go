package cuda

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/lmcache-go/lmcache-go/cuda/internal/capi"
)

// Flags of cuEventCreate (cuda.h).
const (
	eventBlockingSync  = 1
	eventDisableTiming = 2
	eventInterprocess  = 4
)

// EventHandle names an event to other processes: the 64 bytes of
// cudaIpcEventHandle.
type EventHandle [64]byte

// String says what the driver writes into its handles, as far as it is known.
// For logs only.
func (h EventHandle) String() string {
	return fmt.Sprintf("event of process %d (shared memory cuda.shm.*.%x.%d)", h.PID(), h.PID(), binary.LittleEndian.Uint64(h[8:]))
}

// PID is the exporter's process id in its own pid namespace, as observed in
// handles of driver 580. For diagnostics only.
func (h EventHandle) PID() int { return int(int64(binary.LittleEndian.Uint64(h[:]))) }

// EventOptions configures an [Event].
type EventOptions struct {
	// Timing lets [Event.Since] measure; such an event costs a little more.
	Timing bool
	// Interprocess lets [Event.Handle] name it to other processes. Excludes Timing.
	Interprocess bool
}

// Event is a mark in a stream. A goroutine that waits for it sleeps.
type Event struct {
	c *Context
	h uint64
}

// NewEvent makes an event. One that was never recorded reads as done.
func (c *Context) NewEvent(o EventOptions) (*Event, error) {
	flags := uint64(eventBlockingSync)
	if !o.Timing {
		flags |= eventDisableTiming
	}
	if o.Interprocess {
		flags |= eventInterprocess
	}
	h, err := c.make(capi.EventCreate, flags)
	if err != nil {
		return nil, err
	}
	return &Event{c, h}, nil
}

// OpenEvent opens another process's event. What its last record marked when a
// stream begins to wait is what that stream waits for.
func (c *Context) OpenEvent(h EventHandle) (*Event, error) {
	var f capi.Frame
	copy(f.Blob[:], h[:])
	if err := c.call(capi.IpcOpenEventHandle, &f); err != nil {
		return nil, fmt.Errorf("%v: %w", h, err)
	}
	return &Event{c, f.Out[0]}, nil
}

// Handle names the event to other processes.
func (e *Event) Handle() (EventHandle, error) {
	f := capi.Frame{In: [8]uint64{e.h}}
	if err := e.c.call(capi.IpcGetEventHandle, &f); err != nil {
		return EventHandle{}, err
	}
	return EventHandle(f.Blob[:64]), nil
}

// Record marks the end of what the stream has to do now.
func (e *Event) Record(s *Stream) error { return e.c.do(capi.EventRecord, e.h, s.h) }

// Done says whether what was recorded last has happened.
func (e *Event) Done() (bool, error) {
	err := e.c.do(capi.EventQuery, e.h)
	if asResult(err) == NotReady {
		return false, nil
	}
	return err == nil, err
}

// Wait sleeps until what was recorded last has happened, for as long as that
// takes. It occupies a thread.
func (e *Event) Wait() error { return e.c.do(capi.EventSynchronize, e.h) }

// Since is the time between two events with Timing on the device, in
// milliseconds.
func (e *Event) Since(start *Event) (float64, error) {
	f := capi.Frame{In: [8]uint64{start.h, e.h}}
	err := e.c.call(capi.EventElapsedTime, &f)
	return float64(math.Float32frombits(binary.NativeEndian.Uint32(f.Blob[:]))), err
}

// Destroy gives the event back. Streams that wait for it go on waiting.
func (e *Event) Destroy() error { return e.c.do(capi.EventDestroy, e.h) }

// destroyEvent is Destroy where nobody can be told of a failure.
func (c *Context) destroyEvent(h uint64) {
	if h != 0 {
		_ = c.do(capi.EventDestroy, h)
	}
}

// exportedMax is how many exported events are kept for clients that still look
// at them (lmcache 0.5.6 keeps as many).
const exportedMax = 2048

// eventRing holds the latest exported events.
type eventRing struct {
	events []uint64
	next   int
}

// put keeps an event and returns the one that has to go, or 0.
func (r *eventRing) put(h uint64) (old uint64) {
	if len(r.events) < exportedMax {
		r.events = append(r.events, h)
		return 0
	}
	old, r.events[r.next] = r.events[r.next], h
	r.next = (r.next + 1) % exportedMax
	return old
}

func (r *eventRing) all() []uint64 { return r.events }

// keep holds an exported event until 2048 newer ones were exported.
func (c *Context) keep(h uint64) {
	c.mu.Lock()
	old := c.exported.put(h)
	c.mu.Unlock()
	c.destroyEvent(old)
}
