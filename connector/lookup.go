package connector

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// lookup is the question how much of a prompt the servers have: a LOOKUP to
// each, then, when all have acknowledged it, a QUERY to each until it answers a
// number.
type lookup struct {
	key    wire.Key
	begin  time.Time
	end    time.Time
	asks   []ask
	chunks int  // the least of all servers
	done   bool // chunks is valid
}

// ask is the part of a lookup that one server answers.
type ask struct {
	ack    *Call
	acked  bool
	query  *Call
	chunks int
	known  bool
}

// beginLookup asks all servers.
func (s *Scheduler) beginLookup(t *tracker) {
	for _, sv := range s.servers {
		sv.beat.start()
	}
	t.sync()
	l := &lookup{key: t.key(s, 0, t.count/s.chunk*s.chunk), begin: time.Now(), asks: make([]ask, len(s.servers))}
	t.lookup = l
	if !s.Healthy() {
		l.settle(0)
		return
	}
	for i, sv := range s.servers {
		l.asks[i].ack = sv.client.GoLookup(&l.key, s.tpArgument)
	}
}

func (l *lookup) settle(chunks int) {
	l.chunks, l.done, l.end = chunks, true, time.Now()
}

// poll looks for answers, without waiting, and says whether the lookup is done.
func (s *Scheduler) poll(l *lookup) bool {
	if l.done {
		return true
	}
	if !s.Healthy() {
		s.giveUp(l)
		return true
	}
	if !s.pollAcks(l) {
		return l.done
	}
	known := true
	for i := range l.asks {
		a := &l.asks[i]
		if a.known {
			continue
		}
		if a.query == nil {
			a.query = s.servers[i].client.GoQueryPrefetch(l.key.RequestID)
		}
		if !a.query.Ready() {
			if s.late(l, i, a.query) {
				return true
			}
			known = false
			continue
		}
		n, done, err := hits(context.Background(), a.query)
		a.query = nil
		switch {
		case err != nil:
			s.log.Warn("a lookup failed: the request is computed", "component", "mq", "request_id", l.key.RequestID, "err", err)
			s.giveUp(l)
			return true
		case !done:
			known = false // asked again at the next step
		default:
			a.chunks, a.known = n, true
		}
	}
	if known {
		s.agree(l)
	}
	return known
}

// pollAcks says whether every server has taken the LOOKUP.
func (s *Scheduler) pollAcks(l *lookup) bool {
	all := true
	for i := range l.asks {
		a := &l.asks[i]
		if a.acked {
			continue
		}
		if !a.ack.Ready() {
			if s.late(l, i, a.ack) {
				return false
			}
			all = false
			continue
		}
		if err := none(context.Background(), a.ack); err != nil {
			s.log.Warn("a lookup failed: the request is computed", "component", "mq", "request_id", l.key.RequestID, "err", err)
			s.giveUp(l)
			return false
		}
		a.acked = true
	}
	return all
}

// late gives a lookup up whose server has not answered in time.
func (s *Scheduler) late(l *lookup, server int, k *Call) bool {
	if k.Age() < s.cfg.Timeout {
		return false
	}
	k.Cancel(ErrTimeout)
	s.servers[server].beat.fail(fmt.Errorf("%w: %v", ErrTimeout, k.op))
	s.giveUp(l)
	return true
}

// agree takes the least of all answers and frees what other servers hold
// beyond it.
func (s *Scheduler) agree(l *lookup) {
	least := l.asks[0].chunks
	for i := range l.asks {
		least = min(least, l.asks[i].chunks)
	}
	least = min(least, l.key.End/s.chunk)
	for i := range l.asks {
		if n := l.asks[i].chunks; n > least {
			s.free(i, l.key, least*s.chunk, n*s.chunk)
		}
	}
	l.settle(least)
}

// giveUp makes a lookup a miss. What servers may hold for it is freed; a server
// that is still looking finds out by END_SESSION.
func (s *Scheduler) giveUp(l *lookup) {
	for i := range l.asks {
		a := &l.asks[i]
		for _, k := range []*Call{a.ack, a.query} {
			if k != nil {
				k.Cancel(errGivenUp)
			}
		}
		if a.ack != nil && s.servers[i].beat.healthy.Load() {
			s.free(i, l.key, 0, l.key.End)
		}
	}
	l.settle(0)
}

var errGivenUp = errors.New("connector: lookup given up")

// free sends FREE_LOOKUP_LOCKS to one server.
func (s *Scheduler) free(server int, k wire.Key, start, end int) {
	if start >= end {
		return
	}
	k.Start, k.End = start, end
	s.servers[server].client.FreeLookupLocks(&k, s.tpArgument)
}

// freeAll sends it to all servers that are well.
func (s *Scheduler) freeAll(t *tracker, start, end int) {
	if start >= end || !s.Healthy() {
		return
	}
	k := t.key(s, start, end)
	for i := range s.servers {
		s.free(i, k, start, end)
	}
}

// Await waits until the next [Scheduler.Match] of a request can be answered,
// for an engine that has nothing else to do. It asks for the request's lookup
// if that was not asked for yet.
func (s *Scheduler) Await(ctx context.Context, r *Request) error {
	t := s.track(r)
	if t.state != prefetching {
		return nil
	}
	if t.lookup == nil {
		s.beginLookup(t)
	}
	for !s.poll(t.lookup) {
		for i := range t.lookup.asks {
			a := &t.lookup.asks[i]
			k := a.query
			if !a.acked {
				k = a.ack
			}
			if k == nil {
				continue // answered None: ask again
			}
			timer := time.NewTimer(s.cfg.HeartbeatInterval)
			select {
			case <-k.Done():
			case <-timer.C: // look whether the server is well
			case <-ctx.Done():
				timer.Stop()
				return ctx.Err()
			}
			timer.Stop()
		}
	}
	return nil
}
