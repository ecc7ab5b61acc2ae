package mpserver

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// probeEvery is how often the server asks itself, probeLimit after how much
// silence it is unhealthy.
const (
	probeEvery = time.Second
	probeLimit = 5 * time.Second
)

// health is what the server knows of itself.
type health struct {
	lastAnswer atomic.Int64 // unix ns of the last answered probe
}

func (h *health) started(now time.Time) { h.lastAnswer.Store(now.UnixNano()) }

// probe sends a noop through the request socket like any client, again and again.
func (s *Server) probe(stop <-chan struct{}) {
	var c *zmtp.Conn
	hangUp := func() {
		if c != nil {
			_ = c.Close()
			c = nil
		}
	}
	defer hangUp()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		start := time.Now()
		err := s.ask(&c)
		if err == nil {
			s.health.lastAnswer.Store(time.Now().UnixNano())
		} else {
			hangUp()
		}
		s.probes.ran(start, "", err == nil)
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

// ask is one probe; it connects first if need be.
func (s *Server) ask(c **zmtp.Conn) error {
	until := time.Now().Add(probeEvery)
	if *c == nil {
		d := net.Dialer{Deadline: until}
		nc, err := d.DialContext(context.Background(), "tcp", strings.TrimPrefix(s.sock.endpoint, "tcp://"))
		if err != nil {
			return err
		}
		if err = nc.SetDeadline(until); err == nil {
			*c, err = zmtp.Dealer(nc, probeBytes)
		}
		if err != nil {
			return errors.Join(err, nc.Close())
		}
	}
	if err := (*c).SetDeadline(until); err != nil {
		return err
	}
	m := zmtp.AppendFrame(nil, wire.AppendString(nil, "probe"), true)
	m = zmtp.AppendFrame(m, wire.AppendInt(nil, int64(wire.OpNoop)), false)
	if err := (*c).Write(m); err != nil {
		return err
	}
	_, err := (*c).Read()
	return err
}

// probeBytes bounds the answer to a probe.
const probeBytes = 1 << 10

// Health reports whether the server is well, and if not, why: the request
// socket must have answered a probe lately, no background goroutine may have
// ended, and the store must be whole.
func (s *Server) Health() (ok bool, reason string) {
	if s.draining.Load() {
		return false, "stopping"
	}
	if name := s.tasks.dead(); name != "" {
		return false, "background goroutine ended: " + name
	}
	if silent := time.Since(time.Unix(0, s.health.lastAnswer.Load())); silent > probeLimit {
		return false, "the request socket has not answered its probe for " + silent.Round(time.Second).String()
	}
	if !s.cache.Alive() {
		return false, "the store's background turn has ended"
	}
	return true, ""
}
