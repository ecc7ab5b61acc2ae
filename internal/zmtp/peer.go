package zmtp

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of sending, and of connections that this side ended.
var (
	// ErrPeerGone: the connection has ended; the message is dropped.
	ErrPeerGone = errors.New("zmtp: the peer is gone")
	// ErrQueueFull: the peer does not read; the message is dropped.
	ErrQueueFull = errors.New("zmtp: the peer does not read, its queue is full")
	// ErrStalled: a message stopped in its middle, or a heartbeat did not come.
	ErrStalled = errors.New("zmtp: the peer has stopped sending")
	// ErrDuplicate: another connection has this identity.
	ErrDuplicate = errors.New("zmtp: another connection has this identity")
)

const (
	// byReference is the size from which a frame is not copied into the queue.
	byReference = 32 << 10
	// keptTail is the largest queue memory that a connection keeps.
	keptTail = 64 << 10
	// writePieces is how many pieces a call of writev gets.
	writePieces = 64
	// holdLimit is how long queued replies wait for more at most.
	holdLimit = 100 * time.Microsecond
)

// Peer is one connection to a [RouterSocket].
type Peer struct {
	// Data belongs to the [Handler]; it is set in Connected.
	Data any

	sock     *RouterSocket
	c        net.Conn
	raw      syscall.RawConn
	rd       reader
	identity string
	socket   string
	ttl      time.Duration // reader goroutine only: armed by a PING until the next bytes
	held     time.Time     // reader goroutine only: since when something waits for a flush

	// Of the watch, which looks at them once a turn.
	lastStep uint64
	stalled  int

	ended atomic.Bool

	mu     sync.Mutex
	tail   []byte    // guarded by mu: bytes behind segs
	segs   []segment // guarded by mu
	spare  []byte    // guarded by mu: an empty tail
	queued int64     // guarded by mu: bytes in segs and out
	msgs   int       // guarded by mu: messages in tail and segs
	outs   int       // guarded by mu: messages in out
	busy   bool      // guarded by mu: somebody writes
	gone   bool      // guarded by mu

	// Of whoever is busy.
	out   []segment
	try   tryWrite
	drain sync.WaitGroup
}

// segment is a run of bytes on its way; done is called when nobody reads it any more.
type segment struct {
	b    []byte
	done func()
	tail []byte // where b came from, if that was the tail
}

// Identity is the name by which a ROUTER calls the peer: its own, or one that
// was made for this connection. Do not modify it.
func (p *Peer) Identity() []byte { return []byte(p.identity) }

// SocketType is what the peer said it is: DEALER, REQ or ROUTER.
func (p *Peer) SocketType() string { return p.socket }

// RemoteAddr is where the peer is.
func (p *Peer) RemoteAddr() net.Addr { return p.c.RemoteAddr() }

// Close ends the connection; queued messages are dropped.
func (p *Peer) Close() {
	p.ended.Store(true)
	_ = p.c.Close()
}

// Send queues a message and writes what the connection takes at once. It never
// blocks. Frames of 32 KiB and more are not copied: they must not change any
// more. Any goroutine. Errors: [ErrPeerGone], [ErrQueueFull].
func (p *Peer) Send(frames ...[]byte) error {
	if err := p.queue(frames, nil, nil); err != nil {
		return err
	}
	p.flush()
	return nil
}

// Queue is Send for use in [Handler.Message]: what it queues is written when
// the handler has seen all messages that have come, or soon after.
func (p *Peer) Queue(frames ...[]byte) error {
	if err := p.queue(frames, nil, nil); err != nil {
		return err
	}
	if p.held.IsZero() {
		p.held = time.Now()
	}
	return nil
}

// SendPieces is Send of a message whose last frame, behind frames, is made of
// pieces, none of which is copied. They must not change until done is called,
// exactly once, when they were written or dropped; also when SendPieces fails.
func (p *Peer) SendPieces(done func(), pieces [][]byte, frames ...[]byte) error {
	if err := p.queue(frames, pieces, done); err != nil {
		done()
		return err
	}
	p.flush()
	return nil
}

// queue appends a message to what is to be written.
func (p *Peer) queue(frames, pieces [][]byte, done func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.gone:
		return ErrPeerGone
	case p.queued >= p.sock.opt.QueueBytes || p.msgs+p.outs >= p.sock.opt.QueueMessages:
		return ErrQueueFull
	}
	if p.tail == nil {
		p.tail, p.spare = p.spare, nil
	}
	for i, f := range frames {
		p.tail = AppendHead(p.tail, len(f), i < len(frames)-1 || pieces != nil)
		if len(f) < byReference {
			p.tail = append(p.tail, f...)
			continue
		}
		p.cut()
		p.segs = append(p.segs, segment{b: f})
		p.queued += int64(len(f))
	}
	if pieces != nil {
		size := 0
		for _, b := range pieces {
			size += len(b)
		}
		p.tail = AppendHead(p.tail, size, false)
		p.cut()
		for _, b := range pieces {
			p.segs = append(p.segs, segment{b: b})
		}
		p.segs = append(p.segs, segment{done: done})
		p.queued += int64(size)
	}
	p.msgs++
	return nil
}

// cut makes the tail a segment. mu is held.
func (p *Peer) cut() {
	if len(p.tail) > 0 {
		p.segs = append(p.segs, segment{b: p.tail, tail: p.tail})
		p.queued += int64(len(p.tail))
		p.tail = nil
	}
}

// release writes what Queue has gathered, if it has waited long enough or
// nothing more is there to be answered. Reader goroutine only.
func (p *Peer) release(idle bool) {
	if p.held.IsZero() || !idle && time.Since(p.held) < holdLimit {
		return
	}
	p.held = time.Time{}
	p.flush()
}

// flush writes what is queued, unless somebody else does so already. What the
// connection does not take at once is left to a goroutine that waits.
func (p *Peer) flush() {
	p.mu.Lock()
	if p.busy {
		p.mu.Unlock()
		return
	}
	for p.take() {
		p.busy = true
		p.mu.Unlock()
		left, written, err := p.try.write(p.raw, p.out)
		p.settle(left)
		p.mu.Lock()
		p.busy = false
		p.queued -= written
		if err != nil || p.gone {
			p.fail()
			return
		}
		if len(p.out) > 0 {
			p.busy = true
			p.drain.Go(p.writeRest)
			break
		}
	}
	p.mu.Unlock()
}

// take moves what is queued into out; false when there is nothing. mu is held,
// and nobody is busy but the caller.
func (p *Peer) take() bool {
	p.outs = 0
	if p.gone {
		return false
	}
	p.cut()
	if len(p.segs) == 0 {
		return false
	}
	p.out, p.segs = p.segs, p.out[:0]
	p.outs, p.msgs = p.msgs, 0
	return true
}

// settle drops from out what was written, up to left, which is its end.
func (p *Peer) settle(left []segment) {
	n := len(p.out) - len(left)
	for i := range p.out[:n] {
		p.end(&p.out[i])
	}
	k := copy(p.out, left)
	clear(p.out[k:])
	p.out = p.out[:k]
}

// end is called for a segment that nobody reads any more.
func (p *Peer) end(s *segment) {
	if s.done != nil {
		s.done()
	}
	if s.tail != nil && cap(s.tail) <= keptTail {
		p.mu.Lock()
		p.spare = s.tail[:0]
		p.mu.Unlock()
	}
}

// writeRest writes out and what is queued behind it, waiting for the peer. It
// ends with the connection at the latest.
func (p *Peer) writeRest() {
	bufs := make(net.Buffers, 0, writePieces)
	for {
		for len(p.out) > 0 {
			n := min(len(p.out), writePieces)
			bufs = bufs[:0]
			for _, s := range p.out[:n] {
				bufs = append(bufs, s.b)
			}
			rest := bufs // WriteTo consumes it
			written, err := rest.WriteTo(p.c)
			p.mu.Lock()
			p.queued -= written
			if err != nil {
				p.busy = false
				p.fail()
				return
			}
			p.mu.Unlock()
			p.settle(p.out[n:])
		}
		clear(bufs[:cap(bufs)])
		p.mu.Lock()
		if !p.take() {
			p.busy = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}

// fail drops everything and ends the connection, which is of no use any more.
// mu is held, and released; nobody is busy.
func (p *Peer) fail() {
	p.gone = true
	all := append(p.out, p.segs...)
	p.out, p.segs, p.tail, p.queued, p.msgs, p.outs = nil, nil, nil, 0, 0, 0
	p.mu.Unlock()
	for _, s := range all {
		if s.done != nil {
			s.done()
		}
	}
	p.Close()
}

// finish ends sending: the connection has been closed. It waits for the
// goroutine that writes.
func (p *Peer) finish() {
	p.mu.Lock()
	p.gone = true
	if p.busy {
		p.mu.Unlock() // whoever writes fails soon, and drops the rest
	} else {
		p.fail()
	}
	p.drain.Wait()
}

// idle reports whether everything that was queued has been written.
func (p *Peer) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone || !p.busy && len(p.segs) == 0 && len(p.tail) == 0
}

// tryWrite writes to a connection without waiting for it.
type tryWrite struct {
	segs    []segment
	written int64
	err     error
	iov     [][]byte
	fn      func(fd uintptr) bool
}

// write returns what the connection did not take, the first segment of which
// begins where the writing stopped, and the bytes that it did take.
func (t *tryWrite) write(raw syscall.RawConn, segs []segment) (left []segment, written int64, err error) {
	if t.fn == nil {
		t.fn = t.turn
	}
	t.segs, t.written, t.err = segs, 0, nil
	err = raw.Write(t.fn)
	left, t.segs = t.segs, nil
	clear(t.iov)
	if err == nil {
		err = t.err
	}
	return left, t.written, err
}

// turn always returns true: it is not to be called again when the connection
// takes more.
func (t *tryWrite) turn(fd uintptr) bool {
	for len(t.segs) > 0 {
		var n int
		var err error
		if len(t.segs) == 1 {
			if len(t.segs[0].b) == 0 {
				t.segs = t.segs[1:]
				return true
			}
			n, err = unix.Write(int(fd), t.segs[0].b)
		} else {
			t.iov = t.iov[:0]
			for i := range t.segs[:min(len(t.segs), writePieces)] {
				t.iov = append(t.iov, t.segs[i].b)
			}
			n, err = unix.Writev(int(fd), t.iov)
		}
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return true
		case err != nil:
			t.err = fmt.Errorf("write to the peer: %w", err)
			return true
		}
		t.written += int64(n)
		for len(t.segs) > 0 && n >= len(t.segs[0].b) {
			n -= len(t.segs[0].b)
			t.segs = t.segs[1:]
		}
		if n > 0 {
			t.segs[0].b = t.segs[0].b[n:]
		}
	}
	return true
}
