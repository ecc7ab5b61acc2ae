package l1cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"
)

const (
	// firstPieceBytes is populated before all else, so that a server is ready
	// within milliseconds whatever the size of its pool.
	firstPieceBytes = 4 << 20
	// defaultPieceBytes is the step in which the rest becomes usable.
	defaultPieceBytes = 64 << 20
	// minPieceBytes keeps pieces at whole huge pages.
	minPieceBytes = 2 << 20
	// populateStepBytes is what one system call populates. It holds the
	// process's memory map read-locked, and Close waits for one step at most.
	populateStepBytes = 2 << 20
	// maxArenaThreads bounds the population: beyond a few threads memory
	// bandwidth and the kernel's locks are the limit.
	maxArenaThreads = 8
	// defaultShmDir is where POSIX shared memory lives on Linux; glibc's shm_open
	// uses it too.
	defaultShmDir = "/dev/shm"
	// defaultLockWait is how long OpenArena waits for the lock of a segment whose
	// owner may just be dying: the kernel frees the memory first.
	defaultLockWait = 2 * time.Second
)

// ArenaOptions configures [OpenArena].
type ArenaOptions struct {
	// ShmName is the full name of a POSIX shared memory segment, without a
	// slash. "" makes the memory private.
	ShmName string
	// SizeBytes of the whole mapping. Required.
	SizeBytes int64
	// PieceBytes is the step in which memory becomes usable, rounded up to
	// 2 MiB. Default 64 MiB.
	PieceBytes int64
	// Threads that populate. Default: half of the CPUs, 1 to 8. They run at
	// low priority, so that requests go first.
	Threads int
	// Logger: default discards.
	Logger *slog.Logger

	// For tests: where segments live, how long to wait for the lock of one, and
	// what the machine has left.
	shmDir   string
	lockWait time.Duration
	headroom func() (freeBytes int64, source string)
}

// Arena is one span of memory, mapped as a whole at once and made usable piece
// by piece from the low end in the background. Pages in the ready part are
// present: touching them neither faults for long nor can it kill the process
// because the file system or the cgroup is full.
type Arena struct {
	mem  []byte
	name string
	seg  *segment // nil when private
	log  *slog.Logger

	opened time.Time
	first  chan struct{} // closed when the first piece is ready, or none will be
	grown  chan struct{} // closed when population has ended
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu        sync.Mutex
	ready     int64           // guarded by mu; [0, ready) is usable
	next      int64           // guarded by mu; where the next piece begins
	done      map[int64]int64 // guarded by mu; finished pieces beyond ready: begin → end
	err       error           // guarded by mu; why population ended early
	over      bool            // guarded by mu; population has ended
	closed    bool            // guarded by mu
	onGrow    func()          // guarded by mu; called without it
	firstTook time.Duration   // guarded by mu
	grownTook time.Duration   // guarded by mu
}

// OpenArena maps the memory and begins to populate it. It returns at once;
// [Arena.Ready] tells when the first piece can be used. A stale segment of the
// same name is unlinked first. Errors: [ErrShmTooSmall], [ErrShmInUse], or what
// the kernel said.
func OpenArena(o ArenaOptions) (*Arena, error) {
	if o.SizeBytes <= 0 {
		return nil, fmt.Errorf("l1cache: arena size must be positive, got %d", o.SizeBytes)
	}
	if int64(int(o.SizeBytes)) != o.SizeBytes {
		return nil, fmt.Errorf("l1cache: arena of %d bytes does not fit this machine's address space", o.SizeBytes)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.shmDir == "" {
		o.shmDir = defaultShmDir
	}
	if o.lockWait == 0 {
		o.lockWait = defaultLockWait
	}
	if o.headroom == nil {
		o.headroom = machineHeadroom
	}
	if o.PieceBytes <= 0 {
		o.PieceBytes = defaultPieceBytes
	}
	o.PieceBytes = (o.PieceBytes + minPieceBytes - 1) / minPieceBytes * minPieceBytes
	if o.Threads <= 0 {
		o.Threads = max(1, runtime.GOMAXPROCS(0)/2)
	}
	o.Threads = min(o.Threads, maxArenaThreads)

	a := newArena(o.Logger)
	a.name = o.ShmName
	var err error
	if o.ShmName == "" {
		a.mem, err = mapPrivate(o.SizeBytes)
	} else {
		a.seg, a.mem, err = openSegment(o.shmDir, o.ShmName, o.SizeBytes, o.lockWait)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	p := newPopulator(a.mem, a.seg, o.headroom)
	a.wg.Add(1)
	go func() {
		defer a.wg.Done()
		a.populate(ctx, p, o.PieceBytes, o.Threads)
	}()
	return a, nil
}

func newArena(log *slog.Logger) *Arena {
	return &Arena{
		log: log, opened: time.Now(), first: make(chan struct{}), grown: make(chan struct{}),
		done: map[int64]int64{}, cancel: func() {},
	}
}

// populate runs the population to its end: one thread for the first piece,
// then all of them.
func (a *Arena) populate(ctx context.Context, p *populator, piece int64, threads int) {
	firstEnd := min(firstPieceBytes, a.SizeBytes())
	a.mu.Lock()
	a.next = firstEnd
	a.mu.Unlock()
	ok := a.populatePiece(ctx, p, 0, firstEnd)
	var workers sync.WaitGroup
	for i := 0; ok && i < threads; i++ {
		workers.Go(func() {
			// The thread is locked and never unlocked: it ends with this
			// goroutine and takes its low priority along.
			runtime.LockOSThread()
			p.lowerPriority()
			for {
				from, to, more := a.claim(piece)
				if !more || !a.populatePiece(ctx, p, from, to) {
					return
				}
			}
		})
	}
	workers.Wait()
	a.finish(p)
}

// claim hands out the next piece.
func (a *Arena) claim(piece int64) (from, to int64, more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil || a.next >= a.SizeBytes() {
		return 0, 0, false
	}
	from = a.next
	// The first piece is short: end the second at a multiple of the piece.
	to = min((from/piece+1)*piece, a.SizeBytes())
	a.next = to
	return from, to, true
}

// populatePiece makes [from, to) present and publishes it, or records why not.
func (a *Arena) populatePiece(ctx context.Context, p *populator, from, to int64) bool {
	if err := p.room(to - from); err != nil {
		a.fail(err)
		return false
	}
	for at := from; at < to; at += populateStepBytes {
		if ctx.Err() != nil {
			a.fail(ErrClosed)
			return false
		}
		if err := p.populate(at, min(at+populateStepBytes, to)); err != nil {
			a.fail(fmt.Errorf("populating bytes %d..%d of the pool: %w", from, to, err))
			return false
		}
	}
	a.publish(from, to)
	return true
}

// fail records the first reason to stop.
func (a *Arena) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err = err
	}
}

// publish adds a finished piece. What is ready is a span from 0: pieces beyond
// an unfinished one wait for it.
func (a *Arena) publish(from, to int64) {
	a.mu.Lock()
	a.done[from] = to
	before := a.ready
	for {
		end, ok := a.done[a.ready]
		if !ok {
			break
		}
		delete(a.done, a.ready)
		a.ready = end
	}
	isFirst := before == 0 && a.ready > 0
	if isFirst {
		a.firstTook = time.Since(a.opened)
	}
	onGrow := a.onGrow
	grew := a.ready > before
	a.mu.Unlock()
	if isFirst {
		close(a.first)
	}
	if grew && onGrow != nil {
		onGrow()
	}
}

// finish ends the population, whole or not.
func (a *Arena) finish(p *populator) {
	a.mu.Lock()
	a.over = true
	a.grownTook = time.Since(a.opened)
	ready, err, onGrow, none := a.ready, a.err, a.onGrow, a.ready == 0
	stranded := a.done
	a.done = nil
	took := a.grownTook
	a.mu.Unlock()
	for from, to := range stranded {
		p.discard(from, to)
	}
	if none {
		close(a.first)
	}
	close(a.grown)
	switch {
	case err == nil:
		a.log.Info("pool populated", "bytes", ready, "dur", took)
	case !errors.Is(err, ErrClosed):
		a.log.Warn("pool stays smaller than configured", "bytes", ready, "configured_bytes", a.SizeBytes(), "dur", took, "err", err)
	}
	if onGrow != nil {
		onGrow()
	}
}

// attach sets the one listener for growth and for its end.
func (a *Arena) attach(onGrow func()) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return ErrClosed
	}
	if a.onGrow != nil {
		return errors.New("l1cache: arena already belongs to a cache")
	}
	a.onGrow = onGrow
	return nil
}

func (a *Arena) detach() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onGrow = nil
}

// growth returns what is usable and whether more may come.
func (a *Arena) growth() (ready int64, growing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ready, !a.over
}

// Bytes returns the whole mapping, also what is not ready yet: touch only what
// a reservation or a transfer names. It is invalid after Close.
func (a *Arena) Bytes() []byte { return a.mem }

// SizeBytes returns the configured size, that of the mapping and of the segment.
func (a *Arena) SizeBytes() int64 { return int64(len(a.mem)) }

// ShmName returns the segment's name, "" for private memory.
func (a *Arena) ShmName() string { return a.name }

// ReadyBytes returns how much is usable now. It only grows.
func (a *Arena) ReadyBytes() int64 {
	ready, _ := a.growth()
	return ready
}

// Ready is closed when the first piece is usable, or when it is certain that
// there will be none ([Arena.Err] says why).
func (a *Arena) Ready() <-chan struct{} { return a.first }

// Grown is closed when the population has ended, whole or not.
func (a *Arena) Grown() <-chan struct{} { return a.grown }

// Err returns why the population ended before the configured size was reached:
// [ErrMemoryLimit], [ErrShmTooSmall], or what the kernel said. Nil while it
// runs and when it was complete. The pool keeps what it has got.
func (a *Arena) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Durations returns how long it took from OpenArena to the first piece and to
// the end of the population; 0 for what has not happened yet.
func (a *Arena) Durations() (first, grown time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.firstTook, a.grownTook
}

// Close stops the population, waits for it, unmaps the memory and unlinks the
// segment. The caller makes sure that nobody uses the bytes any more. Further
// calls do nothing.
func (a *Arena) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil
	}
	a.closed = true
	a.mu.Unlock()
	a.cancel()
	a.wg.Wait()
	var err error
	if a.seg != nil {
		err = a.seg.close()
	}
	return errors.Join(err, unmap(a.mem))
}
