package connector

import (
	"context"
	"net"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/zmtp"
)

// run keeps a connection until the client is closed. It owns everything that
// reads or writes one.
func (c *Client) run(ctx context.Context) {
	defer close(c.done)
	defer c.endAll()
	wait := reconnectFirst
	for ctx.Err() == nil {
		conn, err := c.open(ctx)
		if err != nil {
			c.log.Debug("the server cannot be reached", "component", "mq", "url", c.url, "err", err)
			if !sleep(ctx, wait) {
				return
			}
			wait = min(2*wait, reconnectMax)
			continue
		}
		wait = reconnectFirst
		if c.connections.Add(1) > 1 {
			select {
			case c.connected <- struct{}{}:
			default:
			}
		}
		err = c.serve(ctx, conn)
		if ctx.Err() == nil {
			c.log.Info("connection to the server lost", "component", "mq", "url", c.url, "err", err)
			// A server that accepts and hangs up at once is not asked again
			// without a pause.
			if !sleep(ctx, wait) {
				return
			}
		}
	}
}

// open connects and shakes hands.
func (c *Client) open(ctx context.Context) (*zmtp.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	nc, err := c.dial(ctx, c.network, c.address)
	if err != nil {
		return nil, err
	}
	// Ends the handshake when the client is closed or the time is up.
	unwatch := context.AfterFunc(ctx, func() { _ = nc.Close() })
	conn, err := zmtp.Dealer(nc, maxReplyBytes)
	if err != nil || !unwatch() {
		_ = nc.Close()
		if err == nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return conn, nil
}

// serve sends what is queued and reads replies until the connection ends.
func (c *Client) serve(ctx context.Context, conn *zmtp.Conn) error {
	c.mu.Lock()
	c.epoch++
	c.up = true
	epoch := c.epoch
	c.mu.Unlock()
	failed := make(chan struct{})
	var readErr error
	go func() {
		defer close(failed)
		for {
			frames, err := conn.Read()
			if err != nil {
				readErr = err
				return
			}
			c.deliver(frames)
		}
	}()
	writeErr := c.writeLoop(ctx, conn, epoch, failed)
	_ = conn.Close()
	<-failed
	c.lost(epoch)
	if writeErr != nil {
		return writeErr
	}
	return readErr
}

// writeLoop sends until something fails or the client is closed.
func (c *Client) writeLoop(ctx context.Context, conn *zmtp.Conn, epoch uint64, failed <-chan struct{}) error {
	batch := make([]*message, 0, maxBatchMessages)
	var pieces net.Buffers
	// A peer that does not read must not keep Close waiting.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	for {
		batch = c.takeBatch(batch[:0], epoch)
		if len(batch) == 0 {
			select {
			case <-c.wake:
				continue
			case <-failed:
				return nil
			case <-ctx.Done():
				return nil
			}
		}
		pieces = pieces[:0]
		for _, m := range batch {
			if m.call != nil {
				pieces = append(pieces, m.buf)
			}
		}
		var err error
		switch len(pieces) {
		case 0:
		case 1:
			err = conn.Write(pieces[0])
		default:
			err = conn.WriteBuffers(pieces)
		}
		for i, m := range batch {
			if m.sent != nil {
				close(m.sent)
			} else {
				m.release()
			}
			batch[i] = nil
		}
		if err != nil {
			return err
		}
	}
}

// takeBatch moves messages out of the queue, but for those whose caller has
// given up, and notes that they go out on this connection.
func (c *Client) takeBatch(batch []*message, epoch uint64) []*message {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, m := range c.queue {
		if len(batch) == maxBatchMessages {
			break
		}
		n++
		if m.call != nil {
			if c.pending[m.call.uid] != m.call {
				m.release()
				continue
			}
			m.call.epoch = epoch
		}
		batch = append(batch, m)
	}
	rest := copy(c.queue, c.queue[n:])
	clear(c.queue[rest:])
	c.queue = c.queue[:rest]
	return batch
}

// lost ends the calls whose replies cannot come any more.
func (c *Client) lost(epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up = false
	err := ErrDisconnected
	if c.closed {
		err = ErrClosed
	}
	for uid, k := range c.pending {
		if k.epoch == epoch {
			delete(c.pending, uid)
			k.finish(nil, false, err)
		}
	}
}

// endAll ends everything when the client closes.
func (c *Client) endAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, k := range c.pending {
		delete(c.pending, uid)
		k.finish(nil, false, ErrClosed)
	}
	for _, m := range c.queue {
		if m.sent != nil {
			close(m.sent)
		}
	}
	c.queue = nil
}

// sleep waits for d and says whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
