package simengine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lmcache-go/lmcache-go/connector"
)

// What a request may end with.
var (
	// ErrTooLong: prompt and answer exceed Options.MaxModelTokens.
	ErrTooLong = errors.New("simengine: request is too long")
	// ErrLoadFailed: the KV of a hit could not be loaded, and
	// kv_load_failure_policy is fail.
	ErrLoadFailed = errors.New("simengine: KV load failed")
	// ErrClosed: the engine is closed.
	ErrClosed = errors.New("simengine: engine is closed")
)

// Engine is a simulated engine of one rank.
type Engine struct {
	opts   Options
	policy connector.FailurePolicy
	links
	mem     *connector.SharedMemory
	kv      *kv
	pool    *pool
	arrived chan *request
	resets  chan chan struct{}
	stop    context.CancelFunc
	done    chan struct{}
	seq     atomic.Int64
	stats   stats

	// Of the step goroutine:
	waiting []*request
	running []*request
	loading map[string]*request
	closing map[string]*request // ended; their blocks are still read
	ended   []string            // not yet told to the worker
}

// Stats of an engine since its start.
type Stats struct {
	Requests, Aborted, Failed                  int64
	PromptTokens, LocalHits, ExternalHits      int64
	ComputedTokens, Generated, Preempted       int64
	Loads, FailedLoads, Steps, Evicted, Blocks int64
	// Of now: requests that run, and that wait.
	Running, Waiting int64
}

type stats struct {
	requests, aborted, failed, prompt, local, external, computed, generated, preempted, loads, failedLoads, steps, evicted, blocks, running, waiting atomic.Int64
}

// New starts an engine. With a connector its servers must be up.
func New(ctx context.Context, o Options) (_ *Engine, err error) {
	o.setDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	e := &Engine{
		opts: o, policy: connector.PolicyRecompute, pool: newPool(o.Blocks), arrived: make(chan *request), resets: make(chan chan struct{}),
		done: make(chan struct{}), loading: make(map[string]*request), closing: make(map[string]*request),
	}
	if e.mem, err = connector.NewSharedMemory(int64(o.Layers) * int64(o.layerBytes())); err != nil {
		return nil, err
	}
	e.kv = newKV(&e.opts, e.mem.Host()[0], usesNixl(o.Connector))
	if err := e.connect(ctx); err != nil {
		return nil, errors.Join(err, e.disconnect())
	}
	run, stop := context.WithCancel(context.Background())
	e.stop = stop
	go e.run(run)
	return e, nil
}

// Close ends the engine; requests under way end with [ErrClosed].
func (e *Engine) Close() error {
	e.stop()
	<-e.done
	return e.disconnect()
}

// Stats of now.
func (e *Engine) Stats() Stats {
	s := &e.stats
	return Stats{
		Requests: s.requests.Load(), Aborted: s.aborted.Load(), Failed: s.failed.Load(), PromptTokens: s.prompt.Load(), LocalHits: s.local.Load(),
		ExternalHits: s.external.Load(), ComputedTokens: s.computed.Load(), Generated: s.generated.Load(), Preempted: s.preempted.Load(),
		Loads: s.loads.Load(), FailedLoads: s.failedLoads.Load(), Steps: s.steps.Load(), Evicted: s.evicted.Load(), Blocks: s.blocks.Load(),
		Running: s.running.Load(), Waiting: s.waiting.Load(),
	}
}

// Completion is a request to the engine.
type Completion struct {
	// ID of the request; made up when empty.
	ID string
	// Tokens of the prompt, at least one.
	Tokens []uint32
	// MaxTokens to generate, at least 1.
	MaxTokens int
	// Salt separates tenants.
	Salt string
	// Params are kv_transfer_params.
	Params map[string]json.RawMessage
}

// Answer is what a request ends with.
type Answer struct {
	// Tokens that were generated.
	Tokens []uint32
	// Cached is how many tokens of the prompt were not computed: found in the
	// pool, or loaded.
	Cached int
	// Params are the kv_transfer_params for whoever goes on with the request;
	// nil for none.
	Params map[string]json.RawMessage
}

// Complete generates an answer; each, if not nil, is called for every token as
// it comes, from another goroutine. When ctx ends the request is aborted.
func (e *Engine) Complete(ctx context.Context, c Completion, each func(token uint32)) (Answer, error) {
	if c.ID == "" {
		c.ID = fmt.Sprintf("sim-%d", e.seq.Add(1))
	}
	if err := e.fits(c); err != nil {
		e.reject(ctx, c)
		return Answer{}, err
	}
	return e.submit(ctx, newRequest(ctx, c, each))
}

// fits says whether a request can be served at all.
func (e *Engine) fits(c Completion) error {
	if len(c.Tokens) == 0 || c.MaxTokens < 1 || len(c.Tokens)+c.MaxTokens > e.opts.MaxModelTokens {
		return fmt.Errorf("%w: %d prompt tokens and %d to generate, together at most %d, and each at least 1", ErrTooLong, len(c.Tokens), c.MaxTokens, e.opts.MaxModelTokens)
	}
	return nil
}

// reject lets a request that holds blocks elsewhere (do_remote_prefill) begin
// and end here, so that its prefiller hears of it, as vLLM does.
func (e *Engine) reject(ctx context.Context, c Completion) {
	if len(c.Params) == 0 || len(c.Tokens) == 0 {
		return
	}
	gone, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cancel()
	_, _ = e.submit(context.WithoutCancel(ctx), newRequest(gone, c, nil)) // ends as aborted
}

func (e *Engine) submit(ctx context.Context, r *request) (Answer, error) {
	select {
	case e.arrived <- r:
	case <-e.done:
		return Answer{}, ErrClosed
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
	<-r.over
	return Answer{Tokens: r.answer, Cached: r.cached, Params: r.params}, r.err
}

// ResetPrefixCache makes the engine forget the blocks that no request uses, so
// that the next request with a known prefix has to load it.
func (e *Engine) ResetPrefixCache() {
	ack := make(chan struct{})
	select {
	case e.resets <- ack:
		<-ack
	case <-e.done:
	}
}

// idle is how long the engine sleeps when nothing can be computed, but
// transfers or lookups are under way.
const idle = 200 * time.Microsecond

// run steps the engine until it is closed.
func (e *Engine) run(ctx context.Context) {
	defer close(e.done)
	for ctx.Err() == nil {
		busy := len(e.waiting)+len(e.running)+len(e.loading)+len(e.closing) > 0
		if !e.take(ctx, busy) {
			break
		}
		if !e.step() {
			t := time.NewTimer(idle)
			select {
			case <-t.C:
			case <-ctx.Done():
			}
			t.Stop()
		}
		e.stats.evicted.Store(e.pool.evicted)
		e.stats.blocks.Store(int64(e.opts.Blocks - 1 - e.pool.available()))
		e.stats.running.Store(int64(len(e.running)))
		e.stats.waiting.Store(int64(len(e.waiting) + len(e.loading)))
	}
	for _, list := range [][]*request{e.waiting, e.running} {
		for _, r := range list {
			r.end(ErrClosed)
		}
	}
	for _, r := range e.loading {
		r.end(ErrClosed)
	}
}

// take receives what has arrived; without anything to do it waits for it.
func (e *Engine) take(ctx context.Context, busy bool) bool {
	for {
		if busy {
			select {
			case r := <-e.arrived:
				e.enqueue(r)
			case ack := <-e.resets:
				e.pool.reset()
				close(ack)
			default:
				return true
			}
			continue
		}
		select {
		case r := <-e.arrived:
			e.enqueue(r)
			busy = true
		case ack := <-e.resets:
			e.pool.reset()
			close(ack)
		case <-ctx.Done():
			return false
		}
	}
}

func (e *Engine) enqueue(r *request) {
	e.stats.requests.Add(1)
	e.stats.prompt.Add(int64(r.PromptTokens))
	e.waiting = append(e.waiting, r)
	if e.sched != nil {
		e.sched.Enqueued(&r.Request)
	}
}
