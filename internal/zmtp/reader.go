package zmtp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"

	"github.com/lmcache-go/lmcache-go/internal/bufpool"
	"github.com/lmcache-go/lmcache-go/internal/invariants"
)

const (
	// firstBuffer is what a connection starts with, keptBuffer the largest
	// buffer that it keeps while it waits; larger ones go back to the pool.
	firstBuffer = 4 << 10
	keptBuffer  = 64 << 10
	// largeFrame is the size from which a frame is read into a buffer of its own.
	largeFrame = 1 << 20
	// firstLarge is the most that a frame is given before its bytes have come;
	// from there on, growthLarge times of what has come.
	firstLarge  = 8 << 20
	growthLarge = 8
	// maxCommand bounds a command; READY has some 40 bytes, a PING at most 23.
	maxCommand = 16 << 10
	// maxParts bounds the frames of a message, also of those that are dropped.
	maxParts = 1024
	// detachWhole is the size from which a detached message takes the buffer
	// with it instead of a copy.
	detachWhole = 32 << 10
)

// reader cuts a stream into messages. The frames of a message lie in its
// buffer, or, large ones, in buffers of their own.
type reader struct {
	src      io.Reader
	maxBytes int64
	maxParts int // frames that are kept

	buf  *bufpool.Buffer
	r, w int // buf.B[r:w] is unread
	// filled: the last read took all that the buffer had room for.
	filled bool

	refs   []frameRef
	msg    Message
	passed int // bytes of the message in buf, before r

	// partial changes with every read inside a message and is 0 between
	// messages: whoever watches can tell a sender that has stopped.
	partial atomic.Uint64
	steps   uint64
	stalled atomic.Bool // the connection was closed because of that

	// beforeRead is called when everything that has come was taken.
	beforeRead func()
	// command is called for every command; body is valid until it returns.
	command func(body []byte) error
	// place may say where parts of a large frame go; nil: nobody does.
	place func(frames [][]byte, size int) *Placement
}

// frameRef is a frame: in its own buffer, or at an offset from the start of the message.
type frameRef struct {
	own      *bufpool.Buffer
	off, len int
}

// Message is one message of a peer.
type Message struct {
	// Frames are the parts, without the identity. They are valid until the
	// handler returns, or, of a detached message, until Release.
	Frames [][]byte

	rd     *reader // nil when detached
	own    []*bufpool.Buffer
	size   int
	placed *Placement
}

// Bytes is the size of all frames together.
func (m *Message) Bytes() int { return m.size }

// Detach moves the message out of the connection's buffer: the frames of the
// result stay valid until its Release. m is of no use afterwards.
func (m *Message) Detach() Message {
	out := Message{Frames: slices.Clone(m.Frames), own: slices.Clone(m.own), size: m.size, placed: m.TakePlacement()}
	m.own = m.own[:0]
	rd := m.rd
	if rd == nil {
		return out
	}
	start := rd.r - rd.passed
	if rd.passed >= detachWhole {
		// The buffer goes with the message; what was read behind it moves.
		rest := rd.buf.B[rd.r:rd.w]
		b := bufpool.Shared.Get(max(firstBuffer, len(rest)))
		rd.w = copy(b.B, rest)
		rd.r, rd.passed = 0, 0
		out.own = append(out.own, rd.buf)
		rd.buf = b
		return out
	}
	small := slices.Clone(rd.buf.B[start:rd.r])
	for i, ref := range rd.refs {
		if ref.own == nil {
			out.Frames[i] = small[ref.off : ref.off+ref.len : ref.off+ref.len]
		}
	}
	return out
}

// Release gives the buffers of a detached message back. Nobody may use its
// frames any more. Whoever drops a detached message without Release only
// leaves its buffers to the garbage collector.
func (m *Message) Release() {
	for _, b := range m.own {
		bufpool.Shared.Put(b)
	}
	m.own, m.Frames = nil, nil
	if pl := m.TakePlacement(); pl != nil && pl.Abandon != nil {
		pl.Abandon()
	}
}

// close gives the buffers back.
func (rd *reader) close() {
	rd.drop()
	bufpool.Shared.Put(rd.buf)
	rd.buf = nil
}

// drop ends the message that was handed out last.
func (rd *reader) drop() {
	for i, b := range rd.msg.own {
		bufpool.Shared.Put(b)
		rd.msg.own[i] = nil
	}
	rd.msg.own = rd.msg.own[:0]
	if pl := rd.msg.TakePlacement(); pl != nil && pl.Abandon != nil {
		pl.Abandon()
	}
	if invariants.Enabled && rd.passed > 0 {
		bufpool.Poison(rd.buf.B[rd.r-rd.passed : rd.r])
	}
	rd.passed = 0
}

// next returns the next message. It is valid until the next call.
func (rd *reader) next() (*Message, error) {
	rd.drop()
	rd.refs = rd.refs[:0]
	off, parts, total := 0, 0, int64(0)
	for {
		h, err := rd.head(off)
		if err != nil {
			return nil, err
		}
		if h.flags&flagCommand != 0 {
			if parts > 0 || h.flags&flagMore != 0 {
				return nil, fmt.Errorf("%w: a command inside a message", ErrProtocol)
			}
			if err := rd.takeCommand(h); err != nil {
				return nil, err
			}
			continue
		}
		total += int64(h.size)
		if total > rd.maxBytes {
			return nil, fmt.Errorf("%w: at least %d bytes, the limit is %d", ErrTooLarge, total, rd.maxBytes)
		}
		if parts++; parts > maxParts {
			return nil, fmt.Errorf("%w: more than %d frames", ErrTooLarge, maxParts)
		}
		off += h.bytes
		ref := frameRef{off: off, len: h.size}
		if h.size >= largeFrame {
			ref.own, err = rd.takeLarge(off, h.size)
			rd.msg.own = append(rd.msg.own, ref.own)
			if err != nil {
				return nil, err
			}
		} else {
			if err := rd.need(off + h.size); err != nil {
				return nil, err
			}
			off += h.size
		}
		if parts <= rd.maxParts {
			rd.refs = append(rd.refs, ref)
		}
		if h.flags&flagMore == 0 {
			break
		}
	}
	return rd.message(off, int(total)), nil
}

// message is what the refs stand for; off bytes of the buffer are its.
func (rd *reader) message(off, total int) *Message {
	rd.between()
	m := &rd.msg
	m.rd, m.size = rd, total
	m.Frames = m.Frames[:0]
	b := rd.buf.B[rd.r:rd.w]
	for _, ref := range rd.refs {
		if ref.own != nil {
			m.Frames = append(m.Frames, ref.own.B[:ref.len:ref.len])
		} else {
			m.Frames = append(m.Frames, b[ref.off:ref.off+ref.len:ref.off+ref.len])
		}
	}
	rd.r += off
	rd.passed = off
	return m
}

// between notes that a message or command is whole.
func (rd *reader) between() {
	if rd.steps != 0 {
		rd.steps = 0
		rd.partial.Store(0)
	}
}

// frameHead is what stands before a frame.
type frameHead struct {
	flags byte
	bytes int // of the head
	size  int // of the body
}

// head reads the head at an offset from the start of the message.
func (rd *reader) head(off int) (h frameHead, err error) {
	if err := rd.need(off + 2); err != nil {
		return h, err
	}
	b := rd.buf.B[rd.r+off:]
	h.flags = b[0]
	if h.flags > flagMore|flagLong|flagCommand {
		return h, fmt.Errorf("%w: flags %#x", ErrProtocol, h.flags)
	}
	if h.flags&flagLong == 0 {
		h.bytes, h.size = 2, int(b[1])
		return h, nil
	}
	if err := rd.need(off + 9); err != nil {
		return h, err
	}
	n := binary.BigEndian.Uint64(rd.buf.B[rd.r+off+1:])
	if n > uint64(rd.maxBytes) || uint64(int(n)) != n {
		return h, fmt.Errorf("%w: a frame of %d bytes, the limit is %d", ErrTooLarge, n, rd.maxBytes)
	}
	h.bytes, h.size = 9, int(n)
	return h, nil
}

// takeCommand reads the command whose head stands at r.
func (rd *reader) takeCommand(h frameHead) error {
	if h.size > maxCommand {
		return fmt.Errorf("%w: a command of %d bytes", ErrTooLarge, h.size)
	}
	if err := rd.need(h.bytes + h.size); err != nil {
		return err
	}
	body := rd.buf.B[rd.r+h.bytes : rd.r+h.bytes+h.size]
	rd.r += h.bytes + h.size
	rd.between()
	return rd.command(body)
}

// need reads until n bytes from the start of the message are there.
func (rd *reader) need(n int) error {
	for rd.w-rd.r < n {
		if rd.r == rd.w {
			rd.empty(n)
		}
		if have := len(rd.buf.B); rd.r+n > have || rd.r > 0 && have-rd.w < have/2 {
			rd.room(n)
		}
		if rd.beforeRead != nil {
			rd.beforeRead()
		}
		k, err := rd.read(rd.buf.B[rd.w:], rd.w > rd.r)
		rd.w += k
		rd.filled = rd.w == len(rd.buf.B)
		if err != nil && rd.w-rd.r < n {
			return err
		}
	}
	return nil
}

// empty starts over in the buffer, or in one of another size: large ones are
// not kept while nothing comes, and a small one that was filled was too small.
func (rd *reader) empty(n int) {
	rd.r, rd.w = 0, 0
	want := len(rd.buf.B)
	switch {
	case want > keptBuffer && n <= firstBuffer:
		want = firstBuffer
	case want < keptBuffer && rd.filled:
		want = keptBuffer
	default:
		return
	}
	bufpool.Shared.Put(rd.buf)
	rd.buf = bufpool.Shared.Get(want)
}

// room makes place for n bytes of the message: at the front, or in a larger buffer.
func (rd *reader) room(n int) {
	if n <= len(rd.buf.B) {
		rd.w = copy(rd.buf.B, rd.buf.B[rd.r:rd.w])
		rd.r = 0
		return
	}
	b := bufpool.Shared.Get(n)
	rd.w = copy(b.B, rd.buf.B[rd.r:rd.w])
	rd.r = 0
	bufpool.Shared.Put(rd.buf)
	rd.buf = b
}

// read is one read of the connection.
func (rd *reader) read(b []byte, inside bool) (int, error) {
	if inside {
		rd.steps++
		rd.partial.Store(rd.steps)
	}
	for range 100 {
		k, err := rd.src.Read(b)
		if err != nil && (rd.stalled.Load() || errors.Is(err, os.ErrDeadlineExceeded)) {
			err = fmt.Errorf("%w: %w", ErrStalled, err)
		}
		if k > 0 || err != nil {
			return k, err
		}
	}
	return 0, io.ErrNoProgress
}

// greeting reads the peer's greeting.
func (rd *reader) greeting() error {
	for n := 1; ; {
		if err := rd.need(n); err != nil {
			return fmt.Errorf("%w: read the greeting: %w", ErrHandshake, err)
		}
		have := min(rd.w-rd.r, greetingBytes)
		if err := checkGreeting(rd.buf.B[rd.r : rd.r+have]); err != nil {
			return err
		}
		if have == greetingBytes {
			rd.r += greetingBytes
			return nil
		}
		n = have + 1
	}
}

// ready reads the peer's READY.
func (rd *reader) ready() (ready, error) {
	h, err := rd.head(0)
	if err != nil {
		return ready{}, fmt.Errorf("%w: read READY: %w", ErrHandshake, err)
	}
	if h.flags&flagCommand == 0 || h.size > maxCommand {
		return ready{}, fmt.Errorf("%w: the peer sent flags %#x and %d bytes instead of READY", ErrHandshake, h.flags, h.size)
	}
	if err := rd.need(h.bytes + h.size); err != nil {
		return ready{}, fmt.Errorf("%w: read READY: %w", ErrHandshake, err)
	}
	body := rd.buf.B[rd.r+h.bytes : rd.r+h.bytes+h.size]
	rd.r += h.bytes + h.size
	rd.between()
	return parseReady(body)
}
