package mpserver

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/hash"
	"github.com/lmcache-go/lmcache-go/mpserver/metrics"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// requestKey is a decoded key with its hashed tokens.
type requestKey struct {
	wire.Key
	prompt *hash.Prompt
}

// decodeKey parses a key and hashes its tokens in one pass; a prompt seen
// before costs a comparison of its bytes.
func (s *Server) decodeKey(frame []byte) (*requestKey, error) {
	k := &requestKey{}
	err := wire.DecodeKey(frame, &k.Key, func(body []byte, count int) (int, error) {
		p, n, err := s.hasher.Prompt(body, count)
		k.prompt = p
		return n, err
	})
	return k, err
}

// lookupSubject is what a session remembers of its lookup.
type lookupSubject struct {
	prompt *hash.Prompt
	ranks  []uint32
	scopes []l1cache.Scope
}

// handleLookup finds the longest prefix that the store holds and takes
// num_kv_readers holds on it, so that the retrieve that follows is honoured.
// The job stands before the acknowledgement leaves.
func handleLookup(s *Server, _ context.Context, r *request) reply {
	k, err := s.decodeKey(r.payloads[0])
	if err != nil {
		return s.lookupMiss(r, k, "payload")
	}
	if _, err := wire.DecodeInt(r.payloads[1]); err != nil { // tp_size says nothing that the key does not
		return s.lookupMiss(r, k, "payload")
	}
	job := s.beginLookup(k.RequestID, r.client)
	note := lookupNote{model: k.Model, salt: k.Salt}
	lay, ill := s.instances.model(k.Model, k.WorldSize)
	if lay == nil {
		if ill {
			s.countFailure(r.op, "instance_ill")
		}
		s.met.LookupEarlyExit(k.Model, k.Salt, metrics.ExitNoContext)
		s.finishLookup(k.RequestID, job, nil, note, nil)
		return empty
	}
	ranks, ok := k.KVRanks(make([]uint32, 0, max(1, min(k.WorldSize, wire.MaxWorldSize))))
	if k.NumKVReaders < 1 || !ok {
		s.finishLookup(k.RequestID, job, nil, note, nil)
		return empty.because("key")
	}
	n := 0
	if end := min(k.TokenCount, k.End); end > 0 {
		n = min(end/s.opt.ChunkSize, len(k.prompt.Chunks()))
	}
	if n == 0 {
		s.met.LookupEarlyExit(k.Model, k.Salt, metrics.ExitNoChunks)
		s.finishLookup(k.RequestID, job, nil, note, nil)
		return empty
	}
	if s.hashLog != nil {
		s.hashLog.note(hashRecord{at: r.received, requestID: k.RequestID, lay: lay, tokens: k.TokenCount, chunks: k.prompt.Chunks()[:n]})
	}
	what := &lookupSubject{prompt: k.prompt, ranks: ranks}
	req := l1cache.LookupRequest{Groups: lay.lookupGroups(k.Salt), Ranks: what.ranks, Hashes: k.prompt.Chunks()[:n], Readers: k.NumKVReaders}
	for _, g := range req.Groups {
		what.scopes = append(what.scopes, g.Scope)
	}
	note.requestedTokens = n * s.opt.ChunkSize
	note.ranks = len(what.ranks) * len(req.Groups)
	s.tryLookup(k.RequestID, job, req, note, what, time.Now().Add(s.opt.PendingLookupTimeout))
	return empty
}

// tryLookup completes job, or leaves it pending while an object that it needs
// is still being copied; the settled copy, or the time limit, tries again.
func (s *Server) tryLookup(id string, job *lookupJob, req l1cache.LookupRequest, note lookupNote, what *lookupSubject, until time.Time) {
	if left := time.Until(until); left > 0 {
		var once sync.Once
		again := func() { once.Do(func() { s.tryLookup(id, job, req, note, what, until) }) }
		lease, pending := s.cache.Lookup(req, again)
		if pending {
			time.AfterFunc(left, again)
		} else {
			s.finishLookup(id, job, lease, note, what)
		}
		return
	}
	s.met.TimedOut("pending_lookup")
	lease, _ := s.cache.Lookup(req, nil)
	s.finishLookup(id, job, lease, note, what)
}

func (s *Server) beginLookup(id string, c *client) *lookupJob {
	return s.sessions.begin(id, c, time.Now())
}

func (s *Server) finishLookup(id string, job *lookupJob, lease *l1cache.Lease, note lookupNote, what *lookupSubject) {
	waiters := s.sessions.finish(id, job, lease, note, what)
	if len(waiters) == 0 {
		return
	}
	s.tell(waiters[:1], job.chunks)
	s.tell(waiters[1:], 0)
	s.countLookup(&note, job.chunks)
}

// countLookup counts a lookup when its result is fetched, as the reference
// does. One that ended before the store was asked was counted then.
func (s *Server) countLookup(n *lookupNote, chunks int) {
	if n == nil || n.ranks == 0 {
		return
	}
	s.met.LookupDone(n.model, n.salt, n.requestedTokens, chunks*s.opt.ChunkSize, chunks*n.ranks)
}

// tell answers parked waiters.
func (s *Server) tell(waiters []*waiter, chunks int) {
	for _, w := range waiters {
		w.timer.Stop()
		s.later(w.req, value(wire.AppendInt(nil, int64(chunks))))
	}
}

// lookupMiss registers a job of 0 hits for a lookup that cannot be served, if
// its request is known: silence would cost the client its timeout.
func (s *Server) lookupMiss(r *request, k *requestKey, reason string) reply {
	if k != nil && k.RequestID != "" {
		s.finishLookup(k.RequestID, s.beginLookup(k.RequestID, r.client), nil, lookupNote{}, nil)
	}
	return empty.because(reason)
}

// failLookup is the failure answer of LOOKUP where nothing was decoded yet.
func failLookup(s *Server, r *request) reply {
	var k wire.Key
	if len(r.payloads) > 0 && wire.DecodeKey(r.payloads[0], &k, nil) == nil {
		s.finishLookup(k.RequestID, s.beginLookup(k.RequestID, r.client), nil, lookupNote{}, nil)
	}
	return empty
}

func handleQueryPrefetchStatus(s *Server, _ context.Context, r *request) reply {
	id, err := wire.DecodeString(r.payloads[0])
	if err != nil {
		return s.failed(r, "payload")
	}
	chunks, note, known := s.sessions.status(id, time.Now())
	if !known {
		return empty
	}
	s.countLookup(note, chunks)
	return value(wire.AppendInt(nil, int64(chunks)))
}

// maxWait bounds WAIT_PREFETCH_STATUS whatever the client asks for; a lookup
// is decided within Options.PendingLookupTimeout anyway.
const maxWait = time.Hour

// handleWaitPrefetchStatus parks the request on its job: it occupies no worker.
func handleWaitPrefetchStatus(s *Server, _ context.Context, r *request) reply {
	id, err := wire.DecodeString(r.payloads[0])
	if err != nil {
		return s.failed(r, "payload")
	}
	seconds, err := wire.DecodeFloat(r.payloads[1])
	if err != nil || math.IsNaN(seconds) {
		return s.failed(r, "payload")
	}
	wait := maxWait
	if seconds < maxWait.Seconds() {
		wait = time.Duration(max(0, seconds) * float64(time.Second))
	}
	w := &waiter{req: r}
	// The timer exists before the job can finish; it answers None.
	w.timer = time.AfterFunc(wait, func() { s.later(r, empty) })
	chunks, note, parked := s.sessions.await(id, w, time.Now())
	if parked {
		return reply{kind: replyLater}
	}
	if !w.timer.Stop() {
		return reply{kind: replyLater} // the timer has answered None
	}
	s.countLookup(note, chunks)
	return value(wire.AppendInt(nil, int64(chunks)))
}

// handleFreeLookupLocks ends the holds of the chunks that lie whole in the
// range: the engine has them already, or will not load them.
func handleFreeLookupLocks(s *Server, _ context.Context, r *request) reply {
	k, err := s.decodeKey(r.payloads[0])
	if err != nil {
		return s.failed(r, "payload")
	}
	if _, err := wire.DecodeInt(r.payloads[1]); err != nil {
		return s.failed(r, "payload")
	}
	ranks, ok := k.KVRanks(nil)
	if k.Start >= k.End || k.Start < 0 || k.NumKVReaders < 1 || !ok {
		return empty
	}
	lay, _ := s.instances.model(k.Model, k.WorldSize)
	if lay == nil {
		return empty
	}
	c := s.opt.ChunkSize
	from, to := (k.Start+c-1)/c, k.End/c
	m := leaseMatch{scope: lay.scope(k.Salt, 0), chunks: k.prompt.Chunks()}
	_, note := s.sessions.free(k.RequestID, m, ranks, from, to, k.NumKVReaders, time.Now())
	s.countLookup(note, 0)
	return empty
}

// handleEndSession forgets the request and marks its chunks as recently used.
func handleEndSession(s *Server, _ context.Context, r *request) reply {
	id, err := wire.DecodeString(r.payloads[0])
	if err != nil {
		return s.failed(r, "payload")
	}
	s.met.RequestEnded(id)
	sub := s.sessions.end(id, time.Now())
	for _, scope := range sub.scopes {
		s.cache.Touch(scope, sub.ranks, sub.chunks)
	}
	return empty
}
