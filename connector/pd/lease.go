package pd

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// heartbeatPrefix begins a notification that extends leases.
const heartbeatPrefix = "HB:"

// leases are the requests that are offered, and what their readers say.
type leases struct {
	extension time.Duration // what a heartbeat promises
	released  func(Release)
	stats     *counters
	log       *slog.Logger

	mu     sync.Mutex
	byID   map[string]*lease // guarded by mu
	closed bool              // guarded by mu
	wake   chan struct{}     // holds a token when an earlier deadline was added
}

type lease struct {
	offered, deadline time.Time
	readers           int
}

func newLeases(o *Options, stats *counters) *leases {
	released := o.Released
	if released == nil {
		released = func(Release) {}
	}
	return &leases{
		extension: o.Lease * 2 / 3, released: released, stats: stats, log: o.Logger,
		byID: map[string]*lease{}, wake: make(chan struct{}, 1),
	}
}

// add begins a lease.
func (l *leases) add(id string, d time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	if _, ok := l.byID[id]; ok {
		return fmt.Errorf("%w: %s", ErrOffered, id)
	}
	now := time.Now()
	l.byID[id] = &lease{offered: now, deadline: now.Add(d)}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

func (l *leases) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.byID)
}

// end ends one lease and says whether there was one.
func (l *leases) end(id string, why Reason) bool {
	l.mu.Lock()
	r, ok := l.remove(id, why)
	l.mu.Unlock()
	if ok {
		l.released(r)
	}
	return ok
}

// remove needs mu.
func (l *leases) remove(id string, why Reason) (Release, bool) {
	x, ok := l.byID[id]
	if !ok {
		return Release{}, false
	}
	delete(l.byID, id)
	return Release{RequestID: id, Reason: why, Readers: x.readers, Held: time.Since(x.offered)}, true
}

// close ends all leases.
func (l *leases) close() {
	l.mu.Lock()
	l.closed = true
	var list []Release
	for id := range l.byID {
		r, _ := l.remove(id, ReleaseClosed)
		list = append(list, r)
	}
	l.mu.Unlock()
	for _, r := range list {
		l.released(r)
	}
}

// run takes notifications and ends leases until ctx ends.
func (l *leases) run(ctx context.Context, notifs <-chan nixl.Notif) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(l.expire())
		select {
		case n, ok := <-notifs:
			if !ok {
				return
			}
			l.heard(n)
		case <-timer.C:
		case <-l.wake:
		case <-ctx.Done():
			return
		}
	}
}

// expire ends the leases whose time is over, and says when to look again.
func (l *leases) expire() time.Duration {
	now, next := time.Now(), time.Hour
	var over []Release
	l.mu.Lock()
	for id, x := range l.byID {
		if left := x.deadline.Sub(now); left > 0 {
			next = min(next, left)
			continue
		}
		r, _ := l.remove(id, ReleaseExpired)
		over = append(over, r)
	}
	l.mu.Unlock()
	for _, r := range over {
		l.stats.add(func(s *Stats) { s.Expired++ })
		// It begins as in vLLM, which operators search for.
		l.log.Warn("Releasing expired KV blocks: the lease ended before all readers had them", "request", r.RequestID, "readers", r.Readers, "held", r.Held)
		l.released(r)
	}
	return next
}

// heard handles one notification: "HB:id,id" or "id:readers".
func (l *leases) heard(n nixl.Notif) {
	text := string(n.Msg)
	if ids, ok := strings.CutPrefix(text, heartbeatPrefix); ok {
		l.extend(ids)
		return
	}
	at := strings.LastIndexByte(text, ':') // ids hold colons
	readers := 0
	if at > 0 {
		readers, _ = strconv.Atoi(text[at+1:])
	}
	if readers < 1 {
		l.log.Warn("a notification that is none of this protocol: does a push connector (NixlPushConnector) use this engine?", "from", n.From, "text", shorten(text))
		return
	}
	id := text[:at]
	l.mu.Lock()
	x, ok := l.byID[id]
	var r Release
	done := false
	if ok {
		x.readers++
		if x.readers >= readers {
			r, done = l.remove(id, ReleaseRead)
		}
	}
	l.mu.Unlock()
	switch {
	case !ok:
		l.stats.add(func(s *Stats) { s.LateNotifs++ })
		l.log.Error("blocks were read of a request that is not offered: its lease has ended, and they may have held something else", "request", shorten(id), "from", n.From)
	case done:
		l.released(r)
	}
}

// extend is a heartbeat for some requests.
func (l *leases) extend(ids string) {
	until := time.Now().Add(l.extension)
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range strings.SplitSeq(ids, ",") {
		if x := l.byID[id]; x != nil && x.deadline.Before(until) {
			x.deadline = until
		}
	}
}

func shorten(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}
