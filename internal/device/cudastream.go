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

// cudaStream is a stream of the GPU with a goroutine that queues its jobs when
// their engine lets them, and one that waits for them, one after the other.
type cudaStream struct {
	dev   *CUDA
	label string
	s     *cuda.Stream
	done  chan struct{} // closed when the goroutines have ended

	// turn orders jobs in the stream as in the queue. It is held while a job
	// is handed to the driver, and guards what that needs.
	turn           sync.Mutex
	dst, src, size []uint64
	rects          []cuda.Rect
	lines          map[cuda.MemHandle]*cuda.Mapping // engines' timeline buffers
	peeks          *cuda.Stream                     // nil until a timeline is read
	peeked         *cuda.HostBuffer

	mu     sync.Mutex
	work   *sync.Cond
	gates  *sync.Cond
	gated  []*cudaJob    // guarded by mu: not handed to the driver yet; the first is looked at
	queue  []*cudaJob    // guarded by mu: handed to the driver; the first is waited for
	free   []*cuda.Event // guarded by mu
	spare  []*cudaJob    // guarded by mu
	closed bool          // guarded by mu
	opened bool          // guarded by mu: no more jobs come to the queue
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

	gate     gate
	answer   cuda.SignalKind
	canceled bool // guarded by the stream's mu
}

func (j *cudaJob) loads() bool { return j.job.Direction == copyplan.Load }

// NewStream makes a stream with its goroutines, which end with it.
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
	s.work, s.gates = sync.NewCond(&s.mu), sync.NewCond(&s.mu)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = cs.Destroy() // it is empty
		return nil, ErrClosed
	}
	d.streams[s] = struct{}{}
	d.wg.Go(s.open)
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

// enqueue hands j to the driver, or keeps it until its engine lets it, and
// makes the answer. turn is held.
func (s *cudaStream) enqueue(j *cudaJob, after cuda.Signal) ([]byte, error) {
	waits, err := s.room()
	if err != nil {
		s.drop(j)
		return nil, err
	}
	if j.gate, err = s.gate(after); err != nil {
		s.drop(j)
		return nil, submitError(after, err)
	}
	passed, err := s.passed(&j.gate)
	if err != nil {
		j.gate.close()
		s.drop(j)
		return nil, fmt.Errorf("%w: %w", ErrEvent, err)
	}
	// Answers are in the kind that the client asked in; one that sent no event
	// gets a CUDA event, unless there is nothing to tell.
	j.answer = after.Kind
	if after.Kind == cuda.SignalNone && j.bytes > 0 {
		j.answer = cuda.SignalEvent
	}
	if !passed || waits {
		s.later(j)
		return nil, nil
	}
	j.gate.close()
	r, err := s.request(j)
	if err == nil {
		r.Answer = j.answer
		j.receipt, err = s.s.Submit(&r)
	}
	if err != nil {
		return nil, s.failed(j, r.Done, err)
	}
	j.event = r.Done
	answer := j.receipt.Answer
	s.push(j) // from here on j may have ended
	return eventBytes(&answer), nil
}

// later keeps a job until its engine has come to the event.
func (s *cudaStream) later(j *cudaJob) {
	s.dev.mu.Lock()
	s.dev.stats.Pending++
	s.dev.mu.Unlock()
	s.mu.Lock()
	s.gated = append(s.gated, j)
	s.mu.Unlock()
	s.gates.Signal()
}

// room says whether one more job may come, and whether it has to wait behind
// others that do. turn is held.
func (s *cudaStream) room() (waits bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := len(s.queue) + len(s.gated); {
	case s.closed:
		return false, ErrClosed
	case n >= s.dev.opts.QueueLen:
		return false, fmt.Errorf("%w: %d on stream %s", ErrBusy, n, s.label)
	}
	return len(s.gated) > 0, nil
}

// request translates a job.
func (s *cudaStream) request(j *cudaJob) (r cuda.Request, err error) {
	if r.Done, err = s.event(); err != nil {
		return r, err
	}
	if j.bytes == 0 {
		return r, nil
	}
	if err := s.addresses(j); err != nil {
		return r, err
	}
	r.Direction, r.Dst, r.Src = cuda.ToHost, s.dst, s.src
	if j.loads() {
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
func (s *cudaStream) failed(j *cudaJob, done *cuda.Event, err error) error {
	err = submitError(cuda.Signal{}, err)
	if !j.receipt.Queued {
		s.s.Close(&j.receipt)
		s.recycle(done)
		s.drop(j)
		return err
	}
	// Copies may be on their way.
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
	s.hand(j)
}

// hand puts a job into the queue.
func (s *cudaStream) hand(j *cudaJob) {
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
	s.end()
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
	for len(s.queue) == 0 && !s.opened {
		s.work.Wait()
	}
	if len(s.queue) == 0 {
		return nil
	}
	return s.queue[0]
}

// wait sleeps until nothing of j is under way.
func (s *cudaStream) wait(j *cudaJob) (err error) {
	if j.event != nil {
		err = s.ran(j.event, j.receipt.Unmarked)
	}
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
	if err == nil && j.bounce != nil && !j.loads() {
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

// Cancel ends a job whose engine has not let it begin. One that has begun is in
// the hands of the hardware.
func (s *cudaStream) Cancel(job *Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.gated {
		if j.job == job {
			j.canceled = true
		}
	}
}

// Close ends the jobs that have not begun, and waits for the others.
func (s *cudaStream) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.gates.Signal()
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
