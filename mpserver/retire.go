package mpserver

import (
	"context"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/device"
)

// ending says why an instance is dropped.
type ending uint8

const (
	// endAsked: the worker has unregistered, or the server stops. What it had in
	// its hands is free; copies on their way may finish.
	endAsked ending = iota
	// endGone: its connection has ended. What it had in its hands is free.
	endGone
	// endDoubtful: it was silent, has lost its memory, or starts over. Its
	// process may still use what it has in its hands.
	endDoubtful
)

// stuckReport is the longest pause between two lines that say that the copies
// of an ended worker are stuck. The first comes after Options.retireLimit, which
// is also how long they may hold up the answer to an UNREGISTER or a second
// registration.
const stuckReport = 10 * time.Minute

// retire closes the streams and mappings of an ended instance beside
// everything else. It does not block.
func (s *Server) retire(d *serverDriven, why ending) {
	if why != endAsked {
		d.stores.end()
		d.loads.end()
	}
	s.retiring.run(func() {
		if why == endAsked {
			ctx, cancel := context.WithTimeout(s.hurry, s.opt.retireLimit)
			d.stores.drain(ctx)
			d.loads.drain(ctx)
			cancel()
			d.stores.end()
			d.loads.end()
		}
		if s.closeStream(d, d.stores.stream) && s.closeStream(d, d.loads.stream) {
			for _, m := range d.memory {
				m.Close()
			}
			s.letGo(d)
			close(d.closed)
			s.instances.retired(d)
		}
	})
}

// closeStream waits until the jobs of st are done; false when the server stops
// first: then the memory stays mapped, and ends with the process.
func (s *Server) closeStream(d *serverDriven, st device.Stream) bool {
	for pause := s.opt.retireLimit; ; pause = min(2*pause, stuckReport) {
		ctx, cancel := context.WithTimeout(context.Background(), pause)
		stop := context.AfterFunc(s.abandon, cancel)
		err := st.Close(ctx)
		stop()
		cancel()
		switch {
		case err == nil:
			return true
		case s.abandon.Err() != nil:
			return false
		}
		s.met.InstanceEvent("stuck")
		s.log.Error("the copies of an ended worker do not finish, which harms nobody else; its memory stays mapped until they do: if its process is gone for good, restart the server to free it",
			"component", "device", "instance_id", d.instance, "err", err)
	}
}

// whenClosed answers r with out once nothing touches the memory of d any more,
// or after a while.
func (s *Server) whenClosed(d *serverDriven, r *request, out reply) reply {
	if d == nil {
		return out
	}
	select {
	case <-d.closed:
		return out
	default:
	}
	s.retiring.run(func() {
		// After one limit the copies are called off; that takes a moment.
		limit := time.NewTimer(2 * s.opt.retireLimit)
		defer limit.Stop()
		select {
		case <-d.closed:
		case <-limit.C:
		case <-s.abandon.Done():
		}
		s.later(r, out)
	})
	return reply{kind: replyLater}
}

// lose drops the worker of d, whose memory has gone: its next heartbeat tells
// it to register again.
func (s *Server) lose(d *serverDriven, err error) {
	if !s.instances.lost(d) {
		return
	}
	s.met.InstanceEvent("memory_gone")
	s.log.Error("dropped a worker whose KV cache has gone", "component", "device", "instance_id", d.instance, "err", err)
}
