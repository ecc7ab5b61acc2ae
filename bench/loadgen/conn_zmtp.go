package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// zmtpConn is a DEALER over ZMTP 3.0 with the NULL mechanism
// (rfc.zeromq.org/spec/23), just enough of it for one connection to a ROUTER.
// It writes a batch of messages with one system call and reads likewise, so
// that the load generator leaves the machine to the server.
type zmtpConn struct {
	c   net.Conn
	r   *bufio.Reader
	out []byte

	body   []byte
	ends   []int
	frames [][]byte
}

// Bits of a frame's flags.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

const (
	readBufferBytes = 256 << 10
	// directBytes is the size from which a frame is written without being
	// copied into the batch.
	directBytes = 64 << 10
)

func dialZMTP(url string, timeout time.Duration) (*zmtpConn, error) {
	dialer := net.Dialer{Timeout: timeout}
	nc, err := dialer.DialContext(context.Background(), "tcp", strings.TrimPrefix(url, "tcp://"))
	if err != nil {
		return nil, err
	}
	c := &zmtpConn{c: nc, r: bufio.NewReaderSize(nc, readBufferBytes)}
	if err := errors.Join(nc.SetDeadline(time.Now().Add(timeout)), c.handshake(), nc.SetDeadline(time.Time{})); err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	return c, nil
}

// handshake exchanges greetings and READY commands.
func (c *zmtpConn) handshake() error {
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := []byte("\x05READY")
	for _, p := range [][2]string{{"Socket-Type", "DEALER"}, {"Identity", ""}} {
		ready = append(append(ready, byte(len(p[0]))), p[0]...)
		ready = append(binary.BigEndian.AppendUint32(ready, uint32(len(p[1]))), p[1]...)
	}
	c.out = append(append(c.out, greeting...), flagCommand, byte(len(ready)))
	c.out = append(c.out, ready...)
	if err := c.flush(); err != nil {
		return err
	}
	peer := make([]byte, 64)
	if _, err := io.ReadFull(c.r, peer); err != nil {
		return fmt.Errorf("read the greeting: %w", err)
	}
	if peer[0] != 0xff || peer[10] < 3 || !bytes.HasPrefix(peer[12:], []byte("NULL\x00")) {
		return fmt.Errorf("the peer does not speak ZMTP 3 with NULL security: % x", peer[:32])
	}
	flags, body, err := c.frame(nil)
	if err != nil {
		return fmt.Errorf("read READY: %w", err)
	}
	if flags&flagCommand == 0 || !bytes.HasPrefix(body, []byte("\x05READY")) {
		return fmt.Errorf("the peer answered %q instead of READY", body)
	}
	return nil
}

func (c *zmtpConn) send(frames ...[]byte) error {
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		if len(f) < 256 {
			c.out = append(c.out, flags, byte(len(f)))
		} else {
			c.out = binary.BigEndian.AppendUint64(append(c.out, flags|flagLong), uint64(len(f)))
		}
		if len(f) < directBytes {
			c.out = append(c.out, f...)
			continue
		}
		if err := c.flush(); err != nil {
			return err
		}
		if _, err := c.c.Write(f); err != nil {
			return err
		}
	}
	if len(c.out) > readBufferBytes {
		return c.flush()
	}
	return nil
}

func (c *zmtpConn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.c.Write(c.out)
	c.out = c.out[:0]
	return err
}

// frame reads one frame behind dst.
func (c *zmtpConn) frame(dst []byte) (flags byte, body []byte, err error) {
	var head [9]byte
	if flags, err = c.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	size := uint64(0)
	if flags&flagLong == 0 {
		b, err := c.r.ReadByte()
		if err != nil {
			return 0, nil, err
		}
		size = uint64(b)
	} else {
		if _, err := io.ReadFull(c.r, head[:8]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(head[:8])
	}
	if size > 8<<30 {
		return 0, nil, fmt.Errorf("a frame of %d bytes", size)
	}
	at := len(dst)
	if need := at + int(size); need > cap(dst) {
		dst = append(make([]byte, 0, need+need/4), dst...)
	}
	dst = dst[:at+int(size)]
	_, err = io.ReadFull(c.r, dst[at:])
	return flags, dst, err
}

func (c *zmtpConn) recv(wait time.Duration) ([][]byte, error) {
	if c.r.Buffered() == 0 {
		if wait == 0 {
			return nil, errNothing
		}
		if err := c.c.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return nil, err
		}
		_, err := c.r.Peek(1)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, errNothing
		}
		if err != nil {
			return nil, err
		}
		if err := c.c.SetReadDeadline(time.Time{}); err != nil {
			return nil, err
		}
	}
	c.body, c.ends = c.body[:0], c.ends[:0]
	for {
		at := len(c.body)
		flags, body, err := c.frame(c.body)
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if bytes.HasPrefix(body[at:], []byte("\x05ERROR")) {
				return nil, fmt.Errorf("the peer ends the connection: %q", body[at:])
			}
			c.body = body[:at] // heartbeats and the like
			if len(c.ends) == 0 {
				return nil, errNothing
			}
			continue
		}
		c.body = body
		c.ends = append(c.ends, len(body))
		if flags&flagMore == 0 {
			break
		}
	}
	c.frames = c.frames[:0]
	from := 0
	for _, end := range c.ends {
		c.frames = append(c.frames, c.body[from:end:end])
		from = end
	}
	return c.frames, nil
}

func (c *zmtpConn) close() error { return c.c.Close() }
