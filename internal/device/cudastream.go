package device

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/lmcache-go/lmcache-go/cuda"
	"github.com/lmcache-go/lmcache-go/internal/copyplan"
)

// cudaStream is a stream of the GPU with a goroutine that waits for its jobs,
// one after the other.
type cudaStream struct {
	dev   *CUDA
	label string
	s     *cuda.Stream
	done  chan struct{} // closed when the goroutine has ended

	// turn orders jobs in the stream as in the queue. It is held while a job
	// is handed to the driver, and guards what that needs.
	turn           sync.Mutex
	dst, src, size []uint64
	rects          []cuda.Rect

	mu     sync.Mutex
	work   *sync.Cond
	queue  []*cudaJob    // guarded by mu: handed to the driver; the first is waited for
	free   []*cuda.Event // guarded by mu
	spare  []*cudaJob    // guarded by mu
	closed bool          // guarded by mu
	late   bool          // guarded by dev.mu: Close did not see its end
}

var _ Stream = (*cudaStream)(nil)

// cudaJob is a job in the hands of the driver.
type cudaJob struct {
	job     *Job
	bytes   int64
	maps    []*cuda.Mapping
	bases   []uint64
	sizes   []int64
	event   *cuda.Event
	receipt cuda.Receipt
	bounce  *cuda.HostBuffer // stands in for the pool; nil for none
	err     error            // why it is incomplete, from the beginning
}

// NewStream makes a stream with its goroutine, which ends with it.
func (d *CUDA) NewStream(label string) (Stream, error) {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	cs, err := d.ctx.NewStream()
	if err != nil {
		return nil, err
	}
	s := &cudaStream{dev: d, label: label, s: cs, done: make(chan struct{})}
	s.work = sync.NewCond(&s.mu)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = cs.Destroy() // it is empty
		return nil, ErrClosed
	}
	d.streams[s] = struct{}{}
	d.wg.Go(s.run)
	return s, nil
}

// Submit hands a job to the driver.
func (s *cudaStream) Submit(job *Job) ([]byte, error) {
	if job.Plan.Reorders > 0 {
		return nil, ErrReorder
	}
	after, err := cuda.ParseSignal(job.After)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEvent, err)
	}
	j := s.take()
	j.job, j.bytes = job, job.Plan.Bytes
	if err := s.hold(j); err != nil {
		s.drop(j)
		return nil, err
	}
	if err := j.job.Plan.Check(j.sizes, int64(len(job.Pool))); err != nil {
		s.drop(j)
		return nil, err
	}
	s.turn.Lock()
	event, err := s.enqueue(j, after)
	s.turn.Unlock()
	return event, err
}

// enqueue hands j to the driver and puts it into the queue. turn is held.
func (s *cudaStream) enqueue(j *cudaJob, after cuda.Signal) ([]byte, error) {
	if err := s.room(); err != nil {
		s.drop(j)
		return nil, err
	}
	r, err := s.request(j, after)
	if err == nil {
		j.receipt, err = s.s.Submit(&r)
	}
	if err != nil {
		return nil, s.failed(j, r.Done, after, err)
	}
	j.event = r.Done
	answer := j.receipt.Answer
	s.push(j) // from here on j may have ended
	if answer.Kind == cuda.SignalNone {
		return nil, nil
	}
	return answer.AppendTo(make([]byte, 0, 81)), nil
}

// room says whether one more job may come.
func (s *cudaStream) room() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case len(s.queue) >= s.dev.opts.QueueLen:
		return fmt.Errorf("%w: %d on stream %s", ErrBusy, len(s.queue), s.label)
	}
	return nil
}

// request translates a job. Answers are in the kind that the client asked in;
// one that sent no event gets a CUDA event, unless there is nothing to tell.
func (s *cudaStream) request(j *cudaJob, after cuda.Signal) (r cuda.Request, err error) {
	if r.Done, err = s.event(); err != nil {
		return r, err
	}
	r.After, r.Answer = after, after.Kind
	if after.Kind == cuda.SignalNone && j.bytes > 0 {
		r.Answer = cuda.SignalEvent
	}
	if j.bytes == 0 {
		return r, nil
	}
	if err := s.addresses(j); err != nil {
		return r, err
	}
	r.Direction, r.Dst, r.Src = cuda.ToHost, s.dst, s.src
	if j.job.Direction == copyplan.Load {
		r.Direction, r.Dst, r.Src = cuda.ToDevice, s.src, s.dst
	}
	r.Size, r.Rects = s.size, s.rects
	return r, nil
}

// addresses turns the plan into lists for the driver: src has the engine's side
// of runs, dst the pool's; rects are the right way round.
func (s *cudaStream) addresses(j *cudaJob) error {
	p, pool := j.job.Plan, j.job.Pool
	pinned := s.dev.ctx.Driver().PinnedFrom(pool)
	if pinned == 0 {
		return s.bounced(j)
	}
	base, end := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(pool)))), int64(0)
	s.begin(p)
	for i := range p.Runs {
		r := &p.Runs[i]
		s.src[i] = j.bases[r.Storage] + uint64(r.Engine)
		s.dst[i] = base + uint64(r.Object)
		s.size[i] = uint64(r.Bytes)
		end = max(end, r.Object+r.Bytes)
	}
	for i := range p.Patterns {
		q := &p.Patterns[i]
		s.rect(i, j, q, base+uint64(q.Object), uint64(q.Rows.Object))
		end = max(end, q.Object+(q.Rows.N-1)*q.Rows.Object+q.Width)
	}
	if end > pinned {
		return fmt.Errorf("%w: it has %d bytes, of which %d are, and the copy ends at %d", ErrUnpinned, len(pool), pinned, end)
	}
	return nil
}

// begin makes the lists as long as the plan's. They keep their memory.
func (s *cudaStream) begin(p *copyplan.Plan) {
	if n := len(p.Runs); cap(s.dst) < n {
		s.dst, s.src, s.size = make([]uint64, n, n+n/4), make([]uint64, n, n+n/4), make([]uint64, n, n+n/4)
	}
	if n := len(p.Patterns); cap(s.rects) < n {
		s.rects = make([]cuda.Rect, n, n+n/4)
	}
	n := len(p.Runs)
	s.dst, s.src, s.size, s.rects = s.dst[:n], s.src[:n], s.size[:n], s.rects[:len(p.Patterns)]
}

// rect translates one 2-D copy.
func (s *cudaStream) rect(i int, j *cudaJob, q *copyplan.Pattern, host, hostPitch uint64) {
	engine, pitch := j.bases[q.Storage]+uint64(q.Engine), uint64(q.Rows.Engine)
	if q.Rows.N == 1 { // no distance between rows, and the driver wants one
		pitch, hostPitch = uint64(q.Width), uint64(q.Width)
	}
	c := cuda.Rect{Width: uint64(q.Width), Height: uint64(q.Rows.N)}
	if j.job.Direction == copyplan.Store {
		c.Src, c.SrcPitch, c.Dst, c.DstPitch = engine, pitch, host, hostPitch
	} else {
		c.Dst, c.DstPitch, c.Src, c.SrcPitch = engine, pitch, host, hostPitch
	}
	s.rects[i] = c
}

// failed ends a job that the driver refused, and returns what Submit does.
func (s *cudaStream) failed(j *cudaJob, done *cuda.Event, after cuda.Signal, err error) error {
	err = submitError(after, err)
	if !j.receipt.Queued {
		s.s.Close(&j.receipt)
		s.recycle(done)
		s.drop(j)
		return err
	}
	// Copies may be on their way. They are short; what can take long is the
	// engine that they wait for.
	j.event, j.err = done, err
	unmarked := j.receipt.Unmarked
	drained := make(chan struct{})
	s.dev.wg.Go(func() {
		defer close(drained)
		_ = s.ran(done, unmarked)
	})
	limit := time.NewTimer(s.dev.opts.DrainTimeout)
	defer limit.Stop()
	select {
	case <-drained:
		s.s.Close(&j.receipt)
		s.recycle(done)
		s.drop(j)
		return err
	case <-limit.C:
		s.push(j)
		return fmt.Errorf("%w: %w", ErrBegun, err)
	}
}

// submitError says whose fault it is.
func submitError(after cuda.Signal, err error) error {
	var e *cuda.Error
	if errors.As(err, &e) && after.Kind != cuda.SignalNone {
		switch e.Call {
		case "cuIpcOpenEventHandle", "cuIpcOpenMemHandle_v2", "cuStreamWaitEvent", "cuStreamWaitValue64_v2":
			return fmt.Errorf("%w: %w", ErrEvent, err)
		}
	}
	if errors.Is(err, ErrUnpinned) || errors.Is(err, cuda.ErrHandle) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrCopy, err)
}

// push lets the goroutine wait for a job.
func (s *cudaStream) push(j *cudaJob) {
	s.dev.mu.Lock()
	s.dev.stats.Pending++
	s.dev.mu.Unlock()
	s.mu.Lock()
	s.queue = append(s.queue, j)
	s.mu.Unlock()
	s.work.Signal()
}

// run waits for jobs in their order until the stream is closed.
func (s *cudaStream) run() {
	for {
		j := s.first()
		if j == nil {
			break
		}
		err := s.wait(j)
		s.finish(j, err)
	}
	s.mu.Lock()
	for _, e := range s.free {
		_ = e.Destroy()
	}
	s.free = nil
	s.mu.Unlock()
	_ = s.s.Destroy()
	s.dev.mu.Lock()
	delete(s.dev.streams, s)
	s.dev.mu.Unlock()
	close(s.done)
}

// first is the job to wait for, nil at the end.
func (s *cudaStream) first() *cudaJob {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) == 0 && !s.closed {
		s.work.Wait()
	}
	if len(s.queue) == 0 {
		return nil
	}
	return s.queue[0]
}

// wait sleeps until nothing of j is under way.
func (s *cudaStream) wait(j *cudaJob) error {
	err := s.ran(j.event, j.receipt.Unmarked)
	if j.err != nil {
		return j.err
	}
	return err
}

// ran sleeps until the stream has come to an event, or, if the event is not
// behind what was queued, to its end.
func (s *cudaStream) ran(e *cuda.Event, unmarked bool) (err error) {
	if unmarked {
		err = s.s.Wait()
	} else {
		err = e.Wait()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCopy, err)
	}
	return nil
}

// finish tells the end of a job, in order.
func (s *cudaStream) finish(j *cudaJob, err error) {
	d, job := s.dev, j.job
	s.s.Close(&j.receipt)
	s.recycle(j.event)
	if err == nil && j.bounce != nil && job.Direction == copyplan.Store {
		j.unbounce()
	}
	d.count(j, err)
	s.drop(j) // whoever hears Done may free what it lies in
	job.Done(err)
	d.mu.Lock()
	d.stats.Pending--
	d.mu.Unlock()
	s.mu.Lock()
	copy(s.queue, s.queue[1:])
	s.queue[len(s.queue)-1] = nil
	s.queue = s.queue[:len(s.queue)-1]
	s.mu.Unlock()
}

// Cancel does nothing: the job is in the hands of the hardware.
func (s *cudaStream) Cancel(*Job) {}

// Close waits for what was submitted.
func (s *cudaStream) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.work.Signal()
	select {
	case <-s.done:
		return nil
	default:
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		s.dev.mu.Lock()
		s.late = true
		s.dev.mu.Unlock()
		return fmt.Errorf("device: stream %s still waits for its engine: %w", s.label, ctx.Err())
	}
}

// take is an empty job, an old one if there is.
func (s *cudaStream) take() *cudaJob {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.spare); n > 0 {
		j := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return j
	}
	return &cudaJob{}
}

// hold keeps the memory that j copies.
func (s *cudaStream) hold(j *cudaJob) error {
	d := s.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, m := range j.job.Engine {
		h, ok := m.(*cudaMemory)
		switch {
		case !ok || h.dev != d:
			return fmt.Errorf("%w: storage %d", ErrMemory, i)
		case h.closed:
			return fmt.Errorf("%w: storage %d was closed", ErrMemory, i)
		}
		d.hold(h.m)
		j.maps = append(j.maps, h.m)
		j.bases = append(j.bases, h.address)
		j.sizes = append(j.sizes, h.n)
	}
	return nil
}

// drop lets the job's memory go and keeps the rest for the next job.
func (s *cudaStream) drop(j *cudaJob) {
	for _, m := range j.maps {
		s.dev.drop(m)
	}
	if j.bounce != nil {
		_ = j.bounce.Free()
	}
	*j = cudaJob{maps: j.maps[:0], bases: j.bases[:0], sizes: j.sizes[:0]}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = append(s.spare, j)
}

// event is one to record behind a job, an old one if there is.
func (s *cudaStream) event() (*cuda.Event, error) {
	s.mu.Lock()
	n := len(s.free)
	if n > 0 {
		e := s.free[n-1]
		s.free = s.free[:n-1]
		s.mu.Unlock()
		return e, nil
	}
	s.mu.Unlock()
	return s.dev.ctx.NewEvent(cuda.EventOptions{})
}

// recycle keeps an event that nobody waits for.
func (s *cudaStream) recycle(e *cuda.Event) {
	if e == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, e)
}
