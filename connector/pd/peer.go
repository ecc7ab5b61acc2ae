package pd

import (
	"context"
	"time"
)

// Reason says why a request that was offered ended.
type Reason string

// The reasons.
const (
	// ReleaseRead: all readers have said that they have the blocks.
	ReleaseRead Reason = "read"
	// ReleaseExpired: the lease ended first. A reader that comes later finds
	// blocks that may hold something else.
	ReleaseExpired Reason = "expired"
	// ReleaseWithdrawn: the engine took the offer back.
	ReleaseWithdrawn Reason = "withdrawn"
	// ReleaseClosed: the peer was closed.
	ReleaseClosed Reason = "closed"
)

// Release tells that the blocks of a request may be reused.
type Release struct {
	RequestID string
	Reason    Reason
	// Readers is how many have read it.
	Readers int
	// Held is the time since the offer.
	Held time.Duration
}

// Offer is a request whose KV is ready for another engine.
type Offer struct {
	// RequestID as consumers will name it: unique while it is offered. It may
	// hold colons.
	RequestID string
	// Blocks of the request, one list for each KV cache group.
	Blocks [][]int64
	// Tokens that they hold.
	Tokens int
	// CachedTokens is how many of them were found in a cache here; it goes to
	// the consumer's statistics.
	CachedTokens int
	// Lease overrides Options.Lease.
	Lease time.Duration
}

// Result is what a pull did.
type Result struct {
	// Blocks that were read, of all groups together, and their bytes.
	Blocks int
	Bytes  int64
	// Ranks that were read from.
	Ranks int
	// Descriptors is what NIXL was asked to move, after joining neighbours.
	Descriptors int
	// Direct: the blocks were copied around NIXL.
	Direct bool
	// Handshake is the time spent before the transfer, zero when the producer
	// was known; Transfer the time from post to end.
	Handshake, Transfer time.Duration
	// Settled is closed when nothing can write to the local blocks any more. It
	// is never nil, and closed already when Pull succeeds.
	Settled <-chan struct{}
}

// Peer is one rank of an engine. Its methods may be called from several
// goroutines.
type Peer struct {
	opts Options
	done chan struct{}
}

// New starts a peer: loads NIXL, registers the memory and opens the side
// channel. When it returns, other engines can shake hands with it.
func New(o Options) (*Peer, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Peer{opts: o, done: make(chan struct{})}, nil
}

// EngineID is the engine's name.
func (p *Peer) EngineID() string { return p.opts.EngineID }

// Port is the port of the side channel.
func (p *Peer) Port() int { return p.opts.Port }

// Offer keeps a finished request's blocks for another engine until it has read
// them or the lease ends; Options.Released is then called. The params go into
// the response. Errors: [ErrOffered], [ErrParams] for blocks that do not exist,
// [ErrClosed].
func (p *Peer) Offer(o Offer) (*Params, error) { return nil, ErrClosed }

// Withdraw ends an offer early, when it is known that nobody will read it. It
// says whether there was one. A reader that is reading at this moment is not
// stopped: only withdraw what no response has told of.
func (p *Peer) Withdraw(requestID string) bool { return false }

// Offered is how many requests are offered now.
func (p *Peer) Offered() int { return 0 }

// Track keeps the producer's lease alive from now on, by heartbeats, until Pull
// or Untrack is called for the request. Call it when a request arrives, before
// it has blocks. It does nothing for params that name no producer.
func (p *Peer) Track(requestID string, params *Params) {}

// Untrack ends the heartbeats of a request that will not be pulled. To let the
// producer free its blocks at once, pull it with no blocks instead.
func (p *Peer) Untrack(requestID string) {}

// Pull reads the KV of a request into local blocks: one list for each KV cache
// group, at most as many as the producer's, paired with the last ones of it.
// With no block at all it only tells the producer to free its own.
//
// It waits for the end of the transfer, Options.TransferTimeout or ctx. After an
// error the blocks may still be written to until Result.Settled is closed. The
// producer is told by the transfer itself, when the data has arrived, so a
// failed pull leaves its blocks to their lease.
func (p *Peer) Pull(ctx context.Context, requestID string, params *Params, local [][]int64) (Result, error) {
	return Result{Settled: p.done}, ErrClosed
}

// TakeStats returns what has happened since it was called last.
func (p *Peer) TakeStats() Stats { return Stats{} }

// Close ends the peer: waits for pulls end with [ErrClosed], offers are released
// with ReleaseClosed, and the memory is deregistered. It waits, for up to 30 s,
// for transfers that run; when one does not end, the error matches nixl.ErrBusy
// and the memory must stay until Done is closed.
func (p *Peer) Close() error { return nil }

// Done is closed when the library does not touch the memory any more.
func (p *Peer) Done() <-chan struct{} { return p.done }
