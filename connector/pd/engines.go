package pd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// engines are the producers that this peer has shaken hands with.
type engines struct {
	p *Peer

	mu   sync.Mutex
	byID map[string]*engine // guarded by mu
	byAt map[string]*engine // guarded by mu; by the address of the side channel
	left []*engine          // guarded by mu; to be forgotten at the end of Close

	// loading is held while the agent loads or forgets a peer, and guards refs:
	// two entries may share one remote, when an engine has registered again.
	loading sync.Mutex
	refs    map[*nixl.Remote]int
}

// engine is one handshake with one producer.
type engine struct {
	id, at     string
	host       string
	port, tp   int
	generation int
	ready      chan struct{} // closed when the handshake has ended
	// Set before ready is closed:
	err     error
	sources []source
	readers int
	ranks   map[int]*farRank
	offset  float64 // its clock minus ours, in seconds

	users   int       // guarded by engines.mu
	retired bool      // guarded by engines.mu: no new users
	used    time.Time // guarded by engines.mu
}

// farRank is one rank of a producer.
type farRank struct {
	remote *nixl.Remote
	meta   *AgentMetadata
	mem    nixl.MemType
	direct *directSource // nil without a way around NIXL
}

func newEngines(p *Peer) *engines {
	return &engines{p: p, byID: map[string]*engine{}, byAt: map[string]*engine{}, refs: map[*nixl.Remote]int{}}
}

// acquire returns the producer of params, counted as used, as soon as it has
// answered; the caller calls release.
func (s *engines) acquire(ctx context.Context, q *Params) (*engine, error) {
	e := s.get(q)
	select {
	case <-e.ready:
	case <-ctx.Done():
		s.release(e)
		return nil, fmt.Errorf("%w: %w", ErrHandshake, context.Cause(ctx))
	}
	if e.err != nil {
		s.release(e)
		return nil, e.err
	}
	return e, nil
}

// get returns the entry of a producer; its handshake may still be under way.
func (s *engines) get(q *Params) *engine {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	e := s.byID[q.RemoteEngineID]
	if e != nil && (e.generation < q.RemoteGeneration || e.lost()) {
		s.retire(e)
		e = nil
	}
	if e == nil {
		e = &engine{
			id: q.RemoteEngineID, at: net.JoinHostPort(q.RemoteHost, strconv.Itoa(q.RemotePort)), host: q.RemoteHost, port: q.RemotePort, tp: q.TPSize,
			generation: q.RemoteGeneration, ready: make(chan struct{}),
		}
		s.byID[e.id] = e
		e.users++ // the handshake's
		if err := s.p.begin(); err != nil {
			e.err = err
			close(e.ready)
			e.users--
			delete(s.byID, e.id)
		} else {
			go s.handshake(e)
		}
	}
	e.users++
	e.used = time.Now()
	return e
}

// lost says whether a rank of a producer that was known has gone.
func (e *engine) lost() bool {
	select {
	case <-e.ready:
	default:
		return false
	}
	for _, r := range e.ranks {
		select {
		case <-r.remote.Lost():
			return true
		default:
		}
	}
	return false
}

// hold counts one more user of an entry that has one.
func (s *engines) hold(e *engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.users++
}

func (s *engines) release(e *engine) {
	s.mu.Lock()
	e.users--
	e.used = time.Now()
	last := e.retired && e.users == 0
	s.mu.Unlock()
	if last {
		s.forget(e)
	}
}

// retire gives an entry no new users. It needs mu, and forgets the producer in
// the background when it has no users left.
func (s *engines) retire(e *engine) {
	if e.retired {
		return
	}
	e.retired = true
	if s.byID[e.id] == e {
		delete(s.byID, e.id)
	}
	if s.byAt[e.at] == e {
		delete(s.byAt, e.at)
	}
	if e.users == 0 && !s.p.spawn(func() { s.forget(e) }) {
		s.left = append(s.left, e)
	}
}

// drop retires an entry after a failure.
func (s *engines) drop(e *engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retire(e)
}

// forget makes the agent forget the ranks of an entry without users.
func (s *engines) forget(e *engine) {
	s.loading.Lock()
	defer s.loading.Unlock()
	for _, r := range e.ranks {
		r.direct.close()
		if s.refs[r.remote]--; s.refs[r.remote] == 0 {
			delete(s.refs, r.remote)
			if err := r.remote.Close(); err != nil && !errors.Is(err, nixl.ErrBusy) {
				s.p.opts.Logger.Warn("a producer cannot be forgotten", "engine", e.id, "err", err)
			}
		}
	}
	e.ranks = nil
}

// sweep retires producers that were not used for long. It needs mu.
func (s *engines) sweep() {
	old := time.Now().Add(-s.p.opts.EngineTTL)
	for _, e := range s.byID {
		if e.users == 0 && e.used.Before(old) {
			s.retire(e)
		}
	}
}

// known is how many producers are known.
func (s *engines) known() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

// close retires all.
func (s *engines) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.byID {
		s.retire(e)
	}
}

// forgetAll forgets what close has left, when nothing runs any more.
func (s *engines) forgetAll() {
	s.mu.Lock()
	left := s.left
	s.left = nil
	s.mu.Unlock()
	for _, e := range left {
		s.forget(e)
	}
}

// handshake fills an entry in the background, whoever waits for it.
func (s *engines) handshake(e *engine) {
	defer s.p.work.Done()
	ctx, cancel := context.WithTimeout(s.p.ctx, s.p.opts.HandshakeTimeout)
	defer cancel()
	err := s.shake(ctx, e)
	s.mu.Lock()
	var replaced *engine
	if err != nil {
		e.err = err
		s.retire(e)
	} else {
		if replaced = s.byAt[e.at]; replaced != nil && replaced != e {
			s.retire(replaced) // another engine listens there now
		}
		if !e.retired {
			s.byAt[e.at] = e
		}
	}
	close(e.ready)
	s.mu.Unlock()
	if err != nil {
		s.p.stats.add(func(st *Stats) { st.FailedHandshakes++ })
		s.p.opts.Logger.Warn("handshake failed", "engine", e.id, "at", e.at, "err", err)
	} else if replaced != nil {
		s.p.opts.Logger.Info("another engine listens at the address of a producer", "at", e.at, "was", replaced.id, "is", e.id)
	}
	s.release(e)
}

func (s *engines) shake(ctx context.Context, e *engine) error {
	geo := &s.p.geo
	list, readers, err := geo.sources(e.tp)
	if err != nil {
		return fmt.Errorf("%w: engine %s at %s: %w", ErrHandshake, e.id, e.at, err)
	}
	c, err := dialSide(ctx, e.host, e.port)
	if err != nil {
		return err
	}
	defer c.close()
	ranks := map[int]*farRank{}
	e.sources, e.readers, e.ranks = list, readers, ranks
	best := time.Duration(1<<63 - 1)
	for _, n := range geo.handshakeRanks(e.tp) {
		h, clock, err := c.ask(n)
		if err != nil {
			return err
		}
		if clock.rtt < best {
			best, e.offset = clock.rtt, clock.offset
		}
		r, err := s.load(ctx, e, h)
		if err != nil {
			return fmt.Errorf("%w: engine %s rank %d at %s: %w", ErrHandshake, e.id, n, e.at, err)
		}
		ranks[n] = r
	}
	return nil
}

// load checks what a rank says and lets the agent load it.
func (s *engines) load(ctx context.Context, e *engine, h *Handshake) (*farRank, error) {
	o := &s.p.opts
	if !o.AnyModel && h.Compatibility != o.Compatibility {
		return nil, fmt.Errorf("%w: compatibility hash: %s here (%s), %s there: give both the same model, dtypes, attention backend and version, or set enforce_handshake_compat false", ErrIncompatible, o.Compatibility, &o.Model, h.Compatibility)
	}
	m, err := ParseAgentMetadata(h.Metadata)
	if err != nil {
		return nil, err
	}
	if m.EngineID != e.id {
		return nil, fmt.Errorf("%w: asked for engine %s, found %s: the producer was started again, or its %s names another one", ErrWrongEngine, e.id, m.EngineID, EnvHost)
	}
	if err := s.p.geo.validate(m, e.tp); err != nil {
		return nil, err
	}
	r := &farRank{meta: m, mem: nixl.DRAM}
	if m.RegionMemTypes != nil {
		switch m.RegionMemTypes[0] {
		case nixl.DRAM.String():
		case nixl.VRAM.String():
			r.mem = nixl.VRAM
		default:
			return nil, fmt.Errorf("%w: memory type %q there", ErrIncompatible, m.RegionMemTypes[0])
		}
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	// Checks the structure first: a truncated blob would spoil the name.
	if r.remote, err = s.p.agent.AddRemoteRaw(ctx, m.AgentMetadata, ""); err != nil {
		return nil, err
	}
	s.refs[r.remote]++
	if !o.NoDirect {
		r.direct = s.p.openDirect(h.Direct, m)
	}
	return r, nil
}
