package mpserver

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/hash"
)

// maxSessions bounds the requests that are remembered; the one heard of
// longest ago goes first, with its leases.
const maxSessions = 1 << 17

// yieldAfter is how long after END_SESSION its leases still withstand memory
// pressure: a RETRIEVE that was overtaken is answered within that time or never.
const yieldAfter = 2 * time.Second

// noHit is the hit of a session whose lookup result was not fetched.
const noHit = -1

// session is one request of an engine, from LOOKUP to END_SESSION. All fields
// are guarded by sessions.mu.
type session struct {
	id     string
	owner  *client
	used   time.Time
	ended  bool
	scopes []l1cache.Scope // of the latest lookup, for the touch at its end
	ranks  []uint32
	prompt *hash.Prompt
	job    *lookupJob // the latest lookup; nil once its result was fetched
	hit    int        // chunks of the fetched result, noHit before
	leases []heldLease
}

// heldLease is a hit that a retrieve may still claim.
type heldLease struct {
	lease *l1cache.Lease
	// until is when it ends although nobody retrieved: the read TTL, or the
	// grace after END_SESSION or a second LOOKUP.
	until  time.Time
	graced time.Time // when the grace began, zero before
}

// lookupJob is one LOOKUP whose result has not been fetched.
type lookupJob struct {
	done    bool
	chunks  int
	note    lookupNote
	waiters []*waiter
}

// lookupNote is what the metrics say of a lookup when its result is fetched.
type lookupNote struct {
	model, salt     string
	requestedTokens int
	ranks           int
}

// waiter is a parked WAIT_PREFETCH_STATUS.
type waiter struct {
	req   *request
	timer *time.Timer
}

// sessions is the table of requests.
type sessions struct {
	cache   *l1cache.Cache
	ttl     time.Duration
	readTTL time.Duration
	grace   time.Duration

	mu     sync.Mutex
	lru    *simplelru.LRU[string, *session] // guarded by mu; order: last used
	active int                              // guarded by mu: not ended
	jobs   int                              // guarded by mu: results not fetched
	doomed []*l1cache.Lease                 // guarded by mu: to be released outside the lock
	orphan []*waiter                        // guarded by mu: to be answered outside the lock
	// tell answers waiters whose job is gone.
	tell func([]*waiter, int)
}

func newSessions(cache *l1cache.Cache, o Options, tell func([]*waiter, int)) *sessions {
	t := &sessions{cache: cache, tell: tell, ttl: o.SessionTTL, readTTL: o.L1.ReadTTL, grace: o.SessionGrace}
	t.lru, _ = simplelru.NewLRU[string, *session](maxSessions, func(_ string, s *session) { t.forget(s) })
	return t
}

// forget drops what s holds. mu is held.
func (t *sessions) forget(s *session) {
	for _, h := range s.leases {
		t.doomed = append(t.doomed, h.lease)
	}
	s.leases = nil
	t.orphan = append(t.orphan, t.dropJob(s)...)
	if !s.ended {
		s.ended = true
		t.active--
	}
}

// dropJob takes the job of s away; who waits for it hears 0. mu is held.
func (t *sessions) dropJob(s *session) (waiters []*waiter) {
	if s.job == nil {
		return nil
	}
	waiters = s.job.waiters
	s.job.waiters = nil
	s.job = nil
	t.jobs--
	return waiters
}

// unlock releases mu, then ends the leases and waits that were dropped under it.
func (t *sessions) unlock() {
	doomed, orphan := t.doomed, t.orphan
	t.doomed, t.orphan = nil, nil
	t.mu.Unlock()
	for _, l := range doomed {
		l.Release()
	}
	t.tell(orphan, 0)
}

// begin registers a new lookup under id, replacing an earlier one: its result
// is gone, its leases go into grace, since a retrieve of it may be on its way.
// Whoever waits for that result hears 0.
func (t *sessions) begin(id string, owner *client, now time.Time) *lookupJob {
	t.mu.Lock()
	defer t.unlock()
	s, ok := t.lru.Get(id)
	if !ok {
		s = &session{id: id, hit: noHit}
		t.lru.Add(id, s)
		t.active++
	} else if s.ended {
		s.ended = false
		t.active++
	}
	for i := range s.leases {
		t.beginGrace(&s.leases[i], now)
	}
	t.orphan = append(t.orphan, t.dropJob(s)...)
	s.owner, s.used, s.hit = owner, now, noHit
	s.prompt, s.ranks, s.scopes = nil, nil, nil
	s.job = &lookupJob{}
	t.jobs++
	return s.job
}

func (t *sessions) beginGrace(h *heldLease, now time.Time) {
	if h.graced.IsZero() {
		h.graced = now
		if end := now.Add(t.grace); end.Before(h.until) {
			h.until = end
		}
	}
}

// finish completes job with lease (nil for no hit) and returns who waits for
// it. If the session has gone on without the job, the lease is released.
func (t *sessions) finish(id string, job *lookupJob, lease *l1cache.Lease, note lookupNote, what *lookupSubject) []*waiter {
	t.mu.Lock()
	defer t.unlock()
	s, ok := t.lru.Peek(id)
	if !ok || s.job != job {
		if lease != nil {
			t.doomed = append(t.doomed, lease)
		}
		return nil
	}
	job.done, job.note = true, note
	if what != nil {
		s.prompt, s.ranks, s.scopes = what.prompt, what.ranks, what.scopes
	}
	if lease != nil {
		job.chunks = lease.Hit()
		s.leases = append(s.leases, heldLease{lease: lease, until: lease.Deadline()})
	}
	if len(job.waiters) == 0 {
		return nil
	}
	// A result is told exactly once: the first waiter gets it, the rest 0.
	w := job.waiters
	t.consume(s)
	return w
}

// status is QUERY_PREFETCH_STATUS: known reports whether the answer is a
// number, which is then handed out exactly once.
func (t *sessions) status(id string, now time.Time) (chunks int, note *lookupNote, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.lru.Get(id)
	if !ok || s.job == nil {
		return 0, nil, true
	}
	s.used = now
	if !s.job.done {
		return 0, nil, false
	}
	n := s.job.note
	return t.consume(s), &n, true
}

// consume fetches the result of a finished job. mu is held.
func (t *sessions) consume(s *session) int {
	s.hit = s.job.chunks
	t.dropJob(s)
	return s.hit
}

// await parks w on the pending job of id; parked is false when the answer is
// known at once.
func (t *sessions) await(id string, w *waiter, now time.Time) (chunks int, note *lookupNote, parked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.lru.Get(id)
	if !ok || s.job == nil {
		return 0, nil, false
	}
	s.used = now
	if !s.job.done {
		s.job.waiters = append(s.job.waiters, w)
		return 0, nil, true
	}
	n := s.job.note
	return t.consume(s), &n, false
}

// free is FREE_LOOKUP_LOCKS of chunks [from, to): n holds of each object of
// the ranks end. A result that was not fetched yet counts as fetched.
func (t *sessions) free(id string, match leaseMatch, ranks []uint32, from, to, n int, now time.Time) (freed int, note *lookupNote) {
	t.mu.Lock()
	s, ok := t.lru.Get(id)
	if !ok {
		t.unlock()
		return 0, nil
	}
	s.used = now
	if s.job != nil && s.job.done {
		c := s.job.note
		note = &c
		t.consume(s)
	}
	leases := t.matching(s, match)
	t.unlock()
	for _, l := range leases {
		if end := min(to, l.Hit()); from < end {
			freed += l.Free(ranks, from, end, n)
			break // the holds of one lookup, the latest
		}
	}
	t.prune(id)
	return freed, note
}

// leaseMatch says which lookup a later operation refers to: the same scope,
// and the same chain of hashes up to the chunk it needs.
type leaseMatch struct {
	scope  l1cache.Scope
	chunks []hash.Digest // of the whole prompt of the operation
}

func (m leaseMatch) fits(l *l1cache.Lease) bool {
	n := min(l.Hit(), len(m.chunks))
	return n > 0 && l.Scope(0) == m.scope && l.Hash(n-1) == m.chunks[n-1]
}

// matching lists the leases of s that fit m, latest first. mu is held.
func (t *sessions) matching(s *session, m leaseMatch) []*l1cache.Lease {
	var out []*l1cache.Lease
	for i := len(s.leases) - 1; i >= 0; i-- {
		if l := s.leases[i].lease; m.fits(l) {
			out = append(out, l)
		}
	}
	return out
}

// take moves one hold on each chunk [from, to) of rank, in each of the first
// groups groups, from the lookup of id to transfers, one a group. When a chunk
// is not held, the holds on the others end and the error is
// l1cache.ErrNotHeld.
func (t *sessions) take(id string, m leaseMatch, groups int, rank uint32, from, to int, now time.Time) ([]*l1cache.Transfer, error) {
	t.mu.Lock()
	s, ok := t.lru.Get(id)
	if !ok {
		t.unlock()
		return nil, l1cache.ErrNotHeld
	}
	s.used = now
	leases := t.matching(s, m)
	t.unlock()
	err := l1cache.ErrNotHeld
	for _, l := range leases {
		if l.Hit() < to {
			l.Free([]uint32{rank}, from, min(to, l.Hit()), 1)
			continue
		}
		var out []*l1cache.Transfer
		if out, err = takeGroups(l, groups, rank, from, to); err == nil {
			t.prune(id)
			return out, nil
		}
	}
	t.prune(id)
	return nil, err
}

// takeGroups takes from all groups of a lease, or ends one hold in each.
func takeGroups(l *l1cache.Lease, groups int, rank uint32, from, to int) (out []*l1cache.Transfer, err error) {
	for g := range groups {
		tr, takeErr := l.Take(g, rank, from, to)
		if takeErr != nil {
			err = takeErr
			continue
		}
		out = append(out, tr)
	}
	if err != nil {
		for _, tr := range out {
			tr.Done()
		}
		return nil, err
	}
	return out, nil
}

// prune drops the leases of id that hold nothing any more, and the session
// itself if it has ended.
func (t *sessions) prune(id string) {
	t.mu.Lock()
	defer t.unlock()
	s, ok := t.lru.Peek(id)
	if !ok {
		return
	}
	kept := s.leases[:0]
	for _, h := range s.leases {
		if h.lease.Outstanding() > 0 {
			kept = append(kept, h)
		} else {
			t.doomed = append(t.doomed, h.lease)
		}
	}
	clear(s.leases[len(kept):])
	s.leases = kept
	if s.ended && len(s.leases) == 0 {
		t.lru.Remove(id)
	}
}

// endSubject is what END_SESSION touches in the store.
type endSubject struct {
	scopes []l1cache.Scope
	ranks  []uint32
	chunks []hash.Digest
}

// end is END_SESSION: the result is gone, leases that are left go into grace.
func (t *sessions) end(id string, now time.Time) (sub endSubject) {
	t.mu.Lock()
	defer t.unlock()
	s, ok := t.lru.Get(id)
	if !ok || s.ended {
		return sub
	}
	t.orphan = append(t.orphan, t.dropJob(s)...)
	s.ended, s.used = true, now
	t.active--
	if s.prompt != nil {
		sub = endSubject{scopes: s.scopes, ranks: s.ranks, chunks: s.prompt.Chunks()}
	}
	s.prompt = nil
	for i := range s.leases {
		t.beginGrace(&s.leases[i], now)
	}
	if len(s.leases) == 0 {
		t.lru.Remove(id)
	}
	return sub
}

// sweepReport says what a sweep found, for log and metrics.
type sweepReport struct {
	expiredLeases   int // read TTL passed without retrieve or END_SESSION
	expiredSessions int
}

// sweep ends the leases whose time has come, the sessions that were idle for
// the TTL, and those of clients whose connection ended at least connGrace ago.
func (t *sessions) sweep(now time.Time, connGrace time.Duration) (rep sweepReport) {
	t.mu.Lock()
	defer t.unlock()
	for _, id := range t.lru.Keys() {
		s, ok := t.lru.Peek(id)
		if !ok {
			continue
		}
		// A scheduler that has gone may be one that reconnects under a new
		// identity while its workers still retrieve: its hits go into grace,
		// where they yield to whoever needs the memory.
		gone := s.owner != nil && s.owner.goneFor(connGrace, now)
		kept := s.leases[:0]
		for _, h := range s.leases {
			if gone {
				t.beginGrace(&h, now)
			}
			switch {
			case now.After(h.until):
				if h.graced.IsZero() && h.lease.Outstanding() > 0 {
					rep.expiredLeases++
				}
				t.doomed = append(t.doomed, h.lease)
				continue
			case !h.graced.IsZero() && now.Sub(h.graced) >= yieldAfter:
				h.lease.SetYield(true)
			default:
			}
			kept = append(kept, h)
		}
		clear(s.leases[len(kept):])
		s.leases = kept
		idle := now.Sub(s.used) > t.ttl
		if idle || (gone || s.ended) && len(s.leases) == 0 {
			if idle && !s.ended {
				rep.expiredSessions++
			}
			t.lru.Remove(id)
		}
	}
	return rep
}

// counts are the sessions that have not ended and the results not fetched.
func (t *sessions) counts() (active, jobs int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.active, t.jobs
}

// close releases everything.
func (t *sessions) close() {
	t.mu.Lock()
	defer t.unlock()
	t.lru.Purge()
}
