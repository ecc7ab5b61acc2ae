package nixl

import (
	"fmt"

	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// DescList is a list of descriptors that the library has looked up and holds
// ready: transfers name its entries by index. Prepare once per peer, then make
// a transfer for each request. It rests on the registrations it lies in, or on
// the peer.
type DescList struct {
	agent   *Agent
	backend *Backend
	remote  *Remote // nil: the local side
	mem     MemType
	n       int
	h       uintptr
	uses    []*Registration // of the local side, and of both for the agent itself

	users   int  // transfers; guarded by agent.mu
	closing bool // guarded by agent.mu
	ended   bool // guarded by agent.mu
}

// PrepLocal prepares descriptors of this agent's memory, each within one
// region registered with the backend.
func (b *Backend) PrepLocal(d Descs) (*DescList, error) {
	return b.prep(nil, d)
}

// PrepLocalBlocks prepares the blocks of rows, row by row.
func (b *Backend) PrepLocalBlocks(m MemType, rows ...Blocks) (*DescList, error) {
	list, err := b.expand(m, rows)
	if err != nil {
		return nil, err
	}
	return b.prep(nil, Descs{m, list})
}

// Prep prepares descriptors of the peer's memory.
func (r *Remote) Prep(b *Backend, d Descs) (*DescList, error) {
	return b.prep(r, d)
}

// PrepBlocks prepares the blocks of rows of the peer's memory, row by row.
func (r *Remote) PrepBlocks(b *Backend, m MemType, rows ...Blocks) (*DescList, error) {
	list, err := b.expand(m, rows)
	if err != nil {
		return nil, err
	}
	return b.prep(r, Descs{m, list})
}

// maxList bounds a list: indices are 32 bits wide.
const maxList = 1 << 31

func (b *Backend) expand(m MemType, rows []Blocks) ([]Desc, error) {
	var n uint64
	for _, row := range rows {
		if row.Count >= maxList || n+row.Count >= maxList {
			e := b.fail("prepare list", m)
			e.Cause, e.Detail = ErrInvalidParam, "more than 2^31-1 blocks"
			return nil, e
		}
		n += row.Count
	}
	list := make([]Desc, n)
	capi.Expand(blocksToC(rows), toC(list))
	return list, nil
}

func (b *Backend) prep(r *Remote, d Descs) (*DescList, error) {
	a := b.agent
	fail := func(cause error, detail string) *Error {
		e := b.fail("prepare list", d.Mem)
		e.Cause, e.Detail = cause, detail
		if r != nil {
			e.Remote = r.name
		}
		return e
	}
	if len(d.List) == 0 || len(d.List) >= maxList {
		return nil, fail(ErrInvalidParam, fmt.Sprintf("%d descriptors", len(d.List)))
	}
	if r != nil && r.agent != a {
		return nil, fail(ErrMismatch, "the peer is known to another agent than the backend's")
	}
	if err := a.enter("prepare list"); err != nil {
		return nil, err
	}
	l := &DescList{agent: a, backend: b, remote: r, mem: d.Mem, n: len(d.List)}
	err := l.prepare(d, fail)
	a.leave()
	if err != nil {
		l.end()
		return nil, err
	}
	return l, nil
}

func (l *DescList) prepare(d Descs, fail func(error, string) *Error) error {
	a, b := l.agent, l.backend
	var err error
	if e := l.remote.uncovered(b, d, fail); e != nil {
		return e
	}
	if l.uses, _, err = a.claim(b, l.remote, d, fail); err != nil {
		return err
	}
	a.mu.Lock()
	a.lists[l] = struct{}{}
	if l.remote != nil {
		err = l.remote.err() // as in Transfer.fromDescs
	}
	a.mu.Unlock()
	if err != nil {
		return fail(err, "")
	}
	h, cerr := a.lib.c.Prep(a.h, l.remote.nameOrLocal(), b.h, int(d.Mem), toC(d.List))
	if cerr != nil {
		return fail(nil, "").from(cerr)
	}
	a.mu.Lock()
	ended := l.ended // the peer may have gone meanwhile
	if !ended {
		l.h = h
	}
	a.mu.Unlock()
	if ended {
		a.lib.c.ReleasePrep(a.h, h)
		return fail(ErrRemoteGone, "")
	}
	return nil
}

// claim checks that descriptors lie in registered memory of this agent, when
// they are of this agent (peer nil or the agent itself), and counts their user
// on the registrations and the peer. It fails without having counted anything.
// The bytes are those of memory of this agent.
func (a *Agent) claim(b *Backend, r *Remote, d Descs, fail func(error, string) *Error) (uses []*Registration, bytes uint64, err error) {
	if r == nil || r.self {
		if uses, bytes, err = a.cover(b, d, fail); err != nil {
			return nil, 0, err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range uses {
		if g.closing {
			return nil, 0, fail(ErrClosed, "a registration that it needs was closed")
		}
	}
	if r != nil && !r.self {
		if err := r.err(); err != nil {
			return nil, 0, fail(err, "")
		}
		r.users++
	}
	for _, g := range uses {
		g.users++
	}
	return uses, bytes, nil
}

// cover finds the registrations that descriptors of this agent lie in.
func (a *Agent) cover(b *Backend, d Descs, fail func(error, string) *Error) (uses []*Registration, bytes uint64, err error) {
	a.mu.Lock()
	set := a.regions[regionKey{b, d.Mem}]
	a.mu.Unlock()
	if set == nil || len(set.ranges) == 0 {
		return nil, 0, fail(ErrNotRegistered, fmt.Sprintf("no %s is registered with backend %s", d.Mem, b.name))
	}
	var few [64]uint8
	used := few[:]
	if len(set.ranges) > len(few) {
		used = make([]uint8, len(set.ranges))
	}
	n, bytes := capi.Cover(toC(d.List), set.ranges, used)
	if n < len(d.List) {
		x := d.List[n]
		return nil, 0, fail(ErrNotRegistered, fmt.Sprintf("descriptor %d [%#x, %#x) device %d is in no one registered region of backend %s", n, x.Addr, x.Addr+x.Len, x.Dev, b.name))
	}
	for i, owner := range set.owners {
		if used[i] != 0 && (len(uses) == 0 || !containsReg(uses, owner)) {
			uses = append(uses, owner)
		}
	}
	return uses, bytes, nil
}

func containsReg(list []*Registration, r *Registration) bool {
	for _, x := range list {
		if x == r {
			return true
		}
	}
	return false
}

// unclaim takes back what claim counted; whatever ends with its last user ends
// now. The caller must not hold agent.life.
func (a *Agent) unclaim(uses []*Registration, r *Remote) {
	a.mu.Lock()
	for _, g := range uses {
		g.users--
	}
	if r != nil && !r.self {
		r.users--
	}
	a.mu.Unlock()
	for _, g := range uses {
		_ = g.tryEnd() // its owner has been told to watch Done
	}
	if r != nil {
		r.tryForget()
	}
}

// Len is the number of descriptors.
func (l *DescList) Len() int { return l.n }

// Mem is the kind of memory.
func (l *DescList) Mem() MemType { return l.mem }

// Close frees the list. While transfers made from it are open Close returns an
// error that matches [ErrBusy], and the list is freed with the last of them.
func (l *DescList) Close() error {
	l.agent.mu.Lock()
	users := l.users
	l.closing = true
	ended := l.ended
	l.agent.mu.Unlock()
	if ended {
		return nil
	}
	if users > 0 {
		e := l.backend.fail("close list", l.mem)
		e.Cause, e.Detail = ErrBusy, fmt.Sprintf("%d transfers use it", users)
		return e
	}
	l.end()
	return nil
}

// end frees the list, unless it has users or was freed.
func (l *DescList) end() {
	a := l.agent
	a.life.RLock()
	a.mu.Lock()
	if l.ended || l.users > 0 {
		a.mu.Unlock()
		a.life.RUnlock()
		return
	}
	l.ended = true
	_, listed := a.lists[l]
	delete(a.lists, l)
	h := l.h
	a.mu.Unlock()
	if h != 0 && a.h != 0 {
		a.lib.c.ReleasePrep(a.h, h)
	}
	a.life.RUnlock()
	if listed {
		a.unclaim(l.uses, l.remote)
	}
}
