package nixl

import (
	"fmt"

	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// View is memory prepared for transfers that a GPU starts: a handle that code
// on the device takes. Making one needs a UCX with GPU support.
type View struct {
	agent   *Agent
	backend *Backend
	h       uintptr
	uses    []*Registration
	remotes []*Remote
	closed  bool // guarded by agent.mu
}

// Handle is what device code takes (nixlMemViewH).
func (v *View) Handle() uintptr { return v.h }

// LocalView prepares registered memory of this agent.
func (b *Backend) LocalView(d Descs) (*View, error) {
	return b.newView(d, nil)
}

// RemoteView prepares memory of peers: descriptor i is peers[i]'s. A nil peer
// is an empty place.
func (b *Backend) RemoteView(d Descs, peers []*Remote) (*View, error) {
	if len(peers) != len(d.List) {
		return nil, b.viewFail(d)(ErrMismatch, fmt.Sprintf("%d descriptors, %d peers", len(d.List), len(peers)))
	}
	return b.newView(d, peers)
}

func (b *Backend) viewFail(d Descs) func(error, string) *Error {
	return func(cause error, detail string) *Error {
		e := b.fail("prepare view", d.Mem)
		e.Cause, e.Detail = cause, detail
		return e
	}
}

func (b *Backend) newView(d Descs, peers []*Remote) (*View, error) {
	fail := b.viewFail(d)
	switch {
	case !b.agent.lib.c.Views:
		return nil, fail(ErrNotSupported, "the library has no memory views")
	case len(d.List) == 0:
		return nil, fail(ErrInvalidParam, "no descriptors")
	}
	if err := b.agent.enter("prepare view"); err != nil {
		return nil, err
	}
	v := &View{agent: b.agent, backend: b}
	err := v.make(d, peers, fail)
	b.agent.leave()
	if err != nil {
		v.unbook()
		return nil, err
	}
	return v, nil
}

func (v *View) make(d Descs, peers []*Remote, fail func(error, string) *Error) (err error) {
	a, b := v.agent, v.backend
	var cerr *capi.CallError
	if peers == nil {
		if v.uses, _, err = a.claim(b, nil, d, fail); err != nil {
			return err
		}
		v.h, cerr = a.lib.c.LocalView(a.h, b.h, int(d.Mem), toC(d.List))
	} else {
		names, err := v.claimPeers(peers)
		if err != nil {
			return fail(err, "")
		}
		v.h, cerr = a.lib.c.RemoteView(a.h, b.h, int(d.Mem), toC(d.List), names)
	}
	if cerr != nil {
		return fail(nil, "").from(cerr)
	}
	a.mu.Lock()
	a.views[v] = struct{}{}
	a.mu.Unlock()
	return nil
}

func (v *View) claimPeers(peers []*Remote) ([]string, error) {
	names := make([]string, len(peers))
	v.agent.mu.Lock()
	defer v.agent.mu.Unlock()
	for i, r := range peers {
		if r == nil {
			continue
		}
		if err := r.err(); err != nil {
			return nil, err
		}
		names[i] = r.name
		if !r.self {
			r.users++
			v.remotes = append(v.remotes, r)
		}
	}
	return names, nil
}

func (v *View) unbook() {
	a := v.agent
	a.mu.Lock()
	for _, r := range v.remotes {
		r.users--
	}
	a.mu.Unlock()
	a.unclaim(v.uses, nil)
	for _, r := range v.remotes {
		r.tryForget()
	}
}

// Close frees the view. No kernel may use it any more. A second Close does
// nothing.
func (v *View) Close() error {
	a := v.agent
	a.life.RLock()
	a.mu.Lock()
	if v.closed {
		a.mu.Unlock()
		a.life.RUnlock()
		return nil
	}
	v.closed = true
	delete(a.views, v)
	a.mu.Unlock()
	var failed error
	if a.h != 0 {
		if err := a.lib.c.ReleaseView(a.h, v.h); err != nil {
			failed = v.backend.viewFail(Descs{})(nil, "").from(err)
		}
	}
	a.life.RUnlock()
	v.unbook()
	return failed
}
