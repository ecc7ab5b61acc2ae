package nixl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// Metadata is what a peer must load to reach this agent: connection data of its
// backends and all registered regions, in a frame with the agent's name, length
// and checksum. Peers in Go load it with [Agent.AddRemote]. Take it again when
// more is registered.
func (a *Agent) Metadata() ([]byte, error) {
	blob, err := a.MetadataRaw()
	if err != nil {
		return nil, err
	}
	return frame(a.cfg.Name, blob), nil
}

// MetadataRaw is the metadata as NIXL makes it, for peers of other languages
// (vLLM, Dynamo). The channel must not cut it: a peer that loads part of it may
// never be able to load this agent again.
func (a *Agent) MetadataRaw() ([]byte, error) {
	if err := a.enter("get metadata"); err != nil {
		return nil, err
	}
	defer a.leave()
	blob, err := a.lib.c.LocalMD(a.h)
	if err != nil {
		e := a.fail("get metadata").from(err)
		if e.Is(ErrInvalidParam) {
			e.Detail, e.Remedy = "no backend of the agent can reach other agents", "create one, UCX for instance"
		}
		return nil, e
	}
	return blob, nil
}

// ConnectionMetadata is framed metadata of connections only, for a peer that
// gets regions later with PartialMetadata.
func (a *Agent) ConnectionMetadata() ([]byte, error) {
	return a.partial(nil)
}

// PartialMetadata is framed metadata of some registrations of one backend and
// memory type, without connection data: NIXL's C API cannot put both into one.
// A peer loads ConnectionMetadata or Metadata first.
func (a *Agent) PartialMetadata(regs ...*Registration) ([]byte, error) {
	if len(regs) == 0 {
		e := a.fail("get partial metadata")
		e.Cause, e.Detail = ErrInvalidParam, "no registration"
		return nil, e.withRemedy("ConnectionMetadata is the metadata without regions")
	}
	return a.partial(regs)
}

func (a *Agent) partial(regs []*Registration) ([]byte, error) {
	backend, mem, descs, metas, err := a.gather(regs)
	if err != nil {
		return nil, err
	}
	if err := a.enter("get partial metadata"); err != nil {
		return nil, err
	}
	defer a.leave()
	blob, cerr := a.lib.c.PartialMD(a.h, backend, int(mem), toC(descs), metas)
	if cerr != nil {
		return nil, a.fail("get partial metadata").from(cerr)
	}
	return frame(a.cfg.Name, blob), nil
}

// gather collects what registrations cover.
func (a *Agent) gather(regs []*Registration) (backend uintptr, mem MemType, descs []Desc, metas [][]byte, err error) {
	for _, r := range regs {
		if r.agent != a || r.mem != regs[0].mem || r.backend != regs[0].backend {
			e := a.fail("get partial metadata")
			e.Cause, e.Detail = ErrMismatch, "registrations of different agents, backends or memory types"
			return 0, 0, nil, nil, e
		}
		backend, mem = r.backend.h, r.mem
		descs = append(descs, r.descs...)
		if r.metas == nil {
			metas = append(metas, make([][]byte, len(r.descs))...)
		} else {
			metas = append(metas, r.metas...)
		}
	}
	return backend, mem, descs, metas, nil
}

// AddRemote loads a framed blob of a peer, whose name must be expect unless
// that is "". The frame is checked first: a damaged blob never reaches the
// library, where it would spoil the peer's name for good.
//
// Loading again while the peer is there adds regions that it has registered
// since, and returns the same Remote. When the peer was started again under its
// old name, or was lost, its former life is ended first: transfers fail with
// [ErrRemoteGone], and AddRemote waits, until ctx ends, for those that were
// running.
func (a *Agent) AddRemote(ctx context.Context, framed []byte, expect string) (*Remote, error) {
	name, blob, err := unframe(framed)
	if err != nil {
		e := a.fail("load metadata")
		e.Remote, e.Cause = expect, fmt.Errorf("%w: %w", ErrBadMetadata, err)
		return nil, e
	}
	return a.addRemote(ctx, blob, name, expect)
}

// AddRemoteRaw loads a blob as NIXL makes it, from a peer of another language.
// Its structure is checked before it is loaded, which finds truncation; the
// caller's channel must guard it against other damage.
func (a *Agent) AddRemoteRaw(ctx context.Context, blob []byte, expect string) (*Remote, error) {
	return a.addRemote(ctx, blob, "", expect)
}

func (a *Agent) addRemote(ctx context.Context, blob []byte, framed, expect string) (*Remote, error) {
	fail := func(cause error, detail string) *Error {
		e := a.fail("load metadata")
		e.Remote, e.Cause, e.Detail = expect, cause, detail
		return e
	}
	info, err := ParseMetadata(blob)
	switch {
	case err != nil:
		return nil, fail(err, "")
	case framed != "" && info.Agent != framed:
		return nil, fail(ErrBadMetadata, fmt.Sprintf("the frame is of %q, the blob of %q", framed, info.Agent))
	case expect != "" && info.Agent != expect:
		return nil, fail(ErrMismatch, fmt.Sprintf("the metadata is of %q", info.Agent)).withRemedy("was another peer reached? check its address")
	case info.Agent == a.cfg.Name:
		return nil, fail(ErrInvalidParam, "it is this agent's own metadata").withRemedy("for transfers within an agent use Loopback")
	}
	expect = info.Agent
	if err := a.lockMetadata(ctx, fail); err != nil {
		return nil, err
	}
	defer func() { <-a.metadata }()
	a.mu.Lock()
	old := a.remotes[info.Agent]
	_, poisoned := a.poisoned[info.Agent]
	a.mu.Unlock()
	if poisoned {
		return nil, fail(ErrPoisoned, "").withRemedy("start the peer under a new name; names are best new at each start")
	}
	if old != nil && old.err() == nil && (info.conn == "" || old.conn == "" || info.conn == old.conn) {
		err := a.loadBlob(blob)
		switch {
		case err == nil:
			if info.conn != "" {
				old.conn = info.conn // only read and written by who holds a.metadata
			}
			old.learn(info, info.conn != "")
			return old, nil
		case a.isClosing():
			return nil, fail(ErrClosed, "the agent was closed")
		case Status(err.Status) != StatusBackend:
			return nil, fail(nil, "").from(err)
		}
		// Not allowed beside what is known, keys that changed for instance.
	}
	if info.conn == "" && (old == nil || old.err() != nil) {
		return nil, fail(ErrNotFound, "partial metadata of a peer that is not known").withRemedy("load its ConnectionMetadata or Metadata first")
	}
	if old != nil {
		old.gone(old.replaced())
		if err := old.waitDone(ctx); err != nil {
			return nil, err
		}
	}
	r := newRemote(a, info.Agent)
	r.conn = info.conn
	r.learn(info, true)
	// Between the load and the entry in the books nobody else may take the
	// library's knowledge of the name for a peer of its own: see Remote.
	a.mu.Lock()
	a.loading = info.Agent
	a.mu.Unlock()
	err = a.loadFresh(blob, info.Agent, fail)
	a.mu.Lock()
	a.loading = ""
	if err == nil {
		a.remotes[info.Agent] = r
	}
	a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Remote) replaced() *Error {
	e := r.fail("use peer")
	e.Cause, e.Detail = ErrRemoteGone, "the peer was started again"
	return e
}

func (a *Agent) lockMetadata(ctx context.Context, fail func(error, string) *Error) error {
	select {
	case a.metadata <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fail(ctx.Err(), "other metadata is being loaded")
	case <-a.closing:
		return fail(ErrClosed, "the agent was closed")
	}
}

func (a *Agent) loadBlob(blob []byte) *capi.CallError {
	if a.enter("load metadata") != nil {
		return &capi.CallError{Status: capi.InvalidState, Text: "the agent was closed"}
	}
	defer a.leave()
	_, err := a.lib.c.LoadMD(a.h, blob)
	return err
}

// loadFresh loads a peer that is not known to this package. It may be known to
// the library, which loads by itself what its listener receives.
func (a *Agent) loadFresh(blob []byte, name string, fail func(error, string) *Error) error {
	err := a.loadBlob(blob)
	if err != nil && Status(err.Status) == StatusBackend && a.forget(name) {
		err = a.loadBlob(blob)
	}
	if err == nil {
		return nil
	}
	if a.isClosing() {
		return fail(ErrClosed, "the agent was closed")
	}
	a.mu.Lock()
	a.poisoned[name] = struct{}{}
	a.mu.Unlock()
	e := fail(nil, "").from(err)
	return e.withRemedy("do both sides run the same NIXL and UCX, with a backend in common? the peer needs a new name before it is tried again")
}

// forget makes the library forget a name; it reports whether it knew it.
func (a *Agent) forget(name string) bool {
	if a.enter("forget") != nil {
		return false
	}
	defer a.leave()
	return a.lib.c.Invalidate(a.h, name) == nil
}

// learn takes over the regions of a blob: all of them, or more of them.
func (r *Remote) learn(info *MetadataInfo, all bool) {
	var regions []MetadataRegion
	if !all {
		regions = r.Regions()
	}
	for _, g := range info.Regions {
		if !slices.Contains(regions, g) {
			regions = append(regions, g)
		}
	}
	ranges := map[sectionKey][]capi.Range{}
	for _, g := range regions {
		k := sectionKey{g.Backend, g.Mem}
		ranges[k] = append(ranges[k], capi.Range{Dev: g.Dev, Start: uint64(g.Addr), End: uint64(g.Addr + g.Len)})
	}
	for _, list := range ranges {
		slices.SortFunc(list, func(x, y capi.Range) int {
			switch {
			case x.Dev != y.Dev:
				return cmp(x.Dev, y.Dev)
			default:
				return cmp(x.Start, y.Start)
			}
		})
	}
	r.regions.Store(&regions)
	r.ranges.Store(&ranges)
}

func cmp(x, y uint64) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	default:
		return 0
	}
}

// Remote returns a peer by name: one that was added, or one that pushed its
// metadata to this agent's listener. ok is false when it is not known.
func (a *Agent) Remote(name string) (r *Remote, ok bool) {
	a.mu.Lock()
	r = a.remotes[name]
	loading := a.loading == name
	a.mu.Unlock()
	if r != nil {
		return r, r.err() == nil
	}
	if loading || name == a.cfg.Name || a.enter("look for peer") != nil {
		return nil, false
	}
	known := a.lib.c.CheckMD(a.h, name, int(DRAM), nil)
	a.leave()
	if !known {
		return nil, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loading == name {
		return nil, false // AddRemote will have it
	}
	if r = a.remotes[name]; r == nil {
		r = newRemote(a, name)
		a.remotes[name] = r
	}
	return r, r.err() == nil
}

// route is where a metadata call goes: a listener's address, or with the zero
// address the metadata server.
func route(to netip.AddrPort) (string, uint16) {
	if !to.IsValid() {
		return "", 0
	}
	return to.Addr().Unmap().String(), to.Port()
}

// SendMetadata sends this agent's metadata to the listener of a peer, or, with
// the zero address, to the metadata server (etcd: NIXL_ETCD_ENDPOINTS; a torch
// TCPStore: NIXL_TCPSTORE_ENDPOINT) where the library has one. The library
// does it later, in a thread of its own, and does not say how it went.
func (a *Agent) SendMetadata(to netip.AddrPort) error {
	return a.exchange("send metadata", to, func(ip string, port uint16) *capi.CallError { return a.lib.c.SendMD(a.h, ip, port) })
}

// SendPartialMetadata sends part of the metadata to the listener of a peer; a
// metadata server cannot take parts, since NIXL's C API has no label for them.
func (a *Agent) SendPartialMetadata(to netip.AddrPort, regs ...*Registration) error {
	backend, mem, descs, metas, err := a.gather(regs)
	if err != nil {
		return err
	}
	if !to.IsValid() {
		e := a.fail("send partial metadata")
		e.Cause, e.Detail = ErrNotSupported, "to a metadata server"
		return e
	}
	return a.exchange("send partial metadata", to, func(ip string, port uint16) *capi.CallError {
		return a.lib.c.SendPartialMD(a.h, backend, int(mem), toC(descs), metas, ip, port)
	})
}

// WithdrawMetadata makes the peer whose listener is at an address, or with the
// zero address the metadata server, forget this agent.
func (a *Agent) WithdrawMetadata(to netip.AddrPort) error {
	return a.exchange("withdraw metadata", to, func(ip string, port uint16) *capi.CallError { return a.lib.c.WithdrawMD(a.h, ip, port) })
}

func (a *Agent) exchange(op string, to netip.AddrPort, call func(ip string, port uint16) *capi.CallError) error {
	if err := a.enter(op); err != nil {
		return err
	}
	defer a.leave()
	ip, port := route(to)
	if err := call(ip, port); err != nil {
		return a.exchangeFailed(op, to, err)
	}
	return nil
}

func (a *Agent) exchangeFailed(op string, to netip.AddrPort, err *capi.CallError) error {
	e := a.fail(op).from(err)
	if !to.IsValid() {
		e.addDetail("no metadata server")
		e.Remedy = "set NIXL_ETCD_ENDPOINTS before the agent is made, or give the address of a peer's listener"
	}
	return e
}

// fetchPoll is the pause between two looks for metadata that was asked for.
const fetchPoll = 5 * time.Millisecond

// FetchRemote asks the listener at an address, or with the zero address the
// metadata server, for the metadata of a peer, and waits until it is there or
// ctx ends. The regions of such a peer are not known here, so mistakes in
// descriptors show later and with less detail.
func (a *Agent) FetchRemote(ctx context.Context, name string, from netip.AddrPort) (*Remote, error) {
	if name == "" || hasNUL(name) {
		e := a.fail("fetch metadata")
		e.Cause, e.Detail = ErrInvalidParam, "the name of the peer"
		return nil, e
	}
	ask := func(ip string, port uint16) *capi.CallError { return a.lib.c.FetchMD(a.h, name, ip, port) }
	if err := a.exchange("fetch metadata", from, ask); err != nil {
		return nil, err
	}
	tick := time.NewTicker(fetchPoll)
	defer tick.Stop()
	for {
		if r, ok := a.Remote(name); ok {
			return r, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			e := a.fail("fetch metadata")
			e.Remote, e.Cause = name, ctx.Err()
			e.Detail = "the metadata did not arrive"
			e.Remedy = "is the name right, and does the peer listen there? NIXL_LOG_LEVEL=DEBUG shows what its thread meets"
			return nil, e
		}
	}
}

// freePort returns port if nobody listens on it, or a free one for 0.
func freePort(port uint16) (uint16, error) {
	l, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port)) //nolint:noctx // it is closed at once; NIXL's listener binds all addresses
	if err != nil {
		return 0, err
	}
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.New("no TCP address")
	}
	return uint16(addr.Port), nil
}
