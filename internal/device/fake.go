package device

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
)

// FakeOptions configures a [Fake].
type FakeOptions struct {
	// Async returns events from Submit, as a GPU does; otherwise an answer has
	// to wait for Done, as on a CPU.
	Async bool
	// CopiesOnly refuses plans that reorder.
	CopiesOnly bool
	// Plans are the options of its Traits.
	Plans copyplan.Options
	// QueueLen is how many jobs of one stream may be pending. Default 1024.
	QueueLen int
	// Delay before each job, and CopyDelay before each of its copies.
	Delay, CopyDelay time.Duration
}

// Fake is a device for tests: it copies between byte slices, slowly, fails
// where it is told to, and waits for events that may never fire. All of it is
// deterministic, and time is the time package's, so testing/synctest applies.
type Fake struct {
	opts FakeOptions
	quit chan struct{} // closed by Close: everything ends
	wg   sync.WaitGroup

	mu      sync.Mutex
	memory  map[string][]byte
	events  map[string]chan struct{}
	streams map[*fakeStream]struct{}
	trace   []FakeRecord
	copies  int   // copies so far
	failAt  int   // the copy that fails, 0 for none
	failErr error // what it fails with
	opens   int   // opens until one fails, 0 for none
	acks    int
	closed  bool
	stats   Stats
}

var _ Device = (*Fake)(nil)

// FakeRecord is one job that ended.
type FakeRecord struct {
	Stream    string
	Direction copyplan.Direction
	// Copies done, of those that the plan had.
	Copies, Of int
	Err        error
}

// NewFake makes a fake. Close ends its goroutines, also those that wait for a
// peer that was lost.
func NewFake(o FakeOptions) *Fake {
	if o.QueueLen < 1 {
		o.QueueLen = 1024
	}
	return &Fake{
		opts: o, quit: make(chan struct{}),
		memory: map[string][]byte{}, events: map[string]chan struct{}{}, streams: map[*fakeStream]struct{}{},
	}
}

// AddMemory lets Open find b under a key.
func (d *Fake) AddMemory(key string, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memory[key] = b
}

// AddEvent makes an event handle for Job.After. The event fires when fire is
// called; never calling it is a peer that is lost.
func (d *Fake) AddEvent(handle string) (fire func()) {
	ch := make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events[handle] = ch
	return sync.OnceFunc(func() { close(ch) })
}

// FailCopy makes the n-th copy from now on fail with err, counting the copies
// of all jobs from 1. Copies before it have happened; those after it, of the
// same job, do not.
func (d *Fake) FailCopy(n int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failAt, d.failErr = d.copies+n, err
}

// FailOpen makes the n-th Open from now on fail, counting from 1.
func (d *Fake) FailOpen(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opens = n
}

// Trace returns what ended so far, in order.
func (d *Fake) Trace() []FakeRecord {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]FakeRecord(nil), d.trace...)
}

// Copies counts copies so far.
func (d *Fake) Copies() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.copies
}

// Traits as configured.
func (d *Fake) Traits() Traits {
	return Traits{Plans: d.opts.Plans, CopiesOnly: d.opts.CopiesOnly, AnswerAtDone: !d.opts.Async, StubEvent: StubEvent}
}

// Stats of now.
func (d *Fake) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.stats
	st.StreamsActive = len(d.streams)
	return st
}

// Open finds memory of AddMemory.
func (d *Fake) Open(key string, sizeBytes int64) (Memory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opens > 0 {
		if d.opens--; d.opens == 0 {
			return nil, fmt.Errorf("%w: %s, as told to the fake", ErrOpen, key)
		}
	}
	b, ok := d.memory[key]
	switch {
	case d.closed:
		return nil, ErrClosed
	case !ok:
		return nil, fmt.Errorf("%w: no %s", ErrOpen, key)
	case int64(len(b)) < sizeBytes:
		return nil, fmt.Errorf("%w: %s has %d bytes, registered as %d", ErrShort, key, len(b), sizeBytes)
	}
	d.stats.Mappings++
	d.stats.MappedBytes += sizeBytes
	return &fakeMemory{dev: d, data: b[:sizeBytes]}, nil
}

// fakeMemory is open memory. Jobs hold it in no way: a test that closes it too
// early finds ErrMemory at Submit, and its bytes stay.
type fakeMemory struct {
	dev    *Fake
	data   []byte
	closed bool // guarded by dev.mu
}

// SizeBytes of the registration.
func (m *fakeMemory) SizeBytes() int64 { return int64(len(m.data)) }

// Close gives it up.
func (m *fakeMemory) Close() {
	m.dev.mu.Lock()
	defer m.dev.mu.Unlock()
	if !m.closed {
		m.closed = true
		m.dev.stats.Mappings--
		m.dev.stats.MappedBytes -= int64(len(m.data))
	}
}

// NewStream makes a queue with a goroutine of its own, which ends with it.
func (d *Fake) NewStream(label string) (Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	s := &fakeStream{dev: d, label: label, wake: make(chan struct{}, 1), done: make(chan struct{})}
	d.streams[s] = struct{}{}
	d.wg.Go(s.run)
	return s, nil
}

// Close ends all streams. Jobs that wait for a lost peer end with ErrClosed.
func (d *Fake) Close() error {
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		close(d.quit)
	}
	for s := range d.streams {
		s.shut()
	}
	d.mu.Unlock()
	d.wg.Wait()
	return nil
}

// fakeStream is a queue of the fake. Fields from closed on are guarded by dev.mu.
type fakeStream struct {
	dev   *Fake
	label string
	wake  chan struct{} // something changed
	done  chan struct{} // closed when the goroutine has ended

	closed bool
	queue  []*fakeJob // the first is being run
}

type fakeJob struct {
	job      *Job
	storages [][]byte
	event    chan struct{} // nil for none
	stop     chan struct{} // closed by cancel
	err      error         // set before stop is closed, guarded by dev.mu
}

func (j *fakeJob) cancel(err error) {
	if j.err == nil {
		j.err = err
		close(j.stop)
	}
}

// Submit queues a job.
func (s *fakeStream) Submit(j *Job) ([]byte, error) {
	d := s.dev
	c := &fakeJob{job: j, stop: make(chan struct{}), storages: make([][]byte, len(j.Engine))}
	sizes := make([]int64, len(j.Engine))
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, m := range j.Engine {
		f, ok := m.(*fakeMemory)
		if !ok || f.dev != d || f.closed {
			return nil, fmt.Errorf("%w: storage %d", ErrMemory, i)
		}
		c.storages[i], sizes[i] = f.data, int64(len(f.data))
	}
	if err := j.Plan.Check(sizes, int64(len(j.Pool))); err != nil {
		return nil, err
	}
	if d.opts.CopiesOnly && j.Plan.Reorders > 0 {
		return nil, ErrReorder
	}
	if len(j.After) > 0 {
		var ok bool
		if c.event, ok = d.events[string(j.After)]; !ok && d.opts.Async {
			return nil, fmt.Errorf("%w: %q", ErrEvent, j.After)
		}
	}
	switch {
	case s.closed:
		return nil, ErrClosed
	case len(s.queue) >= d.opts.QueueLen:
		return nil, fmt.Errorf("%w: %d on stream %s", ErrBusy, len(s.queue), s.label)
	}
	d.stats.Pending++
	s.queue = append(s.queue, c)
	s.poke()
	if d.opts.Async {
		d.acks++
		return fmt.Appendf(nil, "fake event %d", d.acks), nil
	}
	return nil, nil
}

func (s *fakeStream) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Cancel ends a job early.
func (s *fakeStream) Cancel(j *Job) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	for _, c := range s.queue {
		if c.job == j {
			c.cancel(ErrCanceled)
		}
	}
}

// shut is Close without waiting. dev.mu is held.
func (s *fakeStream) shut() {
	if s.closed {
		return
	}
	s.closed = true
	for i, c := range s.queue {
		if i > 0 {
			c.cancel(ErrClosed)
		}
	}
	s.poke()
}

// Close waits for the running job, for as long as ctx allows.
func (s *fakeStream) Close(ctx context.Context) error {
	s.dev.mu.Lock()
	s.shut()
	s.dev.mu.Unlock()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("device: stream %s still waits: %w", s.label, ctx.Err())
	}
}

// first is the job to run now, nil if there is none yet.
func (s *fakeStream) first() (j *fakeJob, ended bool) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if len(s.queue) > 0 {
		return s.queue[0], false
	}
	if s.closed {
		delete(s.dev.streams, s)
	}
	return nil, s.closed
}

func (s *fakeStream) run() {
	defer close(s.done)
	for {
		j, ended := s.first()
		if ended {
			return
		}
		if j == nil {
			<-s.wake
			continue
		}
		n, err := s.execute(j)
		s.end(j, n, err)
	}
}

// execute waits and copies. It returns the number of copies done.
func (s *fakeStream) execute(j *fakeJob) (int, error) {
	d, p := s.dev, j.job.Plan
	if err := s.wait(j, j.event, 0); err != nil {
		return 0, err
	}
	if err := s.wait(j, nil, d.opts.Delay); err != nil {
		return 0, err
	}
	for n := 0; n < p.End().Op; n++ {
		if err := s.wait(j, nil, d.opts.CopyDelay); err != nil {
			return n, err
		}
		if err := d.next(); err != nil {
			return n, err
		}
		p.Copy(j.job.Direction, j.storages, j.job.Pool, copyplan.Pos{Op: n}, copyplan.Pos{Op: n + 1})
	}
	return p.End().Op, nil
}

// next counts a copy and says whether it fails.
func (d *Fake) next() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.copies++
	if d.copies == d.failAt {
		return fmt.Errorf("%w: copy %d: %w", ErrCopy, d.copies, d.failErr)
	}
	return nil
}

// wait for an event if there is one, else for a time, unless the job is
// canceled or the device closed.
func (s *fakeStream) wait(j *fakeJob, event chan struct{}, delay time.Duration) error {
	select {
	case <-j.stop:
		return s.reason(j)
	default:
	}
	var timer <-chan time.Time
	if event == nil {
		if delay <= 0 {
			return nil
		}
		t := time.NewTimer(delay)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-event:
	case <-timer:
	case <-j.stop:
		return s.reason(j)
	case <-s.dev.quit:
		return ErrClosed
	}
	return nil
}

func (s *fakeStream) reason(j *fakeJob) error {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	return j.err
}

// end books a job, calls Done and makes room for the next.
func (s *fakeStream) end(j *fakeJob, n int, err error) {
	d := s.dev
	d.mu.Lock()
	d.trace = append(d.trace, FakeRecord{s.label, j.job.Direction, n, j.job.Plan.End().Op, err})
	switch {
	case err != nil:
		d.stats.Failed++
	case j.job.Direction == copyplan.Store:
		d.stats.Stores++
		d.stats.StoreBytes += uint64(j.job.Plan.Bytes)
	default:
		d.stats.Loads++
		d.stats.LoadBytes += uint64(j.job.Plan.Bytes)
	}
	d.mu.Unlock()
	j.job.Done(err)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Pending--
	s.queue = s.queue[1:]
}
