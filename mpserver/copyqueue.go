package mpserver

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/metrics"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// copyQueue is one direction of an instance: a stream of its device and what
// is on its way there.
type copyQueue struct {
	stream device.Stream

	mu    sync.Mutex
	jobs  map[*device.Job]struct{} // guarded by mu: submitted, results not used yet
	ended bool                     // guarded by mu: results must not be used any more
	free  time.Time                // guarded by mu: when the latest job ended
}

func newCopyQueue(dev device.Device, label string) (*copyQueue, error) {
	st, err := dev.NewStream(label)
	if err != nil {
		return nil, err
	}
	return &copyQueue{stream: st, jobs: map[*device.Job]struct{}{}}, nil
}

// submit queues j; its Done must call done when its results are used.
func (q *copyQueue) submit(j *device.Job) (event []byte, err error) {
	q.mu.Lock()
	q.jobs[j] = struct{}{}
	q.mu.Unlock()
	if event, err = q.stream.Submit(j); err != nil && !errors.Is(err, device.ErrBegun) {
		q.done(j)
	}
	return event, err
}

func (q *copyQueue) done(j *device.Job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.jobs, j)
	q.free = time.Now()
}

// pending is the number of jobs on their way.
func (q *copyQueue) pending() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.jobs)
}

func (q *copyQueue) isEnded() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ended
}

// end calls off all jobs. One that completes all the same changes nothing: its
// worker may have given the blocks to somebody else.
func (q *copyQueue) end() {
	q.mu.Lock()
	q.ended = true
	jobs := make([]*device.Job, 0, len(q.jobs))
	for j := range q.jobs {
		jobs = append(jobs, j)
	}
	q.mu.Unlock()
	for _, j := range jobs {
		q.stream.Cancel(j)
	}
}

// drain waits until all jobs submitted so far are done, or ctx ends.
func (q *copyQueue) drain(ctx context.Context) {
	if q.pending() == 0 {
		return
	}
	done := make(chan struct{})
	if _, err := q.stream.Submit(&device.Job{Plan: new(copyplan.Plan), Done: func(error) { close(done) }}); err != nil {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// errInstanceEnded is what a copy that completed hears when its worker has
// gone meanwhile.
var errInstanceEnded = errors.New("the worker has ended, or registered again, while its copy ran")

// copyJob is a STORE or RETRIEVE whose copies are on their way.
type copyJob struct {
	s     *Server
	r     *request
	t     *blockTransfer
	q     *copyQueue
	job   device.Job
	begin time.Time
	// reached is when the engine came to its event, if that was after begin.
	reached atomic.Pointer[time.Time]
	late    *time.Timer // calls the copy off
	// finish publishes or releases and says why the transfer failed, or "".
	finish  func(error) string
	refusal string // why it copies nothing and fails, if it does
	ended   chan struct{}
	refused bool // the device did not take it, so that its client was told nothing yet
}

// submit queues the copies of r and answers when nothing can touch the
// client's blocks any more, or, if the device has events, with one when its
// engine has come to that of the request.
// finish is called exactly once, on any goroutine, and must not wait.
//
// Answers of one instance and direction come in the order of its requests, also
// those that copy nothing: an engine that hears of its second store takes the
// blocks of the first one back.
func (s *Server) submit(r *request, t *blockTransfer, dir copyplan.Direction, plan *copyplan.Plan, finish func(error) string) reply {
	return s.submitJob(&copyJob{s: s, r: r, t: t, q: t.d.queue(dir), finish: finish, begin: time.Now()}, dir, plan)
}

func (s *Server) submitJob(c *copyJob, dir copyplan.Direction, plan *copyplan.Plan) reply {
	r, t, q := c.r, c.t, c.q
	c.ended = make(chan struct{})
	if plan.Bytes == 0 && q.pending() == 0 {
		plan.Release()
		return s.outcome(r, c.finish(nil), nil)
	}
	c.job = device.Job{Direction: dir, Plan: plan, Engine: t.d.memory, Pool: s.arena.Bytes(), After: t.event, Done: c.done}
	traits := t.d.dev.Traits()
	if !traits.AnswerAtDone {
		c.job.Begun = c.begun
	}
	// A copy that does not begin or end in time is called off; the answer still
	// waits until it cannot write any more. A load that the client was told of
	// must not be: its event would fire all the same.
	limit := c.begin.Add(s.copyLimit(r))
	c.late = time.AfterFunc(time.Until(limit), func() {
		s.met.TimedOut("copy")
		q.stream.Cancel(&c.job)
	})
	s.met.TransferBegun(direction(dir), t.d.name)
	event, err := q.submit(&c.job)
	switch {
	case errors.Is(err, device.ErrBegun):
		return s.whenEnded(c)
	case err != nil:
		c.refused = true
		if reason := c.settle(err); c.refusal == "" {
			return s.outcome(r, reason, nil)
		}
		return s.failed(r, c.refusal)
	}
	told := !traits.AnswerAtDone && event != nil
	if told && dir == copyplan.Load {
		c.late.Stop()
	} else if !time.Now().Before(limit) {
		q.stream.Cancel(&c.job) // the timer may have been too early
	}
	if !told {
		return reply{kind: replyLater} // by begun or done
	}
	return c.answer(event)
}

// answer is the one of a copy that has begun.
func (c *copyJob) answer(event []byte) reply {
	if c.refusal != "" {
		// The event keeps the order: it fires after the copies before it.
		return value(wire.AppendStoreReply(nil, event, false)).because(c.refusal)
	}
	return c.s.outcome(c.r, "", event)
}

// begun answers a client whose engine had not come to its event at Submit.
func (c *copyJob) begun(event []byte) {
	now := time.Now()
	c.reached.Store(&now)
	if c.job.Direction == copyplan.Load {
		c.late.Stop()
	}
	c.s.later(c.r, c.answer(event))
}

// copyLimit is how long the copies of r may take.
func (s *Server) copyLimit(r *request) time.Duration {
	limit := r.row.deadline
	if s.opt.copyLimit > 0 {
		limit = s.opt.copyLimit
	}
	return max(0, limit-time.Since(r.received))
}

// done is the end of the copy, on a goroutine of the device.
func (c *copyJob) done(err error) {
	traits := c.t.d.dev.Traits()
	reason := c.settle(err)
	c.q.done(&c.job)
	defer close(c.ended)
	switch {
	case traits.AnswerAtDone:
		c.s.later(c.r, c.s.outcome(c.r, reason, []byte(traits.StubEvent)))
	case errors.Is(err, device.ErrUnbegun):
		if c.refusal != "" {
			reason = c.refusal
		}
		c.s.later(c.r, c.s.failed(c.r, reason))
	} // else the client was told when it began
}

// whenEnded answers a transfer that has failed in the middle, once nothing of it
// can touch the engine's blocks any more.
func (s *Server) whenEnded(c *copyJob) reply {
	s.retiring.run(func() {
		select {
		case <-c.ended:
			s.later(c.r, s.failed(c.r, "copy"))
		case <-s.abandon.Done():
		}
	})
	return reply{kind: replyLater}
}

// settle books the end of the copy and lets go of everything.
func (c *copyJob) settle(err error) (reason string) {
	s, d := c.s, c.t.d
	if c.late != nil {
		c.late.Stop()
	}
	defer func() {
		if p := recover(); p != nil {
			// The request is answered; the store says by itself if it is broken.
			s.met.Panicked(c.r.op.String())
			s.log.Error("the end of a copy panicked; the request is answered as failed", "component", "device", "op", c.r.op.String(), "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			reason = "panic"
		}
	}()
	dir, bytes := direction(c.job.Direction), c.job.Plan.Bytes
	c.job.Plan.Release()
	if err == nil && c.q.isEnded() {
		err = errInstanceEnded
	}
	if err != nil {
		s.met.TransferEnded(dir, d.name, 0)
		s.failures.explain(c.r.op.String(), copyReason(err), err)
		log := s.log.With("component", "device", "op", c.r.op.String(), "instance_id", d.instance, "request_id", c.t.RequestID, "err", err)
		if dir == metrics.Retrieve && !c.refused && c.refusal == "" && !errors.Is(err, device.ErrUnbegun) && !d.dev.Traits().AnswerAtDone && !c.q.isEnded() {
			log.Error("a load failed after its engine was told that it would come: answers of that engine may be wrong; restart it")
		} else {
			log.Warn("a copy failed")
		}
		if errors.Is(err, device.ErrLost) {
			s.lose(d, err)
		}
	} else {
		s.met.TransferEnded(dir, d.name, bytes)
		if bytes > 0 {
			s.met.TransferSpeed(dir, d.name, d.instance, c.t.Model, bytes, c.copying(time.Now()))
		}
	}
	return c.finish(err)
}

// copying is how long the copy itself took, that ended just now: from when it was
// asked for, its engine had come to its event, and the copy before it had ended.
func (c *copyJob) copying(now time.Time) time.Duration {
	c.q.mu.Lock()
	from := c.q.free
	c.q.mu.Unlock()
	if c.begin.After(from) {
		from = c.begin
	}
	if at := c.reached.Load(); at != nil && at.After(from) {
		from = *at
	}
	return now.Sub(from)
}

// outcome is the answer to a transfer: with the event, or its failure.
func (s *Server) outcome(r *request, reason string, event []byte) reply {
	if reason != "" {
		return s.failed(r, reason)
	}
	return copied(event)
}

// refuseInOrder is the failure of a transfer that copies nothing, after those
// that the same worker asked for before.
func (s *Server) refuseInOrder(r *request, t *blockTransfer, dir copyplan.Direction, reason string) reply {
	if t.d == nil {
		return s.failed(r, reason)
	}
	if t.d.gpu == nil {
		t.event = nil
	} // else the answer has an event of the same kind, behind what is on its way
	c := &copyJob{s: s, r: r, t: t, q: t.d.queue(dir), finish: func(error) string { return reason }, refusal: reason, begin: time.Now()}
	return s.submitJob(c, dir, copyplan.Acquire())
}

func direction(dir copyplan.Direction) metrics.Direction {
	if dir == copyplan.Load {
		return metrics.Retrieve
	}
	return metrics.Store
}

func planReason(err error) string {
	switch {
	case errors.Is(err, copyplan.ErrObject), errors.Is(err, kvlayout.ErrForms):
		return "object_form"
	case errors.Is(err, l1cache.ErrNotHeld):
		return "not_held"
	case errors.Is(err, copyplan.ErrBlockID), errors.Is(err, copyplan.ErrShort), errors.Is(err, copyplan.ErrLists):
		return "block_ids"
	}
	return reserveReason(err)
}

func copyReason(err error) string {
	switch {
	case errors.Is(err, device.ErrLost):
		return "engine_memory_gone"
	case errors.Is(err, device.ErrCanceled):
		return "deadline"
	case errors.Is(err, device.ErrBusy):
		return "queue_full"
	case errors.Is(err, device.ErrClosed), errors.Is(err, errInstanceEnded):
		return "unknown_instance"
	case errors.Is(err, device.ErrEvent):
		return "event"
	}
	return "copy"
}

// joiner counts goroutines. Unlike a sync.WaitGroup it may be added to while
// somebody waits, and the wait can be bounded.
type joiner struct {
	mu   sync.Mutex
	n    int           // guarded by mu
	none chan struct{} // guarded by mu: closed when n is 0; nil until somebody waits
}

// run starts fn.
func (j *joiner) run(fn func()) {
	j.mu.Lock()
	j.n++
	j.mu.Unlock()
	go func() {
		defer j.ended()
		fn()
	}()
}

func (j *joiner) ended() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.n--
	if j.n == 0 && j.none != nil {
		close(j.none)
		j.none = nil
	}
}

// wait reports whether all have ended before ctx did.
func (j *joiner) wait(ctx context.Context) bool {
	j.mu.Lock()
	if j.n == 0 {
		j.mu.Unlock()
		return true
	}
	if j.none == nil {
		j.none = make(chan struct{})
	}
	none := j.none
	j.mu.Unlock()
	select {
	case <-none:
		return true
	case <-ctx.Done():
		return false
	}
}
