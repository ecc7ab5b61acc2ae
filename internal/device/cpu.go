package device

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"unsafe"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
)

// StubEvent is the completion handle that CPU engines expect in an answer
// (lmcache 0.5.6, v1/platform/base/event_ipc.py). It says nothing: the copy is
// done by then.
const StubEvent = "stub_ipc_handle"

// CPUOptions configures a [CPU].
type CPUOptions struct {
	// Threads is how many copies run at the same time, of one request or
	// several. Default GOMAXPROCS.
	Threads int
	// PartBytes is what a thread copies before it turns to the next stream.
	// Smaller is fairer to others, and dearer. Default 256 KiB.
	PartBytes int64
	// QueueLen is how many jobs of one stream may be pending. Default 1024.
	QueueLen int
	// ShmDir is where POSIX shared memory appears. Default "/dev/shm".
	ShmDir string
}

// CPU is the device for engines whose KV cache is in POSIX shared memory.
//
// A client can cut its segment short at any time. A copy that then faults is
// caught: its job ends with ErrLost, and so do later ones on that segment.
type CPU struct {
	opts CPUOptions
	segs segments
	wg   sync.WaitGroup

	mu      sync.Mutex
	work    *sync.Cond // a stream came into the ring, or closed
	ring    ring       // guarded by mu: streams with something to copy
	streams map[*cpuStream]struct{}
	closed  bool  // guarded by mu
	stats   Stats // guarded by mu

	onPart func() // tests only: called by a thread before it copies
}

var _ Device = (*CPU)(nil)

// NewCPU starts the threads. Close ends them.
func NewCPU(o CPUOptions) *CPU {
	if o.Threads < 1 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.PartBytes < 1 {
		o.PartBytes = 256 << 10
	}
	if o.QueueLen < 1 {
		o.QueueLen = 1024
	}
	if o.ShmDir == "" {
		o.ShmDir = "/dev/shm"
	}
	d := &CPU{opts: o, segs: segments{dir: o.ShmDir, byKey: map[segmentKey]*segment{}}, streams: map[*cpuStream]struct{}{}}
	d.work = sync.NewCond(&d.mu)
	for range o.Threads {
		d.wg.Go(d.thread)
	}
	return d
}

// Traits of copies by the processor: a 2-D pattern costs as much as its runs,
// and is quicker to plan.
func (d *CPU) Traits() Traits {
	return Traits{Plans: copyplan.Options{PatternsBelow: copyplan.Always}, AnswerAtDone: true, StubEvent: StubEvent}
}

// Open maps a segment by its wire name.
func (d *CPU) Open(key string, sizeBytes int64) (Memory, error) {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	seg, err := d.segs.open(key, sizeBytes)
	if err != nil {
		return nil, err
	}
	return &mapped{dev: d, seg: seg, n: sizeBytes}, nil
}

// Local makes memory of this process usable as the engine's side of a job: the
// pool itself, for the source of a conversion. It must outlive the jobs.
func (d *CPU) Local(name string, b []byte) Memory {
	return &mapped{dev: d, seg: &segment{name: name, data: b, refs: 1, local: true}, n: int64(len(b))}
}

// NewStream makes a queue.
func (d *CPU) NewStream(label string) (Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	s := &cpuStream{dev: d, label: label}
	d.streams[s] = struct{}{}
	return s, nil
}

// Stats of now.
func (d *CPU) Stats() Stats {
	n, bytes := d.segs.count()
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.stats
	st.Mappings, st.MappedBytes, st.StreamsActive = n, bytes, len(d.streams)
	return st
}

// Close ends the device. Memories that are still open stay mapped until they
// are closed.
func (d *CPU) Close() error {
	d.mu.Lock()
	d.closed = true
	for s := range d.streams {
		s.shut()
	}
	d.work.Broadcast()
	d.mu.Unlock()
	d.wg.Wait()
	return nil
}

// thread copies parts, each time of the next stream in the ring.
func (d *CPU) thread() {
	// A fault in a mapping becomes a panic of this goroutine, see cpuJob.copy.
	debug.SetPanicOnFault(true)
	d.mu.Lock() // not deferred: a panic of Done should be what is reported
	for {
		s := d.ring.pop()
		if s == nil {
			if d.closed && d.stats.Pending == 0 {
				d.work.Broadcast() // the other threads can go too
				d.mu.Unlock()
				return
			}
			d.work.Wait()
			continue
		}
		j := s.cur
		if j == nil {
			continue // ended by an error while it was in the ring
		}
		if j.at != j.end {
			from := j.at
			j.at = j.plan.Cut(from, d.opts.PartBytes)
			to := j.at
			j.running++
			if to != j.end {
				d.push(s)
			}
			d.mu.Unlock()
			if d.onPart != nil {
				d.onPart()
			}
			err := j.copy(from, to)
			runtime.Gosched() // a copy is long for the request loop
			d.mu.Lock()
			j.running--
			if err != nil {
				j.stop(err)
			}
		}
		if j.at == j.end && j.running == 0 {
			d.finish(s)
		}
	}
}

// push puts a stream at the end of the ring. d.mu is held.
func (d *CPU) push(s *cpuStream) {
	d.ring.push(s)
	d.work.Signal()
}

// finish ends the current job of a stream and starts the next. d.mu is held,
// but for the time of Done.
func (d *CPU) finish(s *cpuStream) {
	j := s.cur
	s.cur = nil
	d.count(j)
	d.mu.Unlock()
	for _, seg := range j.segs {
		d.segs.release(seg)
	}
	j.job.Done(j.err)
	d.mu.Lock()
	d.stats.Pending--
	s.next()
}

// count books a job that ended.
func (d *CPU) count(j *cpuJob) {
	switch {
	case j.err != nil:
		d.stats.Failed++
		if errors.Is(j.err, ErrLost) || errors.Is(j.err, ErrPool) {
			d.stats.Faults++
		}
	case j.job.Direction == copyplan.Store:
		d.stats.Stores++
		d.stats.StoreBytes += uint64(j.plan.Bytes)
	default:
		d.stats.Loads++
		d.stats.LoadBytes += uint64(j.plan.Bytes)
	}
}

// cpuJob is a job that was accepted.
type cpuJob struct {
	job      *Job
	plan     *copyplan.Plan
	segs     []*segment
	storages [][]byte

	at, end copyplan.Pos // guarded by CPU.mu: what is not handed out yet
	running int          // guarded by CPU.mu: parts being copied
	err     error        // guarded by CPU.mu
}

// stop hands out no more parts. CPU.mu is held.
func (j *cpuJob) stop(err error) {
	if j.err == nil {
		j.err = err
	}
	j.at = j.end
}

// copy moves one part. A fault in the memory, or any other panic, is this
// job's failure and nobody else's.
func (j *cpuJob) copy(from, to copyplan.Pos) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = j.fault(r)
		}
	}()
	j.plan.Copy(j.job.Direction, j.storages, j.job.Pool, from, to)
	return nil
}

// fault says whose memory went away.
func (j *cpuJob) fault(r any) error {
	var addr interface{ Addr() uintptr } // of the runtime's error, debug.SetPanicOnFault
	if e, ok := r.(error); ok && errors.As(e, &addr) {
		for _, seg := range j.segs {
			if off, ok := inside(seg.data, addr.Addr()); ok {
				seg.gone.Store(true)
				return fmt.Errorf("%w: %s faulted at byte %d of %d: its owner cut it short, or the shared memory file system is full", ErrLost, seg.name, off, len(seg.data))
			}
		}
		if off, ok := inside(j.job.Pool, addr.Addr()); ok {
			return fmt.Errorf("%w: fault at byte %d of %d", ErrPool, off, len(j.job.Pool))
		}
	}
	return fmt.Errorf("%w: panic: %v\n%s", ErrCopy, r, debug.Stack())
}

// inside says where in b an address is.
func inside(b []byte, addr uintptr) (int, bool) {
	if len(b) == 0 {
		return 0, false
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return int(addr - start), addr >= start && addr-start < uintptr(len(b))
}
