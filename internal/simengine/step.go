package simengine

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/connector/multi"
)

// step is one turn: what ended, what runs next, the forward pass, the answers.
// It says whether anything was computed or begun.
func (e *Engine) step() bool {
	e.stats.steps.Add(1)
	moved := e.progress()
	e.dropAborted()
	var s connector.Step
	budget := e.opts.MaxBatchTokens
	e.scheduleRunning(&s, &budget)
	begun := false
	if !s.Preempted {
		begun = e.scheduleWaiting(&s, &budget)
	}
	if len(s.Scheduled) == 0 && !begun {
		e.unblock()
	}
	var meta any
	if e.sched != nil {
		meta = e.sched.BuildMeta(&s)
		if err := e.worker.Prepare(context.Background(), meta); err != nil {
			e.opts.Logger.Warn("stores did not end before their blocks are reused", "err", err)
		}
		e.worker.Load(meta)
	}
	e.forward(&s)
	if e.sched != nil {
		e.worker.Save(meta)
	}
	e.sampleAll(&s)
	return moved || begun || len(s.Scheduled) > 0
}

// progress takes what the worker has done.
func (e *Engine) progress() bool {
	if e.worker == nil {
		return false
	}
	p := e.worker.Poll(e.ended)
	e.ended = nil
	bad := make(map[int64]bool, len(p.BadBlocks))
	for _, id := range p.BadBlocks {
		bad[id] = true
	}
	failed := make(map[string]bool, len(p.Failed))
	for _, id := range p.Failed {
		failed[id] = true
	}
	for _, id := range p.Received {
		if r := e.closing[id]; r != nil {
			r.unloaded = false
			e.maybeFree(r)
			continue
		}
		if r := e.loading[id]; r != nil {
			delete(e.loading, id)
			e.loadEnded(r, failed[id] || slices.ContainsFunc(r.blocks[0], func(b int64) bool { return bad[b] }))
		}
	}
	for _, id := range p.Sent {
		if r := e.closing[id]; r != nil {
			r.unsent = false
			e.maybeFree(r)
		}
	}
	return len(p.Received)+len(p.Sent) > 0
}

// loadEnded puts a request whose load is over where it belongs.
func (e *Engine) loadEnded(r *request, failed bool) {
	if !failed {
		e.stats.loads.Add(1)
		r.ComputedTokens = min(r.loaded, len(r.Tokens)-1) // the last token is computed for its answer
		e.remember(r)
		e.waiting = slices.Insert(e.waiting, 0, r)
		return
	}
	e.stats.failedLoads.Add(1)
	if e.policy == connector.PolicyFail {
		e.stats.failed.Add(1)
		e.finish(r, multi.Failed, ErrLoadFailed)
		return
	}
	e.release(r)
	e.waiting = slices.Insert(e.waiting, 0, r)
}

// release gives all blocks of a request back: it begins anew.
func (e *Engine) release(r *request) {
	e.pool.release(r.blocks[0])
	r.blocks = [][]int64{nil}
	r.filled, r.ComputedTokens, r.loaded = 0, 0, 0
}

// maybeFree frees the blocks of an ended request once nobody uses them.
func (e *Engine) maybeFree(r *request) {
	if r.unsent || r.unloaded {
		return
	}
	delete(e.closing, r.ID)
	e.pool.release(r.blocks[0])
}

// finish ends a request.
func (e *Engine) finish(r *request, why multi.Reason, err error) {
	if e.sched == nil {
		e.pool.release(r.blocks[0])
		r.end(err)
		return
	}
	f, ferr := e.sched.Finish(&r.Request, multi.Ending{Reason: why, Blocks: r.blocks})
	if ferr != nil {
		e.opts.Logger.Error("a request's kv_transfer_params are lost", "request_id", r.ID, "err", ferr)
	}
	r.unsent, r.params = f.KeepBlocks, f.Params
	if remotePrefill(r.params) {
		r.params["remote_prefill_cached_tokens"] = json.RawMessage(strconv.Itoa(r.cached))
	}
	e.closing[r.ID] = r
	if r.unsent {
		e.ended = append(e.ended, r.ID)
	}
	e.maybeFree(r)
	r.end(err)
}

// remotePrefill says whether params hand a prompt to a decoder. vLLM's
// scheduler adds to those what the prefiller had cached.
func remotePrefill(params map[string]json.RawMessage) bool {
	return string(params["do_remote_prefill"]) == "true"
}

// dropAborted ends requests whose callers have gone.
func (e *Engine) dropAborted() {
	gone := func(r *request) bool { return r.ctx.Err() != nil }
	drop := func(r *request) bool {
		if gone(r) {
			e.stats.aborted.Add(1)
			e.finish(r, multi.Aborted, r.ctx.Err())
			return true
		}
		return false
	}
	e.waiting = slices.DeleteFunc(e.waiting, drop)
	e.running = slices.DeleteFunc(e.running, drop)
	for id, r := range e.loading {
		if gone(r) {
			delete(e.loading, id)
			r.unloaded = true // its blocks are being written
			e.stats.aborted.Add(1)
			e.finish(r, multi.Aborted, r.ctx.Err())
		}
	}
}

// grow gives a request blocks for so many tokens, all or none.
func (e *Engine) grow(r *request, tokens int) (added []int64, ok bool) {
	need := (tokens+e.opts.BlockTokens-1)/e.opts.BlockTokens - len(r.blocks[0])
	if need > e.pool.available() {
		return nil, false
	}
	from := len(r.blocks[0])
	for range need {
		id, _ := e.pool.alloc()
		r.blocks[0] = append(r.blocks[0], id)
	}
	return r.blocks[0][from:], true
}

// scheduleRunning gives every running request its next tokens; the youngest
// are preempted when blocks run out.
func (e *Engine) scheduleRunning(s *connector.Step, budget *int) {
	for i := 0; i < len(e.running) && *budget > 0; i++ {
		r := e.running[i]
		n := min(len(r.Tokens)-r.ComputedTokens, *budget)
		added, ok := e.grow(r, r.ComputedTokens+n)
		for !ok && len(e.running)-1 > i {
			e.preempt(s)
			added, ok = e.grow(r, r.ComputedTokens+n)
		}
		if !ok {
			if len(e.running) > 1 || len(e.loading)+len(e.closing) == 0 {
				e.preempt(s) // this one
			}
			return
		}
		*budget -= n
		s.Scheduled = append(s.Scheduled, connector.Scheduled{Request: &r.Request, Kind: connector.Running, Tokens: n, NewBlocks: [][]int64{added}})
	}
}

// preempt takes the blocks of the youngest running request.
func (e *Engine) preempt(s *connector.Step) {
	last := len(e.running) - 1
	r := e.running[last]
	e.running = e.running[:last]
	s.Preempted = true
	e.stats.preempted.Add(1)
	e.release(r)
	r.Preempted, r.kind = true, connector.Resumed
	e.waiting = slices.Insert(e.waiting, 0, r)
}

// scheduleWaiting admits requests in their order; one whose lookup runs lets
// others pass.
func (e *Engine) scheduleWaiting(s *connector.Step, budget *int) (begun bool) {
	keep := e.waiting[:0:0]
	for i, r := range e.waiting {
		if *budget == 0 || len(e.running)+len(e.loading) >= e.opts.MaxRunning {
			keep = append(keep, e.waiting[i:]...)
			break
		}
		admitted, full := e.admit(r, s, budget)
		begun = begun || admitted
		if !admitted {
			keep = append(keep, r)
		}
		if full {
			keep = append(keep, e.waiting[i+1:]...)
			break
		}
	}
	e.waiting = keep
	return begun
}

// unblock ends a deadlock: loaded requests that wait hold all blocks, none can
// grow, and nobody else will give any back.
func (e *Engine) unblock() {
	if len(e.running)+len(e.loading)+len(e.closing) > 0 {
		return
	}
	for i := len(e.waiting) - 1; i > 0; i-- {
		if r := e.waiting[i]; len(r.blocks[0]) > 0 {
			e.release(r)
			r.Preempted = true
			return
		}
	}
}

// admit tries to run a request, or to begin its load.
func (e *Engine) admit(r *request, s *connector.Step, budget *int) (admitted, full bool) {
	external := 0
	computed := r.ComputedTokens
	if computed == 0 {
		e.findLocal(r)
		computed = len(r.blocks[0]) * e.opts.BlockTokens
		if e.sched != nil {
			n, ready := e.sched.Match(&r.Request, computed)
			if !ready {
				e.release(r)
				return false, false
			}
			external = n
		}
	}
	n := min(len(r.Tokens)-computed-external, *budget)
	want := computed + external + n
	if external > 0 {
		// The last token of a full hit is loaded too, and computed again.
		want = min(len(r.Tokens), (computed+external+e.chunk-1)/e.chunk*e.chunk)
	}
	if _, ok := e.grow(r, want); !ok {
		if r.ComputedTokens == 0 {
			e.release(r)
		}
		return false, true
	}
	if e.sched != nil {
		e.sched.Allocated(&r.Request, r.blocks, external)
	}
	if r.ComputedTokens == 0 {
		e.stats.local.Add(int64(computed))
		e.stats.external.Add(int64(external))
		r.filled = computed / e.opts.BlockTokens
		if len(r.answer) == 0 {
			r.cached = min(computed+external, r.PromptTokens)
		}
	}
	if external > 0 {
		r.loaded = computed + external
		e.loading[r.ID] = r
		return true, false
	}
	r.ComputedTokens = computed
	*budget -= n
	e.running = append(e.running, r)
	s.Scheduled = append(s.Scheduled, connector.Scheduled{Request: &r.Request, Kind: r.kind, Tokens: n})
	r.Preempted, r.kind = false, connector.New
	return true, false
}

// findLocal takes the blocks of r's prefix that the pool still has; the last
// token is always computed.
func (e *Engine) findLocal(r *request) {
	for i := 0; (i+1)*e.opts.BlockTokens < len(r.Tokens); i++ {
		id, ok := e.pool.find(r.hash(i, e.opts.BlockTokens))
		if !ok {
			return
		}
		r.blocks[0] = append(r.blocks[0], id)
	}
}

// remember lets the pool find the full blocks of a request.
func (e *Engine) remember(r *request) {
	for ; (r.filled+1)*e.opts.BlockTokens <= r.ComputedTokens; r.filled++ {
		e.pool.fill(r.blocks[0][r.filled], r.hash(r.filled, e.opts.BlockTokens))
	}
}

// forward computes what a step has scheduled.
func (e *Engine) forward(s *connector.Step) {
	total := 0
	for _, r := range e.running {
		for i := range s.Scheduled {
			sc := &s.Scheduled[i]
			if sc.Request != &r.Request {
				continue
			}
			e.kv.compute(r, r.ComputedTokens, r.ComputedTokens+sc.Tokens)
			r.ComputedTokens += sc.Tokens
			total += sc.Tokens
			e.remember(r)
		}
	}
	e.stats.computed.Add(int64(total))
	if e.opts.TokenCost > 0 && total > 0 {
		time.Sleep(time.Duration(total) * e.opts.TokenCost)
	}
}

// sampleAll gives every request that is computed to its end another token.
func (e *Engine) sampleAll(s *connector.Step) {
	if len(s.Scheduled) == 0 {
		return
	}
	e.running = slices.DeleteFunc(e.running, func(r *request) bool {
		if r.ComputedTokens < len(r.Tokens) {
			return false
		}
		t := e.kv.sample(r)
		e.stats.generated.Add(1)
		r.answer = append(r.answer, t)
		if r.each != nil {
			r.each(t)
		}
		if len(r.answer) == r.max {
			e.finish(r, multi.LengthCapped, nil)
			return true
		}
		r.Tokens = append(r.Tokens, t)
		r.advance()
		return false
	})
}
