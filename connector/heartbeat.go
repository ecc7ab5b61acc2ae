package connector

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// heartbeat finds out whether a server is alive. It begins with the first use
// (lmcache 0.5.6, integration/vllm/vllm_multi_process_adapter.py, does so to
// leave a server alone that nobody asks): ping, wait up to an interval for the
// answer, sleep an interval.
//
// Two things differ from the reference, to the better: a worker registers again
// at once, not after another interval, when the server says that it does not
// know it; and also when the connection is a new one, since a server that came
// back within one interval would otherwise never hear of it.
type heartbeat struct {
	c        *Client
	interval time.Duration
	instance int64
	worker   bool // pings carry the instance
	// recover makes the server know us again; nil for a scheduler.
	recover func(ctx context.Context) error
	log     *slog.Logger

	healthy atomic.Bool
	once    sync.Once
	ctx     context.Context
	stop    context.CancelFunc
	done    chan struct{}
	known   int64 // connection on which the server knew us; loop only, and before start
}

func newHeartbeat(c *Client, interval time.Duration, log *slog.Logger) *heartbeat {
	h := &heartbeat{c: c, interval: interval, log: log, done: make(chan struct{})}
	h.ctx, h.stop = context.WithCancel(context.Background())
	h.healthy.Store(true)
	return h
}

// start sends the first ping, before anything that the caller sends next, and
// goes on in the background. Calls after the first do nothing.
func (h *heartbeat) start() {
	h.once.Do(func() {
		first := h.c.goPing(h.instance, h.worker)
		go h.loop(first)
	})
}

// close ends the loop. The heartbeat may never have begun.
func (h *heartbeat) close() {
	h.stop()
	h.once.Do(func() { close(h.done) })
	<-h.done
}

// fail notes that the server did not answer something else in time.
func (h *heartbeat) fail(why error) {
	if h.healthy.Swap(false) {
		h.log.Warn("the server does not answer: entering degraded mode", "component", "mq", "url", h.c.url, "err", why)
	}
}

func (h *heartbeat) loop(ping *Call) {
	defer close(h.done)
	for {
		h.beat(ping)
		if h.ctx.Err() != nil {
			return
		}
		t := time.NewTimer(h.interval)
		select {
		case <-t.C:
		case <-h.c.connected:
			// Somebody took the place of the server that we knew.
		case <-h.ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
		ping = h.c.goPing(h.instance, h.worker)
	}
}

// beat waits for the answer to a ping and acts on it.
func (h *heartbeat) beat(ping *Call) {
	ctx, cancel := context.WithTimeout(h.ctx, h.interval)
	defer cancel()
	ok, err := value(ctx, ping, decodePing)
	connection := h.c.connections.Load()
	switch {
	case h.ctx.Err() != nil:
		return
	case err != nil:
		h.fail(err)
		return
	case !ok && h.recover == nil:
		h.fail(errPingFalse)
		return
	}
	again := h.recover != nil && (!ok || connection != h.known)
	if (again || !h.healthy.Load()) && h.recover != nil {
		if !ok {
			h.healthy.Store(false)
		}
		if err := h.recover(h.ctx); err != nil {
			h.fail(err)
			return
		}
	}
	h.known = connection
	if !h.healthy.Swap(true) {
		h.log.Info("the server answers again", "component", "mq", "url", h.c.url)
	}
}
