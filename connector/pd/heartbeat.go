package pd

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// heartbeats keep the leases of requests that wait here.
type heartbeats struct {
	p *Peer

	mu      sync.Mutex
	waiting map[string]*Params // guarded by mu; by local request id
}

func newHeartbeats(p *Peer) *heartbeats {
	return &heartbeats{p: p, waiting: map[string]*Params{}}
}

// Track keeps the producer's lease alive from now on, by heartbeats, until Pull
// or Untrack is called for the request; it also begins the handshake. Call it
// when a request arrives, before it has blocks. It does nothing for params that
// name no producer.
func (p *Peer) Track(requestID string, params *Params) {
	if params == nil || !params.DoRemotePrefill || params.Check() != nil {
		return
	}
	q := *params
	h := p.beats
	h.mu.Lock()
	h.waiting[requestID] = &q
	h.mu.Unlock()
	p.engines.release(p.engines.get(&q))
}

// Untrack ends the heartbeats of a request that will not be pulled. To let the
// producer free its blocks at once, pull it with no blocks instead.
func (p *Peer) Untrack(requestID string) {
	p.beats.mu.Lock()
	defer p.beats.mu.Unlock()
	delete(p.beats.waiting, requestID)
}

// Tracked is how many requests are kept alive.
func (p *Peer) Tracked() int {
	p.beats.mu.Lock()
	defer p.beats.mu.Unlock()
	return len(p.beats.waiting)
}

func (h *heartbeats) run(ctx context.Context) {
	ticker := time.NewTicker(h.p.opts.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			h.beat()
		case <-ctx.Done():
			return
		}
	}
}

// beat sends one message to every rank of every producer that requests wait
// for. It never waits: a producer that has not answered yet is asked, and gets
// the next one.
func (h *heartbeats) beat() {
	type group struct {
		q   *Params
		ids []string
	}
	byEngine := map[string]*group{}
	h.mu.Lock()
	for _, q := range h.waiting {
		g := byEngine[q.RemoteEngineID]
		if g == nil {
			g = &group{q: q}
			byEngine[q.RemoteEngineID] = g
		}
		g.ids = append(g.ids, q.RemoteRequestID)
	}
	h.mu.Unlock()
	for _, g := range byEngine {
		e := h.p.engines.get(g.q)
		select {
		case <-e.ready:
			if e.err != nil {
				break
			}
			slices.Sort(g.ids)
			h.send(e, []byte(heartbeatPrefix+strings.Join(slices.Compact(g.ids), ",")))
		default:
		}
		h.p.engines.release(e)
	}
}

func (h *heartbeats) send(e *engine, msg []byte) {
	for n, r := range e.ranks {
		if err := r.remote.Notify(msg); err != nil {
			h.p.opts.Logger.Debug("a heartbeat was not sent", "engine", e.id, "rank", n, "err", err)
		}
	}
}
