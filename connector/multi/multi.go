package multi

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/lmcache-go/lmcache-go/connector"
)

// Reason tells how a request ended.
type Reason uint8

// Only requests that stopped or reached their limit have KV worth handing on.
const (
	Stopped Reason = iota
	LengthCapped
	Aborted
	Failed
)

// Ending is what children learn of a request that is over.
type Ending struct {
	Reason Reason
	// Blocks of the request, one list for each group of the engine. They stay
	// the request's while Finished.KeepBlocks holds.
	Blocks [][]int64
}

// Finished is a child's answer to the end of a request.
type Finished struct {
	// KeepBlocks says that the blocks must stay until the workers name the
	// request in connector.Progress.Sent.
	KeepBlocks bool
	// Params go back to the client as kv_transfer_params; nil for none.
	Params map[string]json.RawMessage
}

// Scheduler is the scheduler's side of a connector. Its methods belong to the
// goroutine that schedules, and none waits for a peer.
type Scheduler interface {
	// Enqueued tells of a request that enters the waiting queue.
	Enqueued(r *connector.Request)
	// Match says how many tokens behind the first computed ones can be loaded;
	// ready is false while that is not known.
	Match(r *connector.Request, computed int) (tokens int, ready bool)
	// Allocated tells the blocks that a request has now, and how many of its
	// tokens this child is to load.
	Allocated(r *connector.Request, blocks [][]int64, external int)
	// BuildMeta turns a step into work for the worker of the same child.
	BuildMeta(step *connector.Step) any
	// Finish forgets a request.
	Finish(r *connector.Request, e Ending) (Finished, error)
	// Close ends what belongs to the scheduler.
	Close() error
}

// Worker is the side of a connector that touches memory. Its methods belong to
// the goroutine that runs the model; meta is what BuildMeta made for the step.
type Worker interface {
	// Prepare runs before the forward pass: blocks of preempted requests are
	// about to be overwritten.
	Prepare(ctx context.Context, meta any) error
	// Load starts the loads of a step.
	Load(meta any)
	// Save starts its stores, once the pages are filled.
	Save(meta any)
	// Poll tells what ended, given the requests that finished since the last
	// call and whose blocks this child keeps.
	Poll(finished []string) connector.Progress
	// Close ends what belongs to the worker.
	Close(ctx context.Context) error
}

// Child is a connector with the name that its statistics have.
type Child[T any] struct {
	Name string
	Conn T
}

// Errors of a composition.
var (
	// ErrChildren: no children, or more than a set of 64.
	ErrChildren = errors.New("multi: bad children")
	// ErrParams: two children return the same key in kv_transfer_params.
	ErrParams = errors.New("multi: two connectors return the same kv_transfer_params key")
)

// Meta is the work of one step for all children.
type Meta struct {
	// Children have one entry each, in their order.
	Children []any
	// Holds are requests that ended since the step before and whose blocks are
	// kept, with the set of children that keep them, bit i for child i.
	Holds map[string]uint64
}
