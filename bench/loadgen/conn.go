package main

import (
	"errors"
	"fmt"
	"time"
)

// conn is a DEALER socket: the client's end of the MP protocol's transport.
type conn interface {
	// send queues a message; the frames may be reused when it returns.
	send(frames ...[]byte) error
	// flush hands what was queued to the kernel or to libzmq.
	flush() error
	// recv returns the next message, whose frames are valid until the next
	// call. It waits no longer than wait, then returns errNothing; a wait of 0
	// takes only what is there already.
	recv(wait time.Duration) ([][]byte, error)
	close() error
}

// errNothing: no message came in time.
var errNothing = errors.New("no message")

func dial(transport, url string, timeout time.Duration) (conn, error) {
	var c conn
	var err error
	if transport == "zmq" {
		c, err = dialZMQ(url)
	} else {
		c, err = dialZMTP(url, timeout)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	return c, nil
}
