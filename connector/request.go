package connector

import (
	"encoding/json"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// Request is what an engine tells a [Scheduler] of one of its requests. The
// engine keeps one of these per request and keeps it up to date between calls;
// the scheduler reads it in its methods only.
type Request struct {
	// ID is unique among the engine's live requests.
	ID string
	// Tokens are the prompt and what was generated so far. They only grow.
	Tokens []uint32
	// PromptTokens is the length of the prompt.
	PromptTokens int
	// Salt separates tenants; see [wire.CheckSalt]. "" is the ordinary one.
	Salt string
	// Params are kv_transfer_params.
	Params map[string]json.RawMessage
	// ComputedTokens is how many tokens the engine has KV of; 0 again after a
	// failed load or a preemption.
	ComputedTokens int
	// Preempted says that the request waits because its blocks were taken.
	Preempted bool
}

// Transfer is a load or a store of one request.
type Transfer struct {
	// Key names the tokens and the range in Start and End, for all ranks; a
	// worker puts its own into a copy.
	Key wire.Key
	// Blocks of the range, one list for each group of the engine. The engine's
	// blocks must stay the request's until the transfer is done.
	Blocks [][]int64
	// SkipTokens at the start of the range must not be written by a load: the
	// engine has them, in blocks that it may share.
	SkipTokens int
}

// Meta is what one step of an engine asks of its workers. It is immutable.
type Meta struct {
	Loads, Stores []Transfer
	// Flush says that stores in flight must end before the step's forward pass:
	// blocks of a preempted request are about to be overwritten.
	Flush bool
}

// Kind of a scheduled request.
type Kind uint8

// New requests are scheduled for the first time, Resumed ones again after a
// preemption, Running ones have been in the step before.
const (
	New Kind = iota
	Running
	Resumed
)

// Scheduled is one request of a step.
type Scheduled struct {
	Request *Request
	Kind    Kind
	// Tokens are computed in this step.
	Tokens int
	// NewBlocks are what a running request got since the step before, one list
	// for each group. Blocks of others were told to [Scheduler.Allocated].
	NewBlocks [][]int64
}

// Step is what an engine decided to do next.
type Step struct {
	Scheduled []Scheduled
	// Preempted says that a running request was preempted in this step.
	Preempted bool
}

// CachedTokens is what a request that asked for cached_token_stats in its
// params gets back.
type CachedTokens struct {
	Local    int `json:"num_vllm_cached_tokens"`
	LMCache  int `json:"num_lmcache_cached_tokens"`
	External int `json:"num_lmcache_extra_cached_tokens"`
}

// Finished is the answer to [Scheduler.Finish].
type Finished struct {
	// KeepBlocks says that the request's blocks must stay until every worker
	// named the request in [Progress].Sent.
	KeepBlocks bool
	// Cached is nil unless the request's params asked for it.
	Cached *CachedTokens
}
