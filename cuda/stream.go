package cuda

import (
	"fmt"
	"unsafe"

	"github.com/lmcache-go/lmcache-go/cuda/internal/capi"
)

// Stream is a queue of copies and kernels on a device, which run in order.
// Submit and Launch may be called from one goroutine at a time; the rest is safe
// for concurrent use.
type Stream struct {
	c    *Context
	h    uint64
	slot *slot // nil until the first answer by timeline

	// Timeline buffers of the engines whose requests came: kept, since every
	// request of an engine names the same.
	lines map[MemHandle]*Mapping
	job   capi.Job
}

// NewStream makes a stream that is not ordered with any other.
func (c *Context) NewStream() (*Stream, error) {
	h, err := c.make(capi.StreamCreate, streamNonBlocking)
	if err != nil {
		return nil, err
	}
	return &Stream{c: c, h: h}, nil
}

// Context of the stream.
func (s *Stream) Context() *Context { return s.c }

// Destroy gives the stream back. What is queued still runs. A stream that
// waits for a peer that has died must never be destroyed: leave it.
func (s *Stream) Destroy() error {
	if s.slot != nil {
		s.c.giveSlot(s.slot)
		s.slot = nil
	}
	err := s.c.do(capi.StreamDestroy, s.h)
	for _, m := range s.lines {
		_ = m.Release()
	}
	s.lines = nil
	return err
}

// Idle says whether everything queued has run.
func (s *Stream) Idle() (bool, error) {
	err := s.c.do(capi.StreamQuery, s.h)
	if asResult(err) == NotReady {
		return false, nil
	}
	return err == nil, err
}

// Wait sleeps until everything queued has run.
func (s *Stream) Wait() error { return s.c.do(capi.StreamSynchronize, s.h) }

// WaitFor makes the stream wait for an event.
func (s *Stream) WaitFor(e *Event) error { return s.c.do(capi.StreamWaitEvent, s.h, e.h) }

// Copy queues one copy; the driver finds out where the addresses are. Host
// memory must be pinned.
func (s *Stream) Copy(dst, src uint64, n int64) error {
	return s.c.do(capi.MemcpyAsync, dst, src, uint64(n), s.h)
}

// Fill queues a fill with one byte value.
func (s *Stream) Fill(dst uint64, value byte, n int64) error {
	return s.c.do(capi.MemsetD8Async, dst, uint64(value), uint64(n), s.h)
}

// WaitValue makes the stream wait until the 8 bytes at a device address are at
// least value.
func (s *Stream) WaitValue(address, value uint64) error {
	return s.c.do(capi.StreamWaitValue64, s.h, address, value)
}

// WriteValue queues a write of 8 bytes to a device address.
func (s *Stream) WriteValue(address, value uint64) error {
	return s.c.do(capi.StreamWriteValue64, s.h, address, value)
}

// Direction of a request's copies.
type Direction int32

// The directions.
const (
	ToHost    = Direction(capi.ToHost)
	ToDevice  = Direction(capi.ToDevice)
	Anywhere  = Direction(capi.Anywhere)
	batchSize = 512 // copies in one call of the driver: more are not faster, and the first begins later
)

// Rect is a 2-D copy: Height rows of Width bytes, which lie DstPitch and
// SrcPitch bytes apart.
type Rect struct{ Dst, Src, Width, Height, DstPitch, SrcPitch uint64 }

// Request is what [Stream.Submit] queues: wait for After, copy, tell. The
// slices may be used again when Submit has returned; memory that is copied, and
// the Done event, not before Done has happened.
type Request struct {
	Direction Direction
	// After is waited for first, in the stream. While it waits for another
	// process, the driver unmaps, frees and unpins nothing in this context, and
	// thousands of copies behind it stop other streams (seen on an H200): ask
	// from the host instead where that process may die.
	After Signal
	// Dst, Src and Size of plain copies, all of one length.
	Dst, Src, Size []uint64
	// Rects of 2-D copies.
	Rects []Rect
	// Answer says how the end of the copies is told to another process.
	Answer SignalKind
	// Done is recorded last, if not nil; Begin behind the wait.
	Done, Begin *Event
}

// Receipt is what Submit left behind.
type Receipt struct {
	// Answer is the signal that fires when the copies are done.
	Answer Signal
	// Queued says that copies may be under way: always on success, and after a
	// failure in the middle. Unmarked says that Done is not behind them, so
	// that only [Stream.Wait] can tell.
	Queued, Unmarked bool
	// Copies that were handed to the driver.
	Copies int

	imported uint64
}

// Close gives back what the request needed while it ran. Call it when its Done
// has happened.
func (s *Stream) Close(r *Receipt) {
	s.c.destroyEvent(r.imported)
	r.imported = 0
}

// Submit queues a whole request by one call into C. It allocates nothing. On a
// failure in the middle, what was queued before still runs: see [Receipt].
func (s *Stream) Submit(r *Request) (Receipt, error) {
	if len(r.Src) != len(r.Dst) || len(r.Size) != len(r.Dst) {
		return Receipt{}, fmt.Errorf("%w: %d, %d and %d copies", ErrHandle, len(r.Dst), len(r.Src), len(r.Size))
	}
	j := &s.job
	*j = capi.Job{Ctx: s.c.h, Stream: s.h, Direction: int32(r.Direction), BatchMax: batchSize, Wait: int32(r.After.Kind), Record: int32(r.Answer)}
	switch r.After.Kind {
	case SignalEvent:
		j.WaitHandle = r.After.Event
	case SignalTimeline:
		if r.After.Sequence == 0 { // reached from the beginning
			j.Wait = capi.SyncNone
			break
		}
		m, err := s.line(r.After.Buffer)
		if err != nil {
			return Receipt{}, err
		}
		if int64(r.After.Offset)+8 > m.SizeBytes {
			return Receipt{}, fmt.Errorf("%w: timeline event at byte %d of %d", ErrHandle, r.After.Offset, m.SizeBytes)
		}
		j.WaitAddress, j.WaitValue = m.Address+r.After.Offset, r.After.Sequence
	case SignalNone:
	}
	if r.Done != nil {
		j.DoneEvent = r.Done.h
	}
	if r.Begin != nil {
		j.BeginEvent = r.Begin.h
	}
	if r.Answer == SignalTimeline {
		if s.slot == nil {
			var err error
			if s.slot, err = s.c.timelineSlot(); err != nil {
				return Receipt{}, err
			}
		}
		s.slot.value++
		j.RecordAddress, j.RecordValue = s.slot.line.buffer.Address+s.slot.offset, s.slot.value
	}
	res := Result(s.c.d.c.Submit(j, r.Dst, r.Src, r.Size, rects(r.Rects)))
	out := Receipt{Queued: j.Queued != capi.QueuedNothing, Unmarked: j.Queued == capi.QueuedUnmarked, Copies: int(j.Copies), imported: j.Imported}
	if j.Exported != 0 {
		s.c.keep(j.Exported)
	}
	if res != 0 {
		err := s.c.d.fail(s.c.dev, j.Failed, res)
		if j.Failed == capi.IpcOpenEventHandle {
			err = fmt.Errorf("%v: %w", r.After.Event, err)
		}
		return out, err
	}
	out.Answer.Kind = r.Answer
	switch r.Answer {
	case SignalEvent:
		out.Answer.Event = j.ExportedHandle
	case SignalTimeline:
		out.Answer.Buffer, out.Answer.Offset, out.Answer.Sequence = s.slot.line.handle, s.slot.offset, s.slot.value
	case SignalNone:
	}
	return out, nil
}

// rects are the same, as C has them.
func rects(r []Rect) []capi.Rect {
	return unsafe.Slice((*capi.Rect)(unsafe.Pointer(unsafe.SliceData(r))), len(r))
}

// line is the mapping of an engine's timeline buffer.
func (s *Stream) line(h MemHandle) (*Mapping, error) {
	if m := s.lines[h]; m != nil {
		return m, nil
	}
	m, err := s.c.OpenMemory(h)
	if err != nil {
		return nil, err
	}
	if s.lines == nil {
		s.lines = map[MemHandle]*Mapping{}
	}
	s.lines[h] = m
	return m, nil
}
