package nixl

import (
	"context"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl/internal/capi"
)

// Notif is a message from a peer: one that came with a transfer and says that
// its data is there, or one sent by itself. The sender need not be known here.
type Notif struct {
	From string // name of the sending agent
	Msg  []byte // the receiver's to keep
}

// Notify sends a message to the peer, outside any transfer. Messages of one
// sender arrive in order; up to 16 MiB were seen to arrive.
func (r *Remote) Notify(msg []byte) error {
	if err := r.enter("notify"); err != nil {
		return err
	}
	defer r.agent.leave()
	if err := r.agent.lib.c.Notify(r.agent.h, r.name, msg, 0); err != nil {
		return r.fail("notify").from(err)
	}
	return nil
}

// notifier is an agent's stream of notifications.
type notifier struct {
	mu      sync.Mutex
	ch      chan Notif    // guarded by mu
	ended   chan struct{} // guarded by mu; closed when the goroutine has ended
	cancel  context.CancelFunc
	stopped bool // guarded by mu
}

func (n *notifier) queued() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.ch)
}

// Notifications is the agent's stream of messages; every call returns the same
// channel, and each message goes to one receiver. It is closed when the agent
// is.
//
// Nothing is dropped: while Config.NotifQueue messages wait to be received no
// more are asked of the library, where they wait without a bound. [Agent.Stats]
// tells how many wait here.
//
// From the first call on a goroutine polls the library; PollNotifs then fails.
// The stream needs an agent that may be used from several threads.
func (a *Agent) Notifications() <-chan Notif {
	n := &a.notifs
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		return n.ch
	}
	n.ch = make(chan Notif, a.cfg.NotifQueue)
	if n.stopped || a.isClosing() {
		close(n.ch)
		return n.ch
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.ended = cancel, make(chan struct{})
	go a.pollLoop(ctx, n.ch, n.ended)
	return n.ch
}

// minNotifPause is the pause between two looks while messages keep coming.
const minNotifPause = 100 * time.Microsecond

func (a *Agent) pollLoop(ctx context.Context, out chan<- Notif, ended chan<- struct{}) {
	defer close(ended)
	defer close(out)
	pause := minNotifPause
	timer := time.NewTimer(pause)
	defer timer.Stop()
	failures := 0
	for {
		batch, err := a.drain()
		switch {
		case err != nil:
			// Polling goes on: what the library could not do now it may later.
			if failures++; failures == 1 {
				a.cfg.Logger.Warn("nixl notifications cannot be read", "agent", a.cfg.Name, "err", err)
			}
		case len(batch) > 0:
			failures, pause = 0, minNotifPause
		}
		for _, m := range batch {
			select {
			case out <- m:
			case <-ctx.Done():
				return
			}
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
			pause = min(2*pause, a.cfg.NotifPause)
		case <-ctx.Done():
			return
		}
	}
}

// stop ends the stream.
func (n *notifier) stop() {
	n.mu.Lock()
	n.stopped = true
	ended := n.ended
	if n.cancel != nil {
		n.cancel()
	}
	n.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

// PollNotifs takes the messages that have arrived, without waiting. It fails
// once Notifications was called. Each call takes NIXL's exclusive lock: do not
// call it in a tight loop.
func (a *Agent) PollNotifs() ([]Notif, error) {
	a.notifs.mu.Lock()
	streaming := a.notifs.ch != nil
	a.notifs.mu.Unlock()
	if streaming {
		e := a.fail("poll notifications")
		e.Cause, e.Detail = ErrInvalidState, "Notifications takes them already"
		return nil, e
	}
	return a.drain()
}

func (a *Agent) drain() ([]Notif, error) {
	if err := a.enter("poll notifications"); err != nil {
		return nil, err
	}
	data, count, cerr := a.lib.c.Drain(a.h)
	a.leave()
	if cerr != nil {
		return nil, a.fail("poll notifications").from(cerr)
	}
	if count == 0 {
		return nil, nil
	}
	list := make([]Notif, 0, count)
	last := ""
	capi.SplitNotifs(data, func(from, msg []byte) {
		if last != string(from) {
			last = string(from)
		}
		list = append(list, Notif{From: last, Msg: msg})
	})
	return list, nil
}
