package nixl

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// Op is the direction of a transfer, numbered as in NIXL (nixl_xfer_op_t).
type Op int

// Operations.
const (
	Read  Op = 0 // from the peer into local memory: a pull
	Write Op = 1 // from local memory to the peer: a push
)

// String is NIXL's name of the operation.
func (o Op) String() string {
	if o == Read {
		return "READ"
	}
	return "WRITE"
}

// XferOptions go with the making of a transfer. The zero value is fine.
type XferOptions struct {
	// Notif is sent to the peer when the data has arrived, each time the
	// transfer is posted. nil: none; empty and not nil: an empty message.
	Notif []byte
	// KeepOrder leaves the descriptors in the given order. Otherwise they are
	// sorted by local position first, so that more neighbours can be joined;
	// NIXL promises no order within a transfer either way.
	KeepOrder bool
	// KeepApart does not join neighbours. Otherwise descriptors that continue
	// each other on both sides become one.
	KeepApart bool
	// Custom is a parameter for the plugin (NIXL's customParam); it has an
	// effect only on transfers made from descriptors.
	Custom []byte
}

type xferState uint8

const (
	xferIdle     xferState = iota // made, not posted
	xferRunning                   // posted, or being posted
	xferEnded                     // ended; err is the result
	xferReleased                  // the library no longer has it
)

// Transfer is a request between this agent and one peer. It can be posted, and
// posted again once it has ended, which is the cheap way to repeat a transfer.
// All methods may be called from several goroutines.
type Transfer struct {
	// The hot path needs these and what mu guards, and nothing behind agent.
	hot  capi.Hot
	gate *gate // bounds posts that may block for long; nil for a small transfer
	cuda int   // device whose context posting needs, -1: none

	mu        sync.Mutex
	req       uintptr
	state     xferState
	posting   bool          // inside the library's post; status must not be asked
	err       *Error        // result of the last post, when ended
	abandoned *Error        // not nil: nobody waits any more, release it when it ends
	waiters   int           // goroutines in Wait
	wake      chan struct{} // holds one token for a waiter when the transfer ended
	settled   chan struct{} // closed when released
	watched   bool          // the reactor looks at it; guarded by the reactor's mutex

	agent  *Agent
	remote *Remote
	op     Op
	descs  int
	where  [2]string
	uses   []*Registration
	local  *DescList // nil when made from descriptors
	far    *DescList
}

// NewTransfer makes a transfer between entries of two prepared lists: entry
// li[i] of the local one and entry ri[i] of the peer's, which must have equal
// lengths.
func NewTransfer(op Op, local *DescList, li []int32, remote *DescList, ri []int32, o XferOptions) (*Transfer, error) {
	a, b := local.agent, local.backend
	fail := func(cause error, detail string) *Error {
		e := b.fail("make transfer", local.mem)
		e.Mem += "/" + remote.mem.String()
		e.Remote, e.Cause, e.Detail = remote.remote.nameOrLocal(), cause, detail
		return e
	}
	switch {
	case remote.remote == nil:
		return nil, fail(ErrInvalidParam, "the second list is a local one").withRemedy("prepare it with Remote.Prep")
	case local.remote != nil:
		return nil, fail(ErrInvalidParam, "the first list is a peer's").withRemedy("prepare it with Backend.PrepLocal")
	case remote.agent != a || remote.backend != b:
		return nil, fail(ErrMismatch, "the lists are of different agents or backends")
	case len(li) != len(ri) || len(li) == 0:
		return nil, fail(ErrMismatch, fmt.Sprintf("%d local and %d remote indices", len(li), len(ri)))
	}
	if i := capi.FirstOutside(li, local.n); i < len(li) {
		return nil, fail(ErrInvalidParam, fmt.Sprintf("local index %d is %d of %d", i, li[i], local.n))
	}
	if i := capi.FirstOutside(ri, remote.n); i < len(ri) {
		return nil, fail(ErrInvalidParam, fmt.Sprintf("remote index %d is %d of %d", i, ri[i], remote.n))
	}
	t := &Transfer{
		hot: a.hot, gate: a.lib.posts, agent: a, remote: remote.remote, op: op, descs: len(li), cuda: cudaOf(local, remote),
		where: [2]string{b.name, local.mem.String() + "/" + remote.mem.String()},
	}
	if err := a.enter("make transfer"); err != nil {
		return nil, err
	}
	t.mu.Lock() // whoever ends the peer meanwhile waits until the request is there
	err := t.fromLists(local, li, remote, ri, &o, fail)
	t.mu.Unlock()
	a.leave()
	if err != nil {
		t.drop()
		return nil, err
	}
	return t, nil
}

func (t *Transfer) fromLists(local *DescList, li []int32, remote *DescList, ri []int32, o *XferOptions, fail func(error, string) *Error) error {
	a := t.agent
	a.mu.Lock()
	if local.closing || remote.closing {
		a.mu.Unlock()
		if err := t.remote.err(); err != nil {
			return fail(err, "")
		}
		return fail(ErrClosed, "a list that it needs was closed")
	}
	local.users++
	remote.users++
	t.local, t.far = local, remote
	a.xfers[t] = struct{}{}
	a.mu.Unlock()
	options := o.toC(local.backend.h, t.cuda)
	req, err := a.lib.c.MakeXfer(a.h, int(t.op), local.h, li, remote.h, ri, &options)
	if err != nil {
		e := fail(nil, "").from(err)
		if e.Is(ErrInvalidParam) {
			e.Detail = "entries that belong together must have equal lengths"
		}
		return e
	}
	t.req = req
	return nil
}

func cudaOf(l, r *DescList) int {
	for _, x := range []*DescList{l, r} {
		if x.mem == VRAM && len(x.uses) > 0 {
			return int(x.uses[0].descs[0].Dev)
		}
	}
	return -1
}

func (o *XferOptions) toC(backend uintptr, cuda int) capi.XferOptions {
	return capi.XferOptions{
		Backend: backend, HasNotif: o.Notif != nil, Notif: o.Notif, Custom: o.Custom,
		SkipMerge: o.KeepApart, Sort: !o.KeepOrder && !o.KeepApart, CUDADevice: cuda,
	}
}

func (e *Error) withRemedy(text string) *Error {
	e.Remedy = text
	return e
}

// NewTransfer makes a transfer from two lists of descriptors of equal length
// whose entries have equal lengths: local memory, and memory of the peer. For
// lists that many transfers share, prepare them and use [NewTransfer].
func (r *Remote) NewTransfer(op Op, b *Backend, local, remote Descs, o XferOptions) (*Transfer, error) {
	a := r.agent
	mems := local.Mem.String() + "/" + remote.Mem.String()
	fail := func(cause error, detail string) *Error {
		e := b.fail("make transfer", local.Mem)
		e.Mem, e.Remote, e.Cause, e.Detail = mems, r.name, cause, detail
		return e
	}
	n := len(local.List)
	switch {
	case b.agent != a:
		return nil, fail(ErrMismatch, "the peer is known to another agent than the backend's")
	case n != len(remote.List) || n == 0 || n >= maxList:
		return nil, fail(ErrMismatch, fmt.Sprintf("%d local and %d remote descriptors", n, len(remote.List)))
	}
	if err := a.enter("make transfer"); err != nil {
		return nil, err
	}
	t := &Transfer{hot: a.hot, gate: a.lib.posts, agent: a, remote: r, op: op, cuda: -1, where: [2]string{b.name, mems}}
	t.mu.Lock() // whoever ends the peer meanwhile waits until the request is there
	err := t.fromDescs(b, local, remote, &o, fail)
	t.mu.Unlock()
	a.leave()
	if err != nil {
		t.drop()
		return nil, err
	}
	return t, nil
}

// smallPost is how many bytes are moved before the runtime would notice that a
// thread is blocked and start another (20 µs): such posts need no gate.
const smallPost = 32 << 10

func (t *Transfer) fromDescs(b *Backend, local, remote Descs, o *XferOptions, fail func(error, string) *Error) error {
	a := t.agent
	uses, bytes, err := a.claim(b, nil, local, fail)
	if err != nil {
		return err
	}
	if bytes <= smallPost {
		t.gate = nil
	}
	far, _, err := a.claim(b, t.remote, remote, fail)
	t.uses = append(uses, far...)
	if err != nil {
		// What the first claim counted is dropped with the transfer, but the
		// peer was not counted.
		t.remote = nil
	}
	a.mu.Lock()
	a.xfers[t] = struct{}{}
	// A peer that goes lists its transfers after it has said so: either it
	// finds this one or this one finds that.
	if err == nil && t.remote.err() != nil {
		err = fail(t.remote.err(), "")
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	if local.Mem == VRAM || (t.remote.self && remote.Mem == VRAM) {
		t.cuda = int(t.uses[0].descs[0].Dev)
	}
	a.mu.Lock()
	own := a.regions[regionKey{b, local.Mem}].ranges
	a.mu.Unlock()
	sides := [2]capi.Side{
		{Mem: int(local.Mem), Descs: toC(local.List), Ranges: own},
		{Mem: int(remote.Mem), Descs: toC(remote.List), Ranges: t.remote.rangesOf(b, remote.Mem)},
	}
	if sides[1].Ranges == nil {
		// Nothing of the kind is registered there, or nothing is known.
		if err := t.remote.uncovered(b, remote, fail); err != nil {
			return err
		}
	}
	options := o.toC(b.h, t.cuda)
	a.takeSpares(&sides)
	defer a.keepSpares(&sides)
	req, made, cerr := a.lib.c.CreateXfer(a.h, int(t.op), &sides[0], &sides[1], t.remote.name, &options)
	if cerr != nil && made < len(local.List) && sides[1].Ranges == nil {
		// Joining may have crossed a border between regions of the peer that
		// are not known here.
		options.SkipMerge = true
		req, made, cerr = a.lib.c.CreateXfer(a.h, int(t.op), &sides[0], &sides[1], t.remote.name, &options)
	}
	if cerr != nil {
		return t.refused(b, local, remote, cerr, fail)
	}
	t.req, t.descs = req, made
	return nil
}

// takeSpares lends lists that earlier transfers have left to the sides.
func (a *Agent) takeSpares(sides *[2]capi.Side) {
	for i := range sides {
		if m := sides[i].Mem; m >= 0 && m < len(a.spare[i]) {
			sides[i].Spare = a.spare[i][m].Swap(0)
		}
	}
}

// keepSpares keeps them for the next transfer; one of each kind is enough.
func (a *Agent) keepSpares(sides *[2]capi.Side) {
	for i := range sides {
		spare := sides[i].Spare
		if m := sides[i].Mem; m >= 0 && m < len(a.spare[i]) {
			spare = a.spare[i][m].Swap(spare)
		}
		if spare != 0 {
			a.lib.c.DestroySpare(spare)
		}
	}
}

// refused finds out why a transfer was not made: the library does not tell, and
// looking before it is asked would cost every transfer that is in order.
func (t *Transfer) refused(b *Backend, local, remote Descs, cerr *capi.CallError, fail func(error, string) *Error) *Error {
	if i := capi.FirstUnequal(toC(local.List), toC(remote.List)); i < len(local.List) {
		return fail(ErrMismatch, fmt.Sprintf("pair %d: %d bytes local, %d remote", i, local.List[i].Len, remote.List[i].Len))
	}
	if err := t.remote.uncovered(b, remote, fail); err != nil {
		return err
	}
	e := fail(nil, fmt.Sprintf("%d descriptors", len(local.List))).from(cerr)
	return e.withRemedy("does the peer's metadata cover the descriptors (Remote.Covers)? NIXL does not tell the reason here")
}

// drop undoes a transfer that was not made. The caller must not hold
// agent.life.
func (t *Transfer) drop() {
	t.mu.Lock()
	t.state = xferReleased
	t.mu.Unlock()
	t.unbook()
}

// unbook takes the transfer out of the agent's books and lets go of what it
// used.
func (t *Transfer) unbook() {
	a := t.agent
	a.mu.Lock()
	_, booked := a.xfers[t]
	delete(a.xfers, t)
	lists := [2]*DescList{t.local, t.far}
	var end [2]bool
	for i, l := range lists {
		if booked && l != nil {
			l.users--
			end[i] = l.closing && l.users == 0
		}
	}
	a.mu.Unlock()
	if !booked {
		return
	}
	for i, l := range lists {
		if end[i] {
			l.end()
		}
	}
	if t.local == nil {
		a.unclaim(t.uses, t.remote)
	}
}

// Op is the direction.
func (t *Transfer) Op() Op { return t.op }

// Remote is the peer.
func (t *Transfer) Remote() *Remote { return t.remote }

// Descs is the number of descriptors: after joining neighbours for a transfer
// made from descriptors, before it for one made from lists (telemetry tells
// what NIXL made of these).
func (t *Transfer) Descs() int { return t.descs }

// fail starts an error of this transfer.
func (t *Transfer) fail(op string) *Error {
	e := t.remote.fail(op)
	e.Backend, e.Mem = t.where[0], t.op.String()+" "+t.where[1]
	return e
}

// failed turns a result of the library into an error.
func (t *Transfer) failed(op string, r capi.Result) *Error {
	e := t.fail(op)
	e.Status, e.Native = Status(r.Status()), Native(r.Native())
	switch e.Native {
	case NativeRemoteDisconnected:
		e.Remedy = "load the metadata of the peer's next start"
	case NativeUnknown:
		if e.Status == StatusBackend {
			e.Remedy = "NIXL_LOG_LEVEL=DEBUG shows the reason on stderr"
		}
	default: // the status says enough
	}
	return e
}

// Telemetry of the last post; see [Transfer.Telemetry].
type Telemetry struct {
	// Start on the library's steady clock: only differences mean something.
	Start time.Duration
	Post  time.Duration // inside the post
	Xfer  time.Duration // from post to end, as far as somebody looked
	Bytes uint64
	Descs uint64 // after joining neighbours
}

// Telemetry tells how the last post went, once it has ended well. It needs
// Config.Telemetry or NIXL_TELEMETRY_ENABLE=y; else the error matches
// [ErrNoTelemetry].
func (t *Transfer) Telemetry() (Telemetry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable("read telemetry"); err != nil {
		return Telemetry{}, err
	}
	if t.state != xferEnded || t.err != nil {
		e := t.fail("read telemetry")
		e.Cause, e.Detail = ErrInvalidState, "only a transfer that has ended well has it"
		return Telemetry{}, e
	}
	c, err := t.agent.lib.c.Telemetry(t.agent.h, t.req)
	if err != nil {
		e := t.fail("read telemetry").from(err)
		if e.Is(ErrNoTelemetry) {
			e.Remedy = "set Config.Telemetry, or NIXL_TELEMETRY_ENABLE=y"
		}
		return Telemetry{}, e
	}
	usec := func(v uint64) time.Duration { return time.Duration(v) * time.Microsecond }
	return Telemetry{usec(c.StartUsec), usec(c.PostUsec), usec(c.XferUsec), c.Bytes, c.Descs}, nil
}

// Estimate asks the backend how long the transfer will take, and how far off
// that may be.
func (t *Transfer) Estimate() (d, margin time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable("estimate"); err != nil {
		return 0, 0, err
	}
	usec, marginUsec, cerr := t.agent.lib.c.Estimate(t.agent.h, t.req)
	if cerr != nil {
		return 0, 0, t.fail("estimate").from(cerr)
	}
	return time.Duration(usec) * time.Microsecond, time.Duration(marginUsec) * time.Microsecond, nil
}

// usable fails for a transfer that the library no longer has, or that is on its
// way there. It needs mu.
func (t *Transfer) usable(op string) error {
	switch {
	case t.abandoned != nil:
		e := t.fail(op)
		e.Cause = t.abandoned
		return e
	case t.state == xferReleased:
		e := t.fail(op)
		e.Cause = ErrClosed
		return e
	}
	return nil
}

// Run posts the transfer and waits for its end.
func (t *Transfer) Run(ctx context.Context) error {
	if done, err := t.Post(); done || err != nil {
		return err
	}
	return t.Wait(ctx)
}
