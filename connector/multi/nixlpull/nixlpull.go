package nixlpull

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/connector/multi"
	"github.com/lmcache-go/lmcache-go/connector/pd"
)

// Peer is what a connector needs of a [pd.Peer].
type Peer interface {
	Offer(o pd.Offer) (*pd.Params, error)
	Track(requestID string, params *pd.Params)
	Untrack(requestID string)
	Pull(ctx context.Context, requestID string, params *pd.Params, local [][]int64) (pd.Result, error)
	Close() error
}

// Connector is the scheduler and the worker of a NIXL connector, for an engine
// of one rank. What it does with a request depends on the request's
// kv_transfer_params alone, as in vLLM; the kv_role changes nothing.
//
// The methods of [multi.Scheduler] and those of [multi.Worker] may run on one
// goroutine or on two.
type Connector struct {
	peer        Peer
	blockTokens int
	log         *slog.Logger
	ctx         context.Context // of the pulls; ends with Close
	stop        context.CancelFunc
	wg          sync.WaitGroup // pulls

	requests map[string]*remote // of the scheduling goroutine
	pulls    []pull             // likewise, for the next meta

	mu       sync.Mutex
	sent     []string // guarded by mu
	received []ended  // guarded by mu
}

// remote is a request whose prompt another engine has computed.
type remote struct {
	params *pd.Params
	used   bool // the load was ordered, or the blocks were given up
}

// pull is an order to the worker. Without blocks it only tells the producer to
// free its own.
type pull struct {
	id     string
	params *pd.Params
	blocks [][]int64
}

// ended is a pull that is over, with its blocks where it failed.
type ended struct {
	id  string
	bad []int64
}

// New starts a peer and makes it a connector; o.Released is the connector's own.
// blockTokens is the size of the engine's blocks.
func New(o pd.Options, blockTokens int) (*Connector, error) {
	c := newConnector(blockTokens, o.Logger)
	o.Released = c.released
	p, err := pd.New(o)
	if err != nil {
		c.stop()
		return nil, err
	}
	c.peer = p
	return c, nil
}

func newConnector(blockTokens int, log *slog.Logger) *Connector {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Connector{blockTokens: blockTokens, log: log, ctx: ctx, stop: stop, requests: make(map[string]*remote)}
}

// Scheduler is c as a child of a composition.
func (c *Connector) Scheduler() multi.Scheduler { return scheduler{c} }

// Worker is c as a child of a composition.
func (c *Connector) Worker() multi.Worker { return worker{c} }

// Peer is the peer, for its statistics.
func (c *Connector) Peer() *pd.Peer {
	p, _ := c.peer.(*pd.Peer) // a test's peer has none
	return p
}

// released hears from the peer that blocks are free.
func (c *Connector) released(r pd.Release) {
	c.mu.Lock()
	c.sent = append(c.sent, r.RequestID)
	c.mu.Unlock()
}

type scheduler struct{ *Connector }

// params reads what a request brought; nil for nothing of use.
func (c *Connector) params(r *connector.Request) *pd.Params {
	if len(r.Params) == 0 {
		return nil
	}
	raw, err := json.Marshal(r.Params)
	var p *pd.Params
	if err == nil {
		p, err = pd.ParseParams(raw)
	}
	if err != nil {
		c.log.Warn("kv_transfer_params are not usable: the prompt is computed here", "component", "nixl", "request_id", r.ID, "err", err)
		return nil
	}
	return p
}

// remote returns what is known of a request from another engine; nil when its
// prompt is this engine's own business.
func (c *Connector) remote(r *connector.Request) *remote {
	if m, ok := c.requests[r.ID]; ok {
		return m
	}
	var m *remote
	if p := c.params(r); p != nil && p.DoRemotePrefill {
		if err := p.Check(); err != nil {
			c.log.Warn("Got invalid KVTransferParams: the prompt is computed here", "component", "nixl", "request_id", r.ID, "err", err)
		} else {
			m = &remote{params: p}
		}
	}
	c.requests[r.ID] = m // nil too: it is read once
	return m
}

// Enqueued begins the heartbeats of a request.
func (s scheduler) Enqueued(r *connector.Request) {
	if m := s.remote(r); m != nil && !m.used {
		s.peer.Track(r.ID, m.params)
	}
}

// Match is everything that the engine does not have, once.
func (s scheduler) Match(r *connector.Request, computed int) (int, bool) {
	m := s.remote(r)
	if m == nil || m.used {
		return 0, true
	}
	return max(0, r.PromptTokens-computed), true
}

// Allocated orders the pull into the blocks that the engine did not have.
func (s scheduler) Allocated(r *connector.Request, blocks [][]int64, external int) {
	m := s.remote(r)
	if m == nil || m.used {
		return
	}
	m.used = true
	p := pull{id: r.ID, params: m.params}
	if external > 0 {
		from := (r.PromptTokens - external) / s.blockTokens
		to := (r.PromptTokens + s.blockTokens - 1) / s.blockTokens
		for _, g := range blocks {
			p.blocks = append(p.blocks, slices.Clone(g[min(from, len(g)):min(to, len(g))]))
		}
	}
	s.pulls = append(s.pulls, p)
}

// BuildMeta hands out the pulls that were ordered.
func (s scheduler) BuildMeta(*connector.Step) any {
	out := s.pulls
	s.Connector.pulls = nil
	return out
}

// Finish offers the blocks of a request that was made for a decoder, and gives
// up those of a request that did not come to its load.
func (s scheduler) Finish(r *connector.Request, e multi.Ending) (multi.Finished, error) {
	m := s.remote(r)
	delete(s.requests, r.ID)
	if m != nil {
		if !m.used {
			s.Connector.pulls = append(s.pulls, pull{id: r.ID, params: m.params})
		}
		return multi.Finished{}, nil
	}
	p := s.params(r)
	if p == nil || !p.DoRemoteDecode || e.Reason != multi.Stopped && e.Reason != multi.LengthCapped {
		return multi.Finished{}, nil
	}
	var blocks [][]int64
	for _, g := range e.Blocks {
		blocks = append(blocks, slices.Clone(g))
	}
	offer, err := s.peer.Offer(pd.Offer{RequestID: r.ID, Blocks: blocks, Tokens: r.ComputedTokens})
	if err != nil {
		return multi.Finished{}, err
	}
	out := multi.Finished{KeepBlocks: true}
	raw, err := json.Marshal(offer)
	if err == nil {
		err = json.Unmarshal(raw, &out.Params)
	}
	return out, err
}

// Close does nothing: the worker closes the peer.
func (s scheduler) Close() error { return nil }

type worker struct{ *Connector }

// Prepare has nothing to wait for: blocks under a pull are not preempted.
func (w worker) Prepare(context.Context, any) error { return nil }

// Load starts the pulls.
func (w worker) Load(meta any) {
	list, ok := meta.([]pull)
	if !ok {
		return
	}
	for _, p := range list {
		w.wg.Go(func() { w.pull(p) })
	}
}

// pull runs one pull to its end; the peer bounds it.
func (c *Connector) pull(p pull) {
	res, err := c.peer.Pull(c.ctx, p.id, p.params, p.blocks)
	e := ended{id: p.id}
	if err != nil {
		c.log.Warn("NIXL transfer failed", "component", "nixl", "request_id", p.id, "remote_engine_id", p.params.RemoteEngineID,
			"remote_host", p.params.RemoteHost, "remote_port", p.params.RemotePort, "err", err)
		if !errors.Is(err, pd.ErrNotify) {
			for _, g := range p.blocks {
				e.bad = append(e.bad, g...)
			}
			c.settle(res.Settled)
		}
	}
	if len(p.blocks) == 0 {
		return
	}
	c.mu.Lock()
	c.received = append(c.received, e)
	c.mu.Unlock()
}

// settle waits until the blocks of a failed pull cannot be written to any more,
// or until the peer is being closed, which waits itself.
func (c *Connector) settle(settled <-chan struct{}) {
	if settled == nil {
		return
	}
	select {
	case <-settled:
	case <-c.ctx.Done():
	}
}

// Save does nothing: decoders come for the blocks.
func (w worker) Save(any) {}

// Poll tells which pulls are over, and which offers.
func (w worker) Poll([]string) connector.Progress {
	w.mu.Lock()
	sent, received := w.sent, w.received
	w.Connector.sent, w.Connector.received = nil, nil
	w.mu.Unlock()
	p := connector.Progress{Sent: sent}
	for _, e := range received {
		p.Received = append(p.Received, e.id)
		p.BadBlocks = append(p.BadBlocks, e.bad...)
	}
	return p
}

// Close gives up what runs and closes the peer. Its error matches nixl.ErrBusy
// when a transfer does not end; the memory must stay then.
func (w worker) Close(context.Context) error {
	w.stop()
	err := w.peer.Close()
	w.wg.Wait()
	return err
}
