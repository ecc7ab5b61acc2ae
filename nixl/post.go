package nixl

import (
	"context"

	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// action is what is left to do for a transfer once its lock is released.
type action uint8

const (
	actRelease action = 1 << iota // give the request back to the library
	actLose                       // the peer is disconnected
)

// Post starts the transfer and reports whether it has ended already: with
// shared memory the copy is made within Post, which then blocks for as long as
// copying takes. It allocates nothing when it succeeds.
//
// A transfer that ended may be posted again, also after an error. The
// notification given when it was made is sent each time.
func (t *Transfer) Post() (done bool, err error) {
	return t.post(nil, false, false)
}

// PostNotif is Post with another notification, for this and later posts. nil:
// none; empty and not nil: an empty message.
func (t *Transfer) PostNotif(msg []byte) (done bool, err error) {
	return t.post(msg, msg != nil, true)
}

func (t *Transfer) post(msg []byte, has, replace bool) (bool, error) {
	t.mu.Lock()
	if t.abandoned != nil || t.state >= xferReleased || t.state == xferRunning {
		err := t.unpostable()
		t.mu.Unlock()
		return false, err
	}
	t.state, t.posting, t.err = xferRunning, true, nil
	t.takeToken()
	t.mu.Unlock()

	if t.gate != nil {
		t.gate.enter()
	}
	var r capi.Result
	if replace {
		r = t.hot.PostNotif(t.req, msg, has, t.cuda)
	} else {
		r = t.hot.Post(t.req, t.cuda)
	}
	if t.gate != nil {
		t.gate.leave()
	}

	t.mu.Lock()
	t.posting = false
	if r == capi.Success && t.abandoned == nil { // the way that counts
		t.state = xferEnded
		t.giveToken()
		t.mu.Unlock()
		return true, nil
	}
	act := t.settle("post", r)
	done, failed, gone := t.state == xferEnded, t.err, t.abandoned
	if act&actRelease != 0 {
		t.state = xferReleased
	}
	t.mu.Unlock()
	t.after(act, failed)
	switch {
	case failed != nil:
		return true, failed
	case gone != nil:
		return done, gone
	}
	return done, nil
}

// unpostable says why the transfer cannot be posted. It needs mu.
func (t *Transfer) unpostable() error {
	if err := t.usable("post"); err != nil {
		return err
	}
	e := t.fail("post")
	e.Cause, e.Detail = ErrRepostActive, "wait for its end first"
	return e
}

// settle records a result of the library. It needs mu; the caller hands what
// it returns to after, without mu, and on actRelease sets the state.
func (t *Transfer) settle(op string, r capi.Result) action {
	status := r.Status()
	if status == capi.InProgress {
		return 0
	}
	t.state = xferEnded
	var act action
	if status != capi.Success {
		t.err = t.failed(op, r)
		if t.err.Native == NativeRemoteDisconnected {
			act |= actLose
		}
	}
	t.giveToken()
	if t.abandoned != nil {
		act |= actRelease
	}
	return act
}

// after does what settle left to do.
func (t *Transfer) after(act action, failed *Error) {
	if act == 0 {
		return
	}
	if act&actRelease != 0 {
		t.release()
	}
	if act&actLose != 0 {
		t.remote.lose(failed)
	}
}

// release gives a request that has ended back to the library. The state is
// xferReleased already, so nobody else uses it.
func (t *Transfer) release() {
	a := t.agent
	a.life.RLock()
	if t.req != 0 && a.h != 0 {
		if err := a.lib.c.ReleaseXfer(a.h, t.req); err != nil {
			a.cfg.Logger.Warn("nixl transfer cannot be released", "agent", a.cfg.Name, "err", t.fail("release").from(err))
		}
	}
	a.life.RUnlock()
	t.unbook()
	t.mu.Lock()
	if t.settled == nil {
		t.settled = make(chan struct{})
	}
	close(t.settled)
	t.mu.Unlock()
}

// Poll asks how the transfer stands: done is true when it has ended, and err
// says how. It drives progress on an agent without a progress thread. It
// allocates nothing when it succeeds.
func (t *Transfer) Poll() (done bool, err error) {
	t.mu.Lock()
	if t.state != xferRunning || t.posting || t.abandoned != nil {
		defer t.mu.Unlock()
		return t.stand("poll")
	}
	r := t.hot.Status(t.req)
	act := t.settle("poll", r)
	done, failed := t.state == xferEnded, t.err
	t.mu.Unlock()
	t.after(act, failed)
	if failed != nil {
		return true, failed
	}
	return done, nil
}

// stand reports without asking the library. It needs mu.
func (t *Transfer) stand(op string) (bool, error) {
	switch {
	case t.abandoned != nil, t.state == xferReleased:
		return t.state != xferRunning, t.usable(op)
	case t.state == xferIdle:
		e := t.fail(op)
		e.Cause = ErrNotPosted
		return false, e
	case t.state == xferEnded && t.err != nil:
		return true, t.err
	default:
		return t.state == xferEnded, nil
	}
}

// Wait waits until the transfer has ended, and returns how. It polls for
// Config.Spin without a pause, then sleeps while a goroutine of the agent polls
// for all who wait.
//
// When ctx ends first, Wait returns an error that matches its error, and the
// transfer goes on: it can be waited for again, cancelled or closed.
func (t *Transfer) Wait(ctx context.Context) error {
	if done, err := t.spin(); done || err != nil {
		return err
	}
	for {
		t.mu.Lock()
		if t.state != xferRunning || t.abandoned != nil {
			_, err := t.stand("wait")
			t.giveToken() // another waiter may be behind us
			t.mu.Unlock()
			return err
		}
		if t.wake == nil {
			t.wake = make(chan struct{}, 1)
		}
		t.waiters++
		t.mu.Unlock()
		t.agent.react.watch(t)
		var err error
		select {
		case <-t.wake:
		case <-ctx.Done():
			e := t.fail("wait")
			e.Cause, e.Detail = ctx.Err(), "the transfer goes on; cancel or close it"
			err = e
		}
		t.mu.Lock()
		t.waiters--
		t.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// spin polls in C for a bounded time.
func (t *Transfer) spin() (bool, error) {
	t.mu.Lock()
	if t.state != xferRunning || t.abandoned != nil {
		defer t.mu.Unlock()
		return t.stand("wait")
	}
	if t.posting || t.agent.cfg.Spin <= 0 {
		t.mu.Unlock()
		return false, nil
	}
	r := t.hot.Wait(t.req, int64(t.agent.cfg.Spin))
	act := t.settle("wait", r)
	done, failed := t.state == xferEnded, t.err
	t.mu.Unlock()
	t.after(act, failed)
	if failed != nil {
		return true, failed
	}
	return done, nil
}

// giveToken wakes one waiter, who wakes the next. It needs mu.
func (t *Transfer) giveToken() {
	if t.wake == nil {
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// takeToken removes a token of an earlier end. It needs mu.
func (t *Transfer) takeToken() {
	if t.wake == nil {
		return
	}
	select {
	case <-t.wake:
	default:
	}
}

// Cancel gives a running transfer up: waits end with [ErrCanceled], and it
// cannot be posted again. NIXL cannot stop the data: the memory on both sides
// stays in use until the transfer ends by itself, which closes Settled. It does
// nothing to a transfer that is not running.
func (t *Transfer) Cancel() {
	t.mu.Lock()
	running := t.state == xferRunning
	t.mu.Unlock()
	if running {
		e := t.fail("cancel")
		e.Cause = ErrCanceled
		t.abandon(e)
	}
}

// Close frees the transfer. While it is running Close returns an error that
// matches [ErrBusy]; the transfer is freed when it has ended, and its memory is
// pinned until then. A second Close reports the same.
func (t *Transfer) Close() error {
	e := t.fail("use transfer")
	e.Cause = ErrClosed
	if t.abandon(e) {
		return nil
	}
	busy := t.fail("close transfer")
	busy.Cause, busy.Detail = ErrBusy, "it is running; its memory is in use until Settled is closed"
	return busy
}

// Settled is closed when a transfer that was closed, cancelled or lost its
// peer has ended and been freed: from then on it touches no memory.
func (t *Transfer) Settled() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.settled == nil {
		t.settled = make(chan struct{})
	}
	return t.settled
}

// abandon frees the transfer now, or when it ends; it reports whether that has
// happened. Waiters end with the cause.
func (t *Transfer) abandon(cause *Error) (released bool) {
	t.mu.Lock()
	if t.state == xferReleased {
		t.mu.Unlock()
		return true
	}
	if t.abandoned == nil {
		t.abandoned = cause
	}
	if t.state == xferRunning {
		t.giveToken()
		t.mu.Unlock()
		t.agent.react.watch(t)
		return false
	}
	t.state = xferReleased
	t.mu.Unlock()
	t.release()
	return true
}
