package nixl

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// Remote is a peer whose metadata the agent has loaded: one life of it, from
// the load until it is closed, lost, or replaced by its next start.
type Remote struct {
	agent *Agent
	name  string
	self  bool

	// conn is a digest of the peer's connection data: another one under the
	// same name is another start of the peer. "" when unknown.
	conn    string
	regions atomic.Pointer[[]MetadataRegion] // nil: unknown, the library loaded it by itself
	ranges  atomic.Pointer[map[sectionKey][]capi.Range]

	lost chan struct{} // closed when the peer is gone
	done chan struct{} // closed when the library has forgotten it

	cause     atomic.Pointer[Error] // why it is gone
	users     int                   // lists and transfers; guarded by agent.mu
	forgotten bool                  // guarded by agent.mu
}

// sectionKey is a backend's name and a memory type, as in metadata.
type sectionKey struct {
	backend string
	mem     MemType
}

func newRemote(a *Agent, name string) *Remote {
	return &Remote{agent: a, name: name, lost: make(chan struct{}), done: make(chan struct{})}
}

// Loopback is the agent itself as a peer: for transfers within it, and for
// storage plugins, whose files and objects are the "remote" side. Closing it
// does nothing.
func (a *Agent) Loopback() *Remote {
	r := newRemote(a, a.cfg.Name)
	r.self = true
	return r
}

// Name is the peer's name.
func (r *Remote) Name() string { return r.name }

// Agent is the agent that knows the peer.
func (r *Remote) Agent() *Agent { return r.agent }

// Lost is closed when the peer is gone: closed here, disconnected, or started
// again. Transfers to it then fail, and Err says why. To go on, load the
// metadata of its next start.
func (r *Remote) Lost() <-chan struct{} { return r.lost }

// Done is closed when the library has forgotten the peer. That waits for the
// end of the transfers that were running.
func (r *Remote) Done() <-chan struct{} { return r.done }

// Err is nil while the peer is there, and an error that matches
// [ErrRemoteGone] and the reason afterwards.
func (r *Remote) Err() error { return r.err() }

func (r *Remote) err() error {
	if e := r.cause.Load(); e != nil {
		return e
	}
	return nil
}

// fail starts an error about the peer.
func (r *Remote) fail(op string) *Error {
	e := r.agent.fail(op)
	e.Remote = r.name
	return e
}

// Connect connects now instead of with the first transfer or notification.
// With a nil backend all that the two agents share connect.
func (r *Remote) Connect(b *Backend) error {
	if err := r.enter("connect"); err != nil {
		return err
	}
	defer r.agent.leave()
	if err := r.agent.lib.c.Connect(r.agent.h, r.name, handleOf(b)); err != nil {
		return r.fail("connect").from(err)
	}
	return nil
}

func handleOf(b *Backend) uintptr {
	if b == nil {
		return 0
	}
	return b.h
}

// enter is Agent.enter for a peer that must be there.
func (r *Remote) enter(op string) error {
	if err := r.err(); err != nil {
		e := r.fail(op)
		e.Cause = err
		return e
	}
	return r.agent.enter(op)
}

// Covers tells whether the peer's metadata covers all descriptors.
func (r *Remote) Covers(d Descs) bool {
	if r.enter("check") != nil {
		return false
	}
	defer r.agent.leave()
	return r.agent.lib.c.CheckMD(r.agent.h, r.name, int(d.Mem), toC(d.List))
}

// Regions are the peer's registered regions, as its metadata told last. nil
// when the library loaded the metadata by itself.
func (r *Remote) Regions() []MetadataRegion {
	if p := r.regions.Load(); p != nil {
		return append([]MetadataRegion(nil), *p...)
	}
	return nil
}

// uncovered is an error about the first descriptor outside the peer's regions,
// as far as its metadata told them; nil when there is none, or for this agent.
func (r *Remote) uncovered(b *Backend, d Descs, fail func(error, string) *Error) *Error {
	if r == nil || r.self || r.ranges.Load() == nil {
		return nil
	}
	at, ranges := 0, r.rangesOf(b, d.Mem)
	if len(ranges) > 0 {
		at, _ = capi.Cover(toC(d.List), ranges, make([]uint8, len(ranges)))
	}
	if at == len(d.List) {
		return nil
	}
	x := d.List[at]
	e := fail(ErrNotRegistered, fmt.Sprintf("descriptor %d [%#x, %#x) device %d is in no one region of the peer", at, x.Addr, x.Addr+x.Len, x.Dev))
	return e.withRemedy("has the peer registered it since? then load its metadata again")
}

func (r *Remote) rangesOf(b *Backend, m MemType) []capi.Range {
	if r.self {
		r.agent.mu.Lock()
		defer r.agent.mu.Unlock()
		if set := r.agent.regions[regionKey{b, m}]; set != nil {
			return set.ranges
		}
		return nil
	}
	if p := r.ranges.Load(); p != nil {
		return (*p)[sectionKey{b.name, m}]
	}
	return nil
}

// nameOrLocal is the name that stands for a side in the library.
func (r *Remote) nameOrLocal() string {
	if r == nil {
		return ""
	}
	return r.name
}

// Close makes the agent forget the peer. Its idle transfers and lists end at
// once; waits for running ones end with [ErrRemoteGone], and their memory stays
// pinned until they have really ended. Then the library forgets the peer and
// Done is closed; until then Close returns an error that matches [ErrBusy].
func (r *Remote) Close() error {
	if r.self {
		return nil
	}
	cause := r.fail("use peer")
	cause.Cause, cause.Detail = ErrRemoteGone, "closed by this program"
	r.gone(cause)
	select {
	case <-r.done:
		return nil
	default:
		e := r.fail("close peer")
		e.Cause, e.Detail = ErrBusy, "transfers to it are still running"
		return e
	}
}

// gone ends the peer's life. Only the first cause counts.
func (r *Remote) gone(cause *Error) {
	if r.self || !r.cause.CompareAndSwap(nil, cause) {
		return
	}
	close(r.lost)
	a := r.agent
	a.mu.Lock()
	xfers := a.transfers(r)
	var lists []*DescList
	for l := range a.lists {
		if l.remote == r {
			l.closing = true
			lists = append(lists, l)
		}
	}
	a.mu.Unlock()
	for _, t := range xfers {
		t.abandon(cause)
	}
	for _, l := range lists {
		l.end()
	}
	r.tryForget()
}

// lose ends the life of a peer whose connection broke.
func (r *Remote) lose(err error) {
	if r == nil || r.self || r.err() != nil {
		return
	}
	r.agent.cfg.Logger.Warn("nixl peer lost", "agent", r.agent.cfg.Name, "peer", r.name, "err", err)
	cause := r.fail("use peer")
	cause.Cause = fmt.Errorf("%w: %w", ErrRemoteGone, err)
	cause.Remedy = "load the metadata of its next start"
	r.gone(cause)
}

// tryForget makes the library forget a peer that is gone and has no users. The
// caller must not hold agent.life.
func (r *Remote) tryForget() {
	a := r.agent
	if r.self || r.err() == nil {
		return
	}
	a.life.RLock()
	defer a.life.RUnlock()
	a.mu.Lock()
	if r.users > 0 || r.forgotten {
		a.mu.Unlock()
		return
	}
	r.forgotten = true
	a.mu.Unlock()
	if a.h != 0 {
		if err := a.lib.c.Invalidate(a.h, r.name); err != nil && Status(err.Status) != StatusNotFound {
			a.cfg.Logger.Warn("nixl peer cannot be forgotten", "agent", a.cfg.Name, "peer", r.name, "err", r.fail("forget").from(err))
		}
	}
	a.mu.Lock()
	if a.remotes[r.name] == r {
		delete(a.remotes, r.name)
	}
	a.mu.Unlock()
	close(r.done)
}

// waitDone waits until the library has forgotten the peer.
func (r *Remote) waitDone(ctx context.Context) error {
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		e := r.fail("load metadata")
		e.Cause = fmt.Errorf("%w: %w", ErrBusy, context.Cause(ctx))
		e.Detail = "transfers to the peer's former life have not ended"
		return e
	case <-r.agent.closing:
		e := r.fail("load metadata")
		e.Cause = ErrClosed
		return e
	}
}
