package mpserver

import (
	"errors"
	"sync/atomic"
	"time"

	zmq "github.com/pebbe/zmq4"

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

// probe sends a noop through the ROUTER like any client, again and again.
func (s *Server) probe(stop <-chan struct{}) {
	sock, err := s.sock.ctx.NewSocket(zmq.DEALER)
	if err != nil {
		s.log.Error("the health probe cannot start", "component", "mq", "err", err)
		return
	}
	defer func() { _ = sock.Close() }()
	if err := errors.Join(sock.SetLinger(0), sock.SetRcvtimeo(probeEvery), sock.Connect(s.sock.probeURL)); err != nil {
		s.log.Error("the health probe cannot start", "component", "mq", "err", err)
		return
	}
	uid := wire.AppendString(nil, "probe")
	noop := wire.AppendInt(nil, int64(wire.OpNoop))
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		start, answered := time.Now(), false
		if _, err := sock.SendMessageDontwait(uid, noop); err == nil {
			if _, err := sock.RecvMessageBytes(0); err == nil {
				s.health.lastAnswer.Store(time.Now().UnixNano())
				answered = true
			}
		}
		s.probes.ran(start, "", answered)
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

// Health reports whether the server is well, and if not, why: the request
// loop must have answered a probe lately, no background goroutine may have
// ended, and the store must be whole.
func (s *Server) Health() (ok bool, reason string) {
	if s.draining.Load() {
		return false, "stopping"
	}
	if name := s.tasks.dead(); name != "" {
		return false, "background goroutine ended: " + name
	}
	if silent := time.Since(time.Unix(0, s.health.lastAnswer.Load())); silent > probeLimit {
		return false, "the request loop has not answered its probe for " + silent.Round(time.Second).String()
	}
	if !s.cache.Alive() {
		return false, "the store's background turn has ended"
	}
	return true, ""
}
