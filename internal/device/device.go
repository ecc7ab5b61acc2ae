package device

import (
	"context"
	"errors"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
)

// Errors of opening memory.
var (
	// ErrName: the name is not one that a client may give.
	ErrName = errors.New("device: not a KV segment name")
	// ErrOpen: the memory is not there or cannot be mapped.
	ErrOpen = errors.New("device: cannot map engine memory")
	// ErrShort: it is smaller than the client says.
	ErrShort = errors.New("device: engine memory is smaller than registered")
)

// Errors of Submit. Nothing was queued and Done is not called.
var (
	// ErrClosed: the stream or the device was closed. Also what Done hears for
	// jobs that had not begun by then.
	ErrClosed = errors.New("device: closed")
	// ErrBusy: the stream's queue is full.
	ErrBusy = errors.New("device: too many copies queued")
	// ErrMemory: memory of another device, or closed.
	ErrMemory = errors.New("device: memory is not open on this device")
	// ErrReorder: the plan reorders heads and tokens and the device only copies.
	ErrReorder = errors.New("device: cannot reorder")
	// ErrEvent: the client's event cannot be waited for.
	ErrEvent = errors.New("device: unusable event handle")
)

// Errors that Done hears. Submit returns ErrLost too where it knows already.
var (
	// ErrLost: the engine's memory went away under the copy.
	ErrLost = errors.New("device: engine memory is gone")
	// ErrPool: the pool's memory did, which is our own fault.
	ErrPool = errors.New("device: pool memory is gone")
	// ErrCanceled: Cancel came before all was copied.
	ErrCanceled = errors.New("device: copy canceled")
	// ErrUnbegun: nothing was copied, and the client has no event of it. Only
	// of jobs for which Submit returned none, on devices that have events.
	ErrUnbegun = errors.New("device: the copy did not begin")
	// ErrCopy: the copy failed otherwise.
	ErrCopy = errors.New("device: copy failed")
)

// Device copies between the memory of engines and the pool. All methods are
// safe for concurrent use.
type Device interface {
	// Open maps memory of an engine by the key of its storage (kvlayout) and
	// its size, which is checked. It may take milliseconds.
	Open(key string, sizeBytes int64) (Memory, error)
	// NewStream makes a queue of copies; an instance has one for stores and
	// one for retrieves. The label is for logs.
	NewStream(label string) (Stream, error)
	// Traits are what a handler has to know of the device. They never change.
	Traits() Traits
	// Stats are counters since the start.
	Stats() Stats
	// Close refuses new work, ends what is queued with ErrClosed, waits for
	// what is running, and ends the device's goroutines.
	Close() error
}

// Memory is engine memory that is mapped. Several may share one mapping.
type Memory interface {
	// SizeBytes is what Open was told.
	SizeBytes() int64
	// Close gives it up. Jobs that use it keep the mapping until they are
	// done. More calls do nothing.
	Close()
}

// Stream runs jobs one after the other, in the order of Submit. Streams do not
// wait for each other, and none starves another.
type Stream interface {
	// Submit queues a job and returns at once. On an error nothing was queued
	// and Done is not called; else Done may come before Submit returns. The
	// job, its plan and its slices belong to the stream until Done is called.
	// The event is what the client waits for; see [Traits] for who has none. On
	// a device that has events, nil says that the engine has not come to the
	// point that the job waits for: then Begun is called with it.
	Submit(j *Job) (event []byte, err error)
	// Cancel asks that a submitted job ends early; its Done still comes, and
	// in order. A job that is done, or on hardware already, is not affected.
	Cancel(j *Job)
	// Close refuses new jobs, ends the queued ones with ErrClosed, and waits
	// until the running one is done. If ctx ends first, its error is returned:
	// then something still waits, for a peer that may be dead, and may touch
	// the memory until its Done is called. Close may be called again.
	Close(ctx context.Context) error
}

// Job is one request's copy.
type Job struct {
	Direction copyplan.Direction
	Plan      *copyplan.Plan
	// Engine has one memory per storage of the plan's layout, in its order.
	Engine []Memory
	// Pool is the whole pool, which object offsets count from.
	Pool []byte
	// After is the client's event handle: the copy begins when it has fired.
	After []byte
	// Begun is called with the client's event when the copy has begun, before
	// Done, if Submit returned none. If the job ends without, Done hears an
	// [ErrUnbegun]. It must neither wait nor submit. nil for who has no client.
	Begun func(event []byte)
	// Done is called exactly once, when nothing can touch the memory of the
	// job any more, with the reason why it is not complete, or nil. Calls of
	// one stream come in order. It runs on a goroutine of the device: it may
	// publish objects, release leases, and submit, but must not wait.
	Done func(err error)
}

// Traits of a device.
type Traits struct {
	// Plans that the device likes.
	Plans copyplan.Options
	// CopiesOnly: it refuses plans that reorder heads and tokens.
	CopiesOnly bool
	// AnswerAtDone: clients do not wait for events, so an answer has to wait
	// for Done. Submit returns no event then; the answer carries StubEvent.
	// Otherwise a client is answered after Submit, with the event.
	AnswerAtDone bool
	StubEvent    string
}

// Stats of a device. Byte counts are of jobs that completed.
type Stats struct {
	// Stores and Loads completed, and their bytes.
	Stores, Loads         uint64
	StoreBytes, LoadBytes uint64
	// Failed jobs, for whatever reason; Faults of them because memory was gone.
	Failed, Faults uint64
	// Pending jobs right now, queued or running.
	Pending int
	// Mappings of engine memory and their size.
	Mappings      int
	MappedBytes   int64
	StreamsActive int
	// Stuck counts streams whose Close did not see their end: they wait for a
	// peer that may have died.
	Stuck int
}
