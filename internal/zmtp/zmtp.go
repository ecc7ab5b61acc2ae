// Package zmtp speaks ZMTP 3.0 and 3.1 (rfc.zeromq.org/spec/23 and /37) with the
// NULL mechanism: both sides of what a DEALER and a ROUTER of libzmq say to each
// other, and no more.
//
// A [Conn] is one connection without queues, reconnecting or goroutines; those
// belong to its user. It may be read by one goroutine and written by another at
// the same time. After any error it is of no use: messages have no marks to
// find again.
//
// A [RouterSocket] listens and serves many peers: see there.
package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Bits of a frame's flags.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

const (
	greetingBytes   = 64
	readBufferBytes = 64 << 10
	// maxFrames bounds a message; those of the MP protocol have at most 10.
	maxFrames = 64
)

// Errors of a connection, wrapped with what was seen.
var (
	// ErrHandshake: the peer is no ZMTP 3 peer with NULL security that takes our kind of socket.
	ErrHandshake = errors.New("zmtp: handshake failed")
	// ErrProtocol: the peer sent something that no ZMTP peer sends.
	ErrProtocol = errors.New("zmtp: not a ZMTP message")
	// ErrTooLarge: a frame, or the number of frames, exceeds the limit.
	ErrTooLarge = errors.New("zmtp: message too large")
)

// Conn is a ZMTP connection after its handshake.
type Conn struct {
	nc       net.Conn
	r        *bufio.Reader
	maxBytes int64
	scratch  []byte
	ends     []int
	frames   [][]byte
}

// Dealer does the handshake of a DEALER on nc, which it does not close when
// that fails. Deadlines are the caller's to set. maxBytes bounds a frame.
func Dealer(nc net.Conn, maxBytes int64) (*Conn, error) {
	return Handshake(nc, "DEALER", "", maxBytes)
}

// Router does the handshake of a ROUTER, for tests that play a server.
func Router(nc net.Conn, maxBytes int64) (*Conn, error) {
	return Handshake(nc, "ROUTER", "", maxBytes)
}

// Handshake is [Dealer] for a socket of another type, such as REQ, that may have
// chosen an identity. What a REQ puts around its messages, an empty frame, is
// the caller's to add and to take off.
func Handshake(nc net.Conn, socket, identity string, maxBytes int64) (*Conn, error) {
	c := &Conn{nc: nc, r: bufio.NewReaderSize(nc, readBufferBytes), maxBytes: maxBytes}
	out := appendReady(newGreeting(), socket, identity)
	// Both sides send first and then read; a peer over a pipe without a
	// buffer needs the write to run beside the read.
	sent := make(chan error, 1)
	go func() {
		_, err := nc.Write(out)
		sent <- err
	}()
	err := c.readReady()
	if err != nil {
		// The write may hang on a peer that does not read; the caller closes
		// nc or its deadline passes, and the channel has room.
		return nil, err
	}
	if err := <-sent; err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHandshake, err)
	}
	return c, nil
}

func (c *Conn) readReady() error {
	peer := make([]byte, greetingBytes)
	if _, err := io.ReadFull(c.r, peer); err != nil {
		return fmt.Errorf("%w: read the greeting: %w", ErrHandshake, err)
	}
	if err := checkGreeting(peer); err != nil {
		return err
	}
	flags, body, err := c.frame(nil)
	if err != nil {
		return fmt.Errorf("%w: read READY: %w", ErrHandshake, err)
	}
	if flags&flagCommand == 0 {
		return fmt.Errorf("%w: the peer answered %.64q instead of READY", ErrHandshake, body)
	}
	_, err = parseReady(body)
	return err
}

// AppendHead appends what stands before a frame of n bytes; more says that
// another frame of the message follows. A message is written with Write once
// all of it is appended.
func AppendHead(dst []byte, n int, more bool) []byte {
	var flags byte
	if more {
		flags = flagMore
	}
	if n < 256 {
		return append(dst, flags, byte(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, flags|flagLong), uint64(n))
}

// AppendFrame appends a whole frame.
func AppendFrame(dst, frame []byte, more bool) []byte {
	return append(AppendHead(dst, len(frame), more), frame...)
}

// Write sends bytes made of the Append functions.
func (c *Conn) Write(b []byte) error {
	_, err := c.nc.Write(b)
	return err
}

// WriteBuffers sends several such pieces with one system call where the
// connection can.
func (c *Conn) WriteBuffers(b net.Buffers) error {
	_, err := b.WriteTo(c.nc)
	return err
}

// SetDeadline bounds reads and writes from now on; the zero time ends that.
func (c *Conn) SetDeadline(t time.Time) error { return c.nc.SetDeadline(t) }

// Close closes the connection.
func (c *Conn) Close() error { return c.nc.Close() }

// Read returns the next message. All frames but the last are valid until the
// next call; the last one belongs to the caller. That is what replies need:
// uid and operation are looked at on the spot, the value is kept.
func (c *Conn) Read() ([][]byte, error) {
	c.scratch, c.ends = c.scratch[:0], c.ends[:0]
	for {
		flags, size, err := c.head()
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if err := c.command(size); err != nil {
				return nil, err
			}
			continue
		}
		if flags&flagMore == 0 {
			last := make([]byte, size)
			if _, err := io.ReadFull(c.r, last); err != nil {
				return nil, fmt.Errorf("read a frame of %d bytes: %w", size, err)
			}
			return c.message(last), nil
		}
		if len(c.ends) == maxFrames {
			return nil, fmt.Errorf("%w: more than %d frames", ErrTooLarge, maxFrames)
		}
		if c.scratch, err = c.body(c.scratch, size); err != nil {
			return nil, err
		}
		c.ends = append(c.ends, len(c.scratch))
	}
}

func (c *Conn) message(last []byte) [][]byte {
	c.frames = c.frames[:0]
	from := 0
	for _, end := range c.ends {
		c.frames = append(c.frames, c.scratch[from:end:end])
		from = end
	}
	c.frames = append(c.frames, last)
	return c.frames
}

// command reads and drops a command, such as a heartbeat, which a peer sends
// between messages only.
func (c *Conn) command(size int) error {
	if len(c.ends) > 0 {
		return fmt.Errorf("%w: a command inside a message", ErrProtocol)
	}
	body, err := c.body(c.scratch, size)
	if err != nil {
		return err
	}
	c.scratch = body[:0]
	if bytes.HasPrefix(body, []byte("\x05ERROR")) {
		return fmt.Errorf("%w: the peer ends the connection: %.64q", ErrProtocol, body)
	}
	return nil
}

// frame reads one frame behind dst.
func (c *Conn) frame(dst []byte) (flags byte, body []byte, err error) {
	flags, size, err := c.head()
	if err != nil {
		return 0, nil, err
	}
	body, err = c.body(dst, size)
	return flags, body, err
}

// head reads the flags and length of a frame.
func (c *Conn) head() (flags byte, size int, err error) {
	flags, err = c.r.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	if flags > flagMore|flagLong|flagCommand {
		return 0, 0, fmt.Errorf("%w: flags %#x", ErrProtocol, flags)
	}
	n := uint64(0)
	if flags&flagLong == 0 {
		b, err := c.r.ReadByte()
		if err != nil {
			return 0, 0, err
		}
		n = uint64(b)
	} else {
		var long [8]byte
		if _, err := io.ReadFull(c.r, long[:]); err != nil {
			return 0, 0, err
		}
		n = binary.BigEndian.Uint64(long[:])
	}
	if n > uint64(c.maxBytes) || uint64(int(n)) != n {
		return 0, 0, fmt.Errorf("%w: a frame of %d bytes, the limit is %d", ErrTooLarge, n, c.maxBytes)
	}
	return flags, int(n), nil
}

// body reads size bytes behind dst.
func (c *Conn) body(dst []byte, size int) ([]byte, error) {
	at := len(dst)
	if need := at + size; need > cap(dst) {
		dst = append(make([]byte, 0, need+need/4), dst...)
	}
	dst = dst[:at+size]
	if _, err := io.ReadFull(c.r, dst[at:]); err != nil {
		return nil, fmt.Errorf("read a frame of %d bytes: %w", size, err)
	}
	return dst, nil
}
