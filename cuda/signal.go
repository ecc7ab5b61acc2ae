package cuda

import (
	"encoding/binary"
	"fmt"

	"github.com/lmcache-go/lmcache-go/cuda/internal/capi"
)

// Lengths of the event bytes that engines send (lmcache 0.5.6, both event
// schemes), and of the timeline buffer.
const (
	eventBytes         = 64
	timelineBytes      = 81
	timelineVersion    = 1
	timelineBufferSize = 32 << 10
)

// SignalKind is one of the ways in which processes tell each other how far
// their streams are.
type SignalKind int

// The kinds.
const (
	// SignalNone: nothing to wait for.
	SignalNone SignalKind = iota
	// SignalEvent is a CUDA IPC event.
	SignalEvent
	// SignalTimeline is a number in the exporter's device memory that grows
	// (isolated_ipc).
	SignalTimeline
)

// String names the kind as messages do.
func (k SignalKind) String() string {
	switch k {
	case SignalNone:
		return "none"
	case SignalEvent:
		return "event"
	case SignalTimeline:
		return "timeline"
	}
	return fmt.Sprintf("SignalKind(%d)", int(k))
}

// Signal is a point in another process's stream, as it comes in a request.
type Signal struct {
	Kind SignalKind
	// Event of SignalEvent.
	Event EventHandle
	// Buffer, Offset in bytes and Sequence of SignalTimeline: the point is
	// reached when the number there is at least Sequence.
	Buffer           MemHandle
	Offset, Sequence uint64
}

// ParseSignal tells the kinds apart by their length: 0, 64 and 81 bytes.
func ParseSignal(b []byte) (Signal, error) {
	switch len(b) {
	case 0:
		return Signal{}, nil
	case eventBytes:
		return Signal{Kind: SignalEvent, Event: EventHandle(b)}, nil
	case timelineBytes:
		s := Signal{
			Kind: SignalTimeline, Buffer: MemHandle(b[1:65]),
			Offset: binary.BigEndian.Uint64(b[65:]), Sequence: binary.BigEndian.Uint64(b[73:]),
		}
		if b[0] != timelineVersion {
			return Signal{}, fmt.Errorf("%w: timeline event of version %d, known is %d", ErrHandle, b[0], timelineVersion)
		}
		if s.Offset%8 != 0 || s.Offset >= timelineBufferSize {
			return Signal{}, fmt.Errorf("%w: timeline event at byte %d", ErrHandle, s.Offset)
		}
		return s, nil
	}
	return Signal{}, fmt.Errorf("%w: event of %d bytes, known are 64 (CUDA event) and 81 (isolated_ipc)", ErrHandle, len(b))
}

// AppendTo appends the bytes of the wire.
func (s *Signal) AppendTo(b []byte) []byte {
	switch s.Kind {
	case SignalEvent:
		return append(b, s.Event[:]...)
	case SignalTimeline:
		b = append(b, timelineVersion)
		b = append(b, s.Buffer[:]...)
		b = binary.BigEndian.AppendUint64(b, s.Offset)
		return binary.BigEndian.AppendUint64(b, s.Sequence)
	case SignalNone:
	}
	return b
}

// timeline is the buffer in which this context's streams tell how far they are.
type timeline struct {
	buffer *Buffer
	handle MemHandle
	free   []uint64 // offsets of slots that no stream has
	next   uint64   // offset of the first slot never used; slot 0 is reserved
	last   map[uint64]uint64
}

// slot is a stream's place in the timeline.
type slot struct {
	line   *timeline
	offset uint64
	value  uint64 // the latest number queued; of whoever submits to the stream
}

// timelineSlot gives a stream its place.
func (c *Context) timelineSlot() (*slot, error) {
	c.mu.Lock()
	line := c.timeline
	c.mu.Unlock()
	if line == nil {
		made, err := c.newTimeline()
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		if c.timeline == nil {
			c.timeline, made = made, nil
		}
		line = c.timeline
		c.mu.Unlock()
		if made != nil { // another stream was first
			_ = made.buffer.Free()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(line.free)
	switch {
	case n > 0:
		offset := line.free[n-1]
		line.free = line.free[:n-1]
		return &slot{line: line, offset: offset, value: line.last[offset]}, nil
	case line.next >= timelineBufferSize:
		return nil, fmt.Errorf("%w: more than %d streams that answer by timeline", ErrUnsupported, timelineBufferSize/8-1)
	}
	line.next += 8
	return &slot{line: line, offset: line.next - 8}, nil
}

// newTimeline makes a zeroed buffer.
func (c *Context) newTimeline() (*timeline, error) {
	b, err := c.Alloc(timelineBufferSize)
	if err != nil {
		return nil, err
	}
	line := &timeline{buffer: b, next: 8, last: map[uint64]uint64{}}
	// By a stream of its own: the others may be waiting for their engines.
	zero, err := c.NewStream()
	if err == nil {
		err = c.do(capi.MemsetD8Async, b.Address, 0, timelineBufferSize, zero.h)
		if err == nil {
			err = zero.Wait()
		}
		_ = zero.Destroy()
	}
	if err == nil {
		line.handle, err = b.Handle()
	}
	if err != nil {
		_ = b.Free()
		return nil, err
	}
	return line, nil
}

// giveSlot takes a stream's place back. Numbers go on where they were.
func (c *Context) giveSlot(s *slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.line.last[s.offset] = s.value
	s.line.free = append(s.line.free, s.offset)
}
