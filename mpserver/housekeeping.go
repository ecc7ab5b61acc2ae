package mpserver

import (
	"fmt"
	"time"
)

// sweepEvery is how often what clients left behind is looked at: a client that
// is gone is released within Options.ConnectionGrace and this.
const sweepEvery = time.Second

// housekeeping ends what has run out: leases, sessions, silent workers, and
// what belonged to connections that have ended.
func (s *Server) housekeeping(stop <-chan struct{}) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	var expired uint64
	for {
		select {
		case <-stop:
			return
		case now := <-tick.C:
			n := s.sweep(now)
			if e := s.cache.Stats().ExpiredWrites; e > expired {
				s.met.LeaseExpired("write", int(e-expired))
				expired = e
			}
			s.sweeps.ran(now, fmt.Sprintf("reaped=%d", n), true)
		}
	}
}

// sweep is one turn; it returns how many workers it has dropped.
func (s *Server) sweep(now time.Time) (dropped int) {
	for _, r := range s.instances.sweep(now, &s.opt) {
		dropped++
		s.met.InstanceEvent(r.reason)
		s.log.Warn("dropped a worker; if it lives, its next heartbeat tells it to register again", "component", "mq",
			"instance_id", r.id, "model", r.model, "reason", r.reason, "silent", r.silent.Round(time.Millisecond), "in_its_hands", r.hands)
	}
	rep := s.sessions.sweep(now, s.opt.ConnectionGrace)
	if rep.expiredLeases > 0 {
		s.met.LeaseExpired("read", rep.expiredLeases)
		s.log.Warn("hits expired before anybody retrieved or freed them: the engine queues longer than --l1-read-ttl-seconds, or has lost the requests",
			"component", "l1", "lookups", rep.expiredLeases, "ttl", s.opt.L1.ReadTTL)
	}
	if rep.expiredSessions > 0 {
		s.log.Warn("sessions expired without END_SESSION", "component", "mq", "sessions", rep.expiredSessions, "ttl", s.opt.SessionTTL)
	}
	s.clients.sweep(s.opt.ConnectionGrace, now)
	return dropped
}
