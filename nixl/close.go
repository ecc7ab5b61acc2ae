package nixl

import (
	"errors"
	"fmt"
	"time"
)

// Close ends the agent and everything that belongs to it, in the order that the
// library needs: transfers, lists and views, registrations, the agent. It may
// be called before, after or instead of the Close of each of these.
//
// Running transfers are cancelled and waited for, for up to
// Config.ReapTimeout. When one does not end in that time, because a peer hangs,
// the agent is destroyed under it, which breaks its connections; memory of a
// [HostBuffer] that it could still write to is kept for good ([Quarantined]),
// [Registration.Done] of other memory stays open, and Close returns an error
// that matches [ErrBusy]. A second Close returns what the first did.
func (a *Agent) Close() error {
	a.closeOnce.Do(func() { a.closeErr = a.close() })
	return a.closeErr
}

func (a *Agent) close() error {
	a.leak.closed.Store(true)
	close(a.closing)
	// Whoever is inside a call that makes something finishes it first.
	a.life.Lock()
	a.life.Unlock() //nolint:staticcheck // an empty section is a barrier
	a.notifs.stop()

	cause := a.fail("use agent")
	cause.Cause, cause.Detail = ErrClosed, "the agent was closed"
	a.mu.Lock()
	all := a.transfers(nil)
	a.mu.Unlock()
	var running []*Transfer
	for _, t := range all {
		if !t.abandon(cause) {
			running = append(running, t)
		}
	}
	a.awaitSettled(running)
	a.react.stop()
	stuck := a.react.left()
	awaitPosted(stuck)

	a.mu.Lock()
	var lists []*DescList
	var views []*View
	var regs []*Registration
	for l := range a.lists {
		lists = append(lists, l)
	}
	for v := range a.views {
		views = append(views, v)
	}
	for r := range a.regs {
		r.closing = true
		regs = append(regs, r)
	}
	remotes := make([]*Remote, 0, len(a.remotes))
	for _, r := range a.remotes {
		remotes = append(remotes, r)
	}
	a.mu.Unlock()
	var errs []error
	for _, v := range views {
		errs = append(errs, v.Close())
	}
	for _, l := range lists {
		l.end()
	}
	for _, r := range regs {
		errs = append(errs, r.tryEnd())
	}
	for _, r := range remotes {
		r.gone(cause)
	}
	errs = append(errs, a.destroy(stuck))
	return errors.Join(errs...)
}

// awaitSettled waits for transfers that were running when Close began.
func (a *Agent) awaitSettled(running []*Transfer) {
	timeout := time.NewTimer(a.cfg.ReapTimeout)
	defer timeout.Stop()
	for _, t := range running {
		select {
		case <-t.Settled():
		case <-timeout.C:
			return
		}
	}
}

// awaitPosted waits until nobody is inside the library's post: that ends by
// itself, and nothing may be destroyed under it.
func awaitPosted(stuck []*Transfer) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for _, t := range stuck {
		for {
			t.mu.Lock()
			posting := t.posting
			t.mu.Unlock()
			if !posting {
				break
			}
			<-tick.C
		}
	}
}

// destroy ends the agent in the library. Requests that never ended are left to
// die with it.
func (a *Agent) destroy(stuck []*Transfer) error {
	a.life.Lock()
	h := a.h
	a.h = 0
	a.life.Unlock()
	var errs []error
	if err := a.lib.c.DestroyAgent(h); err != nil {
		errs = append(errs, a.fail("destroy agent").from(err))
	}
	for _, b := range a.backends {
		a.lib.c.DestroyBackend(b.h)
	}
	for i := range a.spare {
		for m := range a.spare[i] {
			if spare := a.spare[i][m].Swap(0); spare != 0 {
				a.lib.c.DestroySpare(spare)
			}
		}
	}
	if len(stuck) > 0 {
		e := a.fail("close agent")
		e.Cause = ErrBusy
		e.Detail = fmt.Sprintf("%d transfers did not end within %v; memory that they may still write to is kept for good", len(stuck), a.cfg.ReapTimeout)
		errs = append(errs, e)
		for _, t := range stuck {
			t.mu.Lock()
			t.state = xferReleased
			t.mu.Unlock()
		}
	}
	a.mu.Lock()
	var regs []*Registration
	for r := range a.regs {
		regs = append(regs, r)
	}
	var remotes []*Remote
	for _, r := range a.remotes {
		if !r.forgotten {
			r.forgotten = true
			remotes = append(remotes, r)
		}
	}
	a.mu.Unlock()
	for _, r := range regs {
		a.mu.Lock()
		r.dropRanges()
		keep := r.users > 0
		a.mu.Unlock()
		r.giveBack(keep)
	}
	for _, r := range remotes {
		close(r.done)
	}
	return errors.Join(errs...)
}
