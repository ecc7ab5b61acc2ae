package pd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
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
	// hold colons, but no comma.
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

// Peer is one rank of an engine. Its methods may be called from several
// goroutines.
type Peer struct {
	opts    Options
	geo     geometry
	agent   *nixl.Agent
	ucx     *nixl.Backend
	mem     nixl.MemType
	channel *SideChannel
	own     bool // channel is this peer's
	stats   counters
	leases  *leases
	engines *engines
	beats   *heartbeats
	gpu     *gpuPuller // nil without Options.CUDA

	ctx       context.Context //nolint:containedctx // the life of the peer
	cancel    context.CancelCauseFunc
	work      sync.WaitGroup // goroutines and pulls
	mu        sync.Mutex
	closed    bool          // guarded by mu; no work is added any more
	agentGone chan struct{} // closed when the agent was closed
	done      chan struct{} // closed when memory is not touched any more
	closeOnce sync.Once
	closeErr  error
}

// New starts a peer: loads NIXL, registers the memory and opens the side
// channel. When it returns, other engines can shake hands with it.
func New(o Options) (_ *Peer, err error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Library == nil {
		if o.Library, err = nixl.Load(nixl.LoadOptions{}); err != nil {
			return nil, err
		}
	}
	p := &Peer{opts: o, geo: o.geometry(), mem: o.Memory[0].Mem, agentGone: make(chan struct{}), done: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.leases = newLeases(&p.opts, &p.stats)
	p.engines = newEngines(p)
	p.beats = newHeartbeats(p)
	if o.CUDA != nil {
		p.gpu = &gpuPuller{ctx: o.CUDA, blocks: o.PullBlocks}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	p.warnUCX()
	// The agent's name is new at each start: peers keep connections by name.
	if p.agent, err = nixl.NewAgent(o.Library, nixl.Config{Telemetry: true, Logger: o.Logger}); err != nil {
		return nil, err
	}
	ucx := o.UCX
	if p.mem == nixl.VRAM && len(ucx.CUDA) == 0 {
		ucx.CUDA = []int{int(o.Memory[0].Dev)}
	}
	if p.ucx, err = p.agent.Backend(ucx); err != nil {
		return nil, err
	}
	for _, m := range o.Memory {
		if _, err = p.ucx.Register(m); err != nil {
			return nil, err
		}
	}
	payload, err := p.payload()
	if err != nil {
		return nil, err
	}
	if p.channel = o.Channel; p.channel == nil {
		if p.channel, err = newSideChannel(o.Host, o.Port, o.Logger); err != nil {
			return nil, err
		}
		p.own = true
	}
	switch p.Host() {
	case "0.0.0.0", "::", "*":
		o.Logger.Warn("consumers are told a host that they cannot connect to: set Advertise, or listen at one address", "host", p.Host())
	}
	p.channel.publish(o.TPRank, payload)
	notifs := p.agent.Notifications()
	p.work.Go(func() { p.leases.run(p.ctx, notifs) })
	p.work.Go(func() { p.beats.run(p.ctx) })
	return p, nil
}

// warnUCX tells of a UCX_TLS that GPU memory cannot use.
func (p *Peer) warnUCX() {
	tls := os.Getenv("UCX_TLS")
	if p.mem == nixl.VRAM && tls != "" && !strings.Contains(tls, "cuda") && !strings.Contains(tls, "all") && !strings.HasPrefix(tls, "^") {
		p.opts.Logger.Warn("UCX_TLS names no CUDA transport: GPU memory cannot be moved, or only a thousandth as fast; unset it or add cuda", "ucx_tls", tls)
	}
}

// payload is what the side channel answers for this rank.
func (p *Peer) payload() ([]byte, error) {
	raw, err := p.agent.MetadataRaw()
	if err != nil {
		return nil, err
	}
	o := &p.opts
	m := AgentMetadata{
		EngineID: o.EngineID, AgentMetadata: raw, DeviceID: int(o.Memory[0].Dev), NumBlocks: o.Regions[0].Blocks, Layout: o.Layout,
		BlockTokens: o.BlockTokens, AttnBackend: o.Model.AttnBackend, BlocksPerLogical: o.BlocksPerLogical, DCPSize: 1, PCPSize: 1,
	}
	for _, r := range o.Regions {
		m.BaseAddrs = append(m.BaseAddrs, uint64(r.Addr))
		m.BlockLens = append(m.BlockLens, r.BlockBytes)
		m.BlockStrides = append(m.BlockStrides, r.Stride)
		m.RegionBlocks = append(m.RegionBlocks, r.Blocks)
		m.RegionGroups = append(m.RegionGroups, r.Group)
		m.RegionNames = append(m.RegionNames, r.Name)
		m.RegionMemTypes = append(m.RegionMemTypes, p.mem.String())
	}
	h := Handshake{Compatibility: o.Compatibility, Metadata: m.Append(nil)}
	if !o.NoDirect {
		h.Direct = o.directOffer()
	}
	return h.Append(nil), nil
}

// EngineID is the engine's name.
func (p *Peer) EngineID() string { return p.opts.EngineID }

// Host is the host of the side channel, as peers are told.
func (p *Peer) Host() string {
	if p.opts.Advertise != "" {
		return p.opts.Advertise
	}
	return p.channel.Host()
}

// Port is the port of the side channel.
func (p *Peer) Port() int { return p.channel.Port() }

// Offer keeps a finished request's blocks for another engine until it has read
// them or the lease ends; Options.Released is then called. The params go into
// the response. Errors: [ErrOffered], [ErrParams] for blocks that do not exist,
// [ErrClosed].
func (p *Peer) Offer(o Offer) (*Params, error) {
	if o.RequestID == "" || strings.ContainsRune(o.RequestID, ',') {
		return nil, fmt.Errorf("%w: request id %q is empty or holds a comma", ErrParams, shorten(o.RequestID))
	}
	n := 0
	for group, ids := range o.Blocks {
		for _, id := range ids {
			if id < 0 || id >= p.logicalBlocks(group) {
				return nil, fmt.Errorf("%w: block %d of group %d, which has %d", ErrParams, id, group, p.logicalBlocks(group))
			}
		}
		n += len(ids)
	}
	if n == 0 || len(o.Blocks) != p.opts.groups() {
		return nil, fmt.Errorf("%w: %d blocks in %d groups, of %d", ErrParams, n, len(o.Blocks), p.opts.groups())
	}
	if o.Lease <= 0 {
		o.Lease = p.opts.Lease
	}
	if err := p.leases.add(o.RequestID, o.Lease); err != nil {
		return nil, err
	}
	return &Params{
		DoRemotePrefill: true, RemoteBlockIDs: o.Blocks, RemoteEngineID: p.opts.EngineID, RemoteRequestID: o.RequestID,
		RemoteHost: p.Host(), RemotePort: p.Port(), TPSize: p.opts.TPSize, DCPSize: 1, PPSize: 1, RemoteTokens: o.Tokens,
		RemoteGeneration: p.channel.registrations(), TransferMode: modePull, RemoteCachedTokens: &o.CachedTokens, HasTPSize: true,
	}, nil
}

// logicalBlocks is how many blocks of the scheduler a group has.
func (p *Peer) logicalBlocks(group int) int64 {
	for _, r := range p.opts.Regions {
		if r.Group == group {
			return int64(r.Blocks / p.opts.BlocksPerLogical)
		}
	}
	return 0
}

// Withdraw ends an offer early, when it is known that nobody will read it. It
// says whether there was one. A reader that is reading at this moment is not
// stopped: only withdraw what no response has told of.
func (p *Peer) Withdraw(requestID string) bool { return p.leases.end(requestID, ReleaseWithdrawn) }

// Offered is how many requests are offered now.
func (p *Peer) Offered() int { return p.leases.count() }

// TakeStats returns what has happened since it was called last.
func (p *Peer) TakeStats() Stats { return p.stats.take() }

// begin counts a piece of work that Close waits for.
func (p *Peer) begin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	p.work.Add(1)
	return nil
}

// spawn runs f in a goroutine that Close waits for; false when Close has begun.
func (p *Peer) spawn(f func()) bool {
	if p.begin() != nil {
		return false
	}
	go func() {
		defer p.work.Done()
		f()
	}()
	return true
}

// Close ends the peer: waits for pulls end with [ErrClosed], offers are released
// with ReleaseClosed, and the memory is deregistered. It waits, for up to 30 s,
// for transfers that run; when one does not end, the error matches nixl.ErrBusy
// and the memory must stay until Done is closed.
func (p *Peer) Close() error {
	p.closeOnce.Do(p.close)
	return p.closeErr
}

func (p *Peer) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel(ErrClosed)
	if p.channel != nil {
		p.channel.publish(p.opts.TPRank, nil)
		if p.own {
			p.closeErr = p.channel.Close()
		}
	}
	p.engines.close()
	var busy error
	if p.agent != nil {
		busy = p.agent.Close()
	}
	close(p.agentGone)
	p.work.Wait()
	p.gpu.close()
	p.engines.forgetAll()
	p.leases.close()
	if busy == nil || !errors.Is(busy, nixl.ErrBusy) {
		close(p.done)
	}
	p.closeErr = errors.Join(p.closeErr, busy)
}

// Done is closed when the library does not touch the memory any more.
func (p *Peer) Done() <-chan struct{} { return p.done }
