package device

import (
	"context"
	"fmt"
)

// cpuStream is a queue of the CPU device. All fields but dev and label are
// guarded by dev.mu.
type cpuStream struct {
	dev   *CPU
	label string

	cur    *cpuJob   // being copied
	busy   bool      // cur is set, or its Done is being called
	queue  []*cpuJob // behind cur
	closed bool
	idle   chan struct{} // closed when closed and not busy; nil until somebody waits

	inRing bool
	link   *cpuStream
}

var _ Stream = (*cpuStream)(nil)

// Submit queues a job.
func (s *cpuStream) Submit(j *Job) ([]byte, error) {
	d := s.dev
	c := &cpuJob{job: j, plan: j.Plan, end: j.Plan.End()}
	if err := c.take(d); err != nil {
		c.drop(d)
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case s.closed:
		c.dropLocked(d)
		return nil, ErrClosed
	case len(s.queue)+1 >= d.opts.QueueLen && s.busy:
		c.dropLocked(d)
		return nil, fmt.Errorf("%w: %d on stream %s", ErrBusy, len(s.queue)+1, s.label)
	}
	d.stats.Pending++
	s.queue = append(s.queue, c)
	if !s.busy {
		s.next()
	}
	return nil, nil
}

// take holds the job's memory and checks the plan against it.
func (j *cpuJob) take(d *CPU) error {
	n := len(j.job.Engine)
	j.segs, j.storages = make([]*segment, 0, n), make([][]byte, n)
	sizes := make([]int64, n)
	for i, m := range j.job.Engine {
		h, ok := m.(*mapped)
		if !ok || h.dev != d {
			return fmt.Errorf("%w: storage %d", ErrMemory, i)
		}
		seg := h.hold()
		if seg == nil {
			return fmt.Errorf("%w: storage %d was closed", ErrMemory, i)
		}
		j.segs = append(j.segs, seg)
		if seg.gone.Load() {
			return fmt.Errorf("%w: %s faulted before; the engine must register again", ErrLost, seg.name)
		}
		j.storages[i], sizes[i] = seg.data, int64(len(seg.data))
	}
	return j.plan.Check(sizes, int64(len(j.job.Pool)))
}

func (j *cpuJob) drop(d *CPU) {
	for _, seg := range j.segs {
		d.segs.release(seg)
	}
}

// dropLocked is drop while d.mu is held: the lock is not held across munmap.
func (j *cpuJob) dropLocked(d *CPU) {
	d.mu.Unlock()
	j.drop(d)
	d.mu.Lock()
}

// next starts the first queued job, if any. dev.mu is held.
func (s *cpuStream) next() {
	if len(s.queue) == 0 {
		s.busy = false
		s.queue = nil
		if s.closed {
			s.leave()
		}
		return
	}
	s.busy = true
	s.cur = s.queue[0]
	s.queue[0] = nil
	s.queue = s.queue[1:]
	s.dev.push(s)
}

// leave is the end of a closed stream. dev.mu is held.
func (s *cpuStream) leave() {
	delete(s.dev.streams, s)
	if s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
	if s.dev.closed {
		s.dev.work.Broadcast()
	}
}

// Cancel ends a job early.
func (s *cpuStream) Cancel(j *Job) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if s.cur != nil && s.cur.job == j {
		s.cur.stop(ErrCanceled)
		if s.cur.running == 0 {
			s.dev.push(s)
		}
		return
	}
	for _, c := range s.queue {
		if c.job == j {
			c.stop(ErrCanceled)
		}
	}
}

// shut refuses new jobs and ends the queued ones. dev.mu is held.
func (s *cpuStream) shut() {
	if s.closed {
		return
	}
	s.closed = true
	for _, c := range s.queue {
		c.stop(ErrClosed)
	}
	if !s.busy {
		s.leave()
	}
}

// Close waits for the running job.
func (s *cpuStream) Close(ctx context.Context) error {
	d := s.dev
	d.mu.Lock()
	s.shut()
	if !s.busy {
		d.mu.Unlock()
		return nil
	}
	if s.idle == nil {
		s.idle = make(chan struct{})
	}
	idle := s.idle
	d.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("device: stream %s is still copying: %w", s.label, ctx.Err())
	}
}

// ring is a queue of streams, each in it at most once.
type ring struct{ head, tail *cpuStream }

func (r *ring) push(s *cpuStream) {
	if s.inRing {
		return
	}
	s.inRing, s.link = true, nil
	if r.tail == nil {
		r.head = s
	} else {
		r.tail.link = s
	}
	r.tail = s
}

func (r *ring) pop() *cpuStream {
	s := r.head
	if s == nil {
		return nil
	}
	if r.head = s.link; r.head == nil {
		r.tail = nil
	}
	s.inRing, s.link = false, nil
	return s
}
