package zmtp

import "github.com/lmcache-go/lmcache-go/internal/bufpool"

// Placer is implemented by a [Handler] that knows, before a large frame has
// come, where its bytes belong.
type Placer interface {
	// Place is asked for each frame of 1 MiB and more, once all of the message
	// before it has come: frames, valid until Place returns. Nil: the frame
	// goes into a buffer. It runs on the goroutine that reads from the peer.
	Place(p *Peer, frames [][]byte, size int) *Placement
}

// Placement is where parts of a frame are read to, straight from the
// connection. The frame itself comes as long as it is, but what it holds there
// is arbitrary.
type Placement struct {
	// Parts in the order of the frame, inside it, not overlapping.
	Parts []Part
	// Frame is the index of the frame in its message; set by the reader.
	Frame int
	// Abandon is called if nobody has taken the placement from its message
	// when that ends, or when the connection does in its middle: nothing is
	// written to the parts any more.
	Abandon func()
	// Data belongs to the handler.
	Data any
}

// Part is a run of bytes that begins at an offset of a frame.
type Part struct {
	At  int
	Dst []byte
}

// TakePlacement returns the placement of the message's bytes, nil if there is
// none. It is the caller's then.
func (m *Message) TakePlacement() *Placement {
	pl := m.placed
	m.placed = nil
	return pl
}

// takeLarge reads a frame of size bytes that begins at an offset from the start
// of the message into a buffer of its own, or partly where its place is.
func (rd *reader) takeLarge(off, size int) (*bufpool.Buffer, error) {
	if rd.place == nil || rd.msg.placed != nil {
		return rd.large(off, size)
	}
	frames := make([][]byte, 0, len(rd.refs))
	for _, ref := range rd.refs {
		if ref.own != nil {
			return rd.large(off, size)
		}
		at := rd.r + ref.off
		frames = append(frames, rd.buf.B[at:at+ref.len:at+ref.len])
	}
	pl := rd.place(frames, size)
	if pl == nil {
		return rd.large(off, size)
	}
	pl.Frame = len(frames)
	rd.msg.placed = pl
	b := bufpool.Shared.Get(size)
	at := 0
	for _, part := range pl.Parts {
		if err := rd.take(off, b.B[at:part.At]); err != nil {
			return b, err
		}
		if err := rd.take(off, part.Dst); err != nil {
			return b, err
		}
		at = part.At + len(part.Dst)
	}
	return b, rd.take(off, b.B[at:size])
}

// large reads a frame of size bytes that begins at an offset from the start of
// the message into a buffer of its own, whose memory follows what has come:
// a size is only a promise.
func (rd *reader) large(off, size int) (*bufpool.Buffer, error) {
	b := bufpool.Shared.TryGet(size)
	if b == nil {
		b = bufpool.Shared.Get(min(size, firstLarge))
	}
	for n := 0; ; {
		if err := rd.take(off, b.B[n:min(size, len(b.B))]); err != nil {
			return b, err
		}
		if n = len(b.B); n >= size {
			return b, nil
		}
		bigger := bufpool.Shared.Get(min(size, growthLarge*n))
		copy(bigger.B, b.B)
		bufpool.Shared.Put(b)
		b = bigger
	}
}

// take fills dst with what comes next: what the buffer holds from an offset
// from the start of the message on, and then what the connection gives. What
// the buffer holds behind that closes up.
func (rd *reader) take(off int, dst []byte) error {
	at := rd.r + off
	n := copy(dst, rd.buf.B[at:rd.w])
	rd.w = at + copy(rd.buf.B[at:], rd.buf.B[at+n:rd.w])
	for n < len(dst) {
		if rd.beforeRead != nil {
			rd.beforeRead()
		}
		k, err := rd.read(dst[n:], true)
		n += k
		if err != nil && n < len(dst) {
			return err
		}
	}
	return nil
}
