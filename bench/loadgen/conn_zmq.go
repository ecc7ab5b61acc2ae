package main

import (
	"errors"
	"syscall"
	"time"

	"github.com/pebbe/zmq4"
)

// zmqConn is a DEALER of libzmq. Like every libzmq socket it belongs to one
// goroutine at a time.
type zmqConn struct {
	s      *zmq4.Socket
	frames [][]byte
	wait   time.Duration
}

func dialZMQ(url string) (*zmqConn, error) {
	s, err := zmq4.NewSocket(zmq4.DEALER)
	if err != nil {
		return nil, err
	}
	c := &zmqConn{s: s, wait: -1}
	if err := errors.Join(s.SetLinger(0), s.SetSndhwm(0), s.SetRcvhwm(0), s.Connect(url)); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return c, nil
}

func (c *zmqConn) send(frames ...[]byte) error {
	for i, f := range frames {
		flag := zmq4.SNDMORE
		if i == len(frames)-1 {
			flag = 0
		}
		if _, err := c.s.SendBytes(f, flag); err != nil {
			return err
		}
	}
	return nil
}

func (c *zmqConn) flush() error { return nil }

func (c *zmqConn) recv(wait time.Duration) ([][]byte, error) {
	flag := zmq4.DONTWAIT
	if wait > 0 {
		flag = 0
		if wait != c.wait {
			if err := c.s.SetRcvtimeo(wait); err != nil {
				return nil, err
			}
			c.wait = wait
		}
	}
	c.frames = c.frames[:0]
	for {
		f, err := c.s.RecvBytes(flag)
		if zmq4.AsErrno(err) == zmq4.Errno(syscall.EAGAIN) {
			return nil, errNothing
		}
		if err != nil {
			return nil, err
		}
		c.frames = append(c.frames, f)
		more, err := c.s.GetRcvmore()
		if err != nil {
			return nil, err
		}
		if !more {
			return c.frames, nil
		}
		flag = 0
	}
}

func (c *zmqConn) close() error { return c.s.Close() }
