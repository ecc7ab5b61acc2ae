package mpserver

import (
	"context"
	"fmt"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
)

// registerLimit is how long a registration may take until its worker hears that
// it has failed.
func (s *Server) registerLimit(r *request) time.Duration {
	limit := r.row.deadline
	if s.opt.registerLimit > 0 {
		limit = s.opt.registerLimit
	}
	return max(0, limit-time.Since(r.received))
}

// openOnGPU maps a worker's cache on the GPU that has it. When ctx ends first,
// what the driver still opens is closed again.
func (s *Server) openOnGPU(ctx context.Context, reg *registration, kv *kvlayout.Layout) (*serverDriven, error) {
	u, err := s.gpus.acquire(ctx, reg.uuid)
	if err != nil {
		return nil, fmt.Errorf("%w of instance %d: %w", errRegistration, reg.id, err)
	}
	type outcome struct {
		d   *serverDriven
		err error
	}
	opened := make(chan outcome, 1)
	s.retiring.run(func() {
		d, err := openServerDriven(reg, u.dev, u.name, kv)
		opened <- outcome{d, err}
	})
	select {
	case o := <-opened:
		if o.err != nil {
			s.gpus.release(u)
			return nil, o.err
		}
		o.d.gpu, o.d.counters = u, reg.counters
		return o.d, nil
	case <-ctx.Done():
		s.retiring.run(func() {
			o := <-opened
			if o.err != nil {
				s.gpus.release(u)
				return
			}
			o.d.gpu = u
			s.retire(o.d, endDoubtful)
		})
		return nil, fmt.Errorf("%w of instance %d: %w: while it opens the memory of the worker: %w", errRegistration, reg.id, errGPULate, ctx.Err())
	}
}

// letGo gives back what a server-driven worker had of the machine besides its
// mappings, which are closed.
func (s *Server) letGo(d *serverDriven) {
	if n, err := countDown(shmDir, d.counters); err != nil {
		// Nothing is lost: its process keeps that memory until it ends.
		s.log.Debug("some of torch's reference counters could not be reached", "component", "device", "instance_id", d.instance, "done", n, "of", len(d.counters), "err", err)
	}
	if d.gpu != nil {
		s.gpus.release(d.gpu)
	}
	s.log.Info("gave back the memory of a worker", "component", "device", "instance_id", d.instance, "device", d.name, "bytes", d.bytes)
}
