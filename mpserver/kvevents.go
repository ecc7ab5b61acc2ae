package mpserver

import (
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/hash"
	"github.com/lmcache-go/lmcache-go/mpserver/httpapi"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

const (
	// DefaultKVEventLogSize is the reference's (lmcache 0.5.6,
	// v1/multiprocess/config.py).
	DefaultKVEventLogSize = 32768
	// boundChunks is how many chunks' tokens are kept for their publication,
	// which comes with the end of the copy.
	boundChunks = 8192
)

// kvEvents is the log of stored and removed chunks: routers learn from it, by
// way of a worker of each engine, what this server holds. Readers lag by
// cursor, so a slow one delays nobody and loses the oldest records; they hear
// that they did.
type kvEvents struct {
	incarnation int64 // start of the server, ns
	size        int   // of the log; 0: no stream
	chunk       int   // tokens in a chunk
	send        func(*client, *outgoing)
	// wake has room for one: somebody may have something to read.
	wake chan struct{}
	// heard: there was a subscriber.
	heard atomic.Bool

	mu      sync.Mutex
	log     []kvRecord // guarded by mu: a ring of at most size records
	oldest  int        // guarded by mu: index of the first record of log
	last    int64      // guarded by mu: seq of the newest record
	bound   *simplelru.LRU[hash.Digest, tokenBinding]
	unbound int64                    // guarded by mu: published chunks whose tokens are not known
	lost    int64                    // guarded by mu: batches that said that records were lost
	subs    map[int64]*kvSubscriber  // guarded by mu: by instance
	gone    []wire.KVEventRecord     // guarded by mu: scratch of record
	seen    map[hash.Digest]struct{} // guarded by mu: scratch of record
}

// tokenBinding is what is told of a stored chunk beside its hash. Once that was
// done, only the log keeps it.
type tokenBinding struct {
	seq    int64  // of the record that has the rest; 0: none yet
	parent []byte // nil for a first chunk
	tokens []byte // as the key had them: most logs are never read
}

// kvRecord is a record of the log. It never changes.
type kvRecord struct {
	wire.KVEventRecord        // without its tokens
	tokens             []byte // msgpack integers
}

// newKVEvents makes a log of size records; one of no size is switched off.
func newKVEvents(size, chunk int, incarnation int64, send func(*client, *outgoing)) *kvEvents {
	e := &kvEvents{
		incarnation: incarnation, size: max(0, size), chunk: chunk, send: send, wake: make(chan struct{}, 1),
		subs: make(map[int64]*kvSubscriber), seen: make(map[hash.Digest]struct{}),
	}
	e.bound, _ = simplelru.NewLRU[hash.Digest, tokenBinding](boundChunks, nil)
	return e
}

func (e *kvEvents) enabled() bool { return e.size > 0 }

// capabilities are what get_experimental lists.
func (e *kvEvents) capabilities() []string {
	if !e.enabled() {
		return nil
	}
	return []string{wire.KVEventCapability}
}

// bind remembers the tokens of chunks that t is about to store. The reference
// knows those of server-driven stores of worker 0 only.
func (e *kvEvents) bind(t *transfer, hashes []hash.Digest, slots []l1cache.Slot) {
	if !e.enabled() || !e.heard.Load() || len(slots) == 0 || t.prompt == nil {
		return
	}
	all, body := t.prompt.Chunks(), t.Tokens
	at, from := t.from, 0 // chunks: the one looked at, and the one that body begins with
	found := make([]tokenBinding, 0, len(slots))
	for _, sl := range slots {
		for at < t.to && all[at] != hashes[sl.Chunk] {
			at++
		}
		if at == t.to {
			break // a chunk twice: the first binding stands
		}
		skip, err := wire.SkipTokens(body, (at-from)*e.chunk)
		if err != nil {
			break
		}
		body, from = body[skip:], at
		n, err := wire.SkipTokens(body, e.chunk)
		if err != nil {
			break
		}
		b := tokenBinding{tokens: append([]byte(nil), body[:n]...)}
		if at > 0 {
			b.parent = append([]byte(nil), all[at-1][:]...)
		}
		found = append(found, b)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, b := range found {
		h := hashes[slots[i].Chunk]
		if old, ok := e.bound.Get(h); !ok || old.seq > 0 {
			e.bound.Add(h, b)
		}
	}
}

// decodeTokens reads n msgpack integers of at most 32 bits.
func decodeTokens(body []byte, n int) ([]uint32, bool) {
	out := make([]uint32, n)
	for i := range out {
		if len(body) == 0 {
			return nil, false
		}
		width, head := 0, body[0]
		switch {
		case head < 0x80:
			out[i] = uint32(head)
			body = body[1:]
			continue
		case head >= 0xcc && head <= 0xcf: // uint 8 to 64
			width = 1 << (head - 0xcc)
		case head >= 0xd0 && head <= 0xd3: // int 8 to 64
			width = 1 << (head - 0xd0)
		default:
			return nil, false
		}
		if len(body) < 1+width {
			return nil, false
		}
		var v uint64
		for _, b := range body[1 : 1+width] {
			v = v<<8 | uint64(b)
		}
		negative := head >= 0xd0 && body[1] >= 0x80
		if negative || v > math.MaxUint32 {
			return nil, false
		}
		out[i] = uint32(v)
		body = body[1+width:]
	}
	return out, true
}

// record notes what happened to objects. It is called in the order of what
// happened, but for two goroutines that change the same object at once.
func (e *kvEvents) record(events []l1cache.ObjectEvent) {
	if !e.enabled() {
		return
	}
	e.mu.Lock()
	before := e.last
	for len(events) > 0 {
		n := 0
		for n < len(events) && events[n].Kind == l1cache.ObjectStored {
			n++
		}
		if n > 0 {
			e.flushGone()
			// The store publishes the last chunk first; readers want each
			// behind its parent.
			for i := n - 1; i >= 0; i-- {
				e.stored(&events[i])
			}
			events = events[n:]
			continue
		}
		if events[0].Kind == l1cache.ObjectGone {
			e.removed(&events[0])
		}
		events = events[1:]
	}
	e.flushGone()
	news := e.last != before && len(e.subs) > 0
	e.mu.Unlock()
	if news {
		e.nudge()
	}
}

// stored appends the record of a chunk. e.mu is held.
func (e *kvEvents) stored(ev *l1cache.ObjectEvent) {
	if ev.Scope.Group != 0 {
		return // another group of the same chunk
	}
	if !e.heard.Load() {
		e.last++
		return
	}
	b, ok := e.bound.Peek(ev.Hash)
	if !ok {
		e.unbound++
		return
	}
	if b.seq > 0 { // another rank, model or salt
		r := e.at(b.seq)
		if r == nil {
			e.unbound++
			return
		}
		b = tokenBinding{parent: r.ParentHash, tokens: r.tokens}
	}
	e.bound.Add(ev.Hash, tokenBinding{seq: e.last + 1})
	e.append(kvRecord{tokens: b.tokens, KVEventRecord: wire.KVEventRecord{
		Kind: wire.KVEventStored, Model: ev.Scope.Model, BlockHashes: [][]byte{append([]byte(nil), ev.Hash[:]...)}, ParentHash: b.parent,
	}})
}

// removed collects the chunks that are gone, a record for each model. e.mu is held.
func (e *kvEvents) removed(ev *l1cache.ObjectEvent) {
	if _, twice := e.seen[ev.Hash]; twice && len(e.gone) == 1 {
		return // another rank or group of the same chunk
	}
	e.seen[ev.Hash] = struct{}{}
	h := append([]byte(nil), ev.Hash[:]...)
	for i := range e.gone {
		if r := &e.gone[i]; r.Model == ev.Scope.Model {
			r.BlockHashes = append(r.BlockHashes, h)
			return
		}
	}
	e.gone = append(e.gone, wire.KVEventRecord{Kind: wire.KVEventRemoved, Model: ev.Scope.Model, BlockHashes: [][]byte{h}})
}

// flushGone appends what removed has collected. e.mu is held.
func (e *kvEvents) flushGone() {
	if len(e.gone) == 0 {
		return
	}
	for _, r := range e.gone {
		e.append(kvRecord{KVEventRecord: r})
	}
	clear(e.gone)
	e.gone = e.gone[:0]
	clear(e.seen)
}

// append adds a record; the oldest makes room. e.mu is held.
func (e *kvEvents) append(r kvRecord) {
	e.last++
	if !e.heard.Load() {
		return
	}
	r.Seq, r.Medium = e.last, wire.KVMediumCPU
	if len(e.log) < e.size {
		e.log = append(e.log, r)
		return
	}
	e.log[e.oldest] = r
	e.oldest = (e.oldest + 1) % e.size
}

// at returns the record of a number, nil when the log does not have it. e.mu is held.
func (e *kvEvents) at(seq int64) *kvRecord {
	first := e.last - int64(len(e.log)) + 1
	if seq < first || seq > e.last {
		return nil
	}
	return &e.log[(e.oldest+int(seq-first))%len(e.log)]
}

// read returns the batch behind a cursor: at most limit records of a model,
// without their tokens, which it returns beside. e.mu is held.
func (e *kvEvents) read(model string, cursor int64, limit int) (b wire.KVEventBatch, tokens [][]byte) {
	b = wire.KVEventBatch{Enabled: e.enabled(), Incarnation: e.incarnation}
	if !e.enabled() {
		return b, nil
	}
	first := e.last - int64(len(e.log)) + 1
	b.Lost = cursor+1 < first || cursor > e.last
	b.NextCursor = min(max(cursor, first-1), e.last)
	for seq := max(first, b.NextCursor+1); seq <= e.last; seq++ {
		r := e.at(seq)
		b.NextCursor = seq
		if r.Model != model {
			continue
		}
		b.Events, tokens = append(b.Events, r.KVEventRecord), append(tokens, r.tokens)
		if len(b.Events) == limit {
			break
		}
	}
	return b, tokens
}

// nudge tells the deliverer that there may be something to do.
func (e *kvEvents) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// status is what /status tells.
func (e *kvEvents) status() httpapi.KVEvents {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgetGone()
	return httpapi.KVEvents{
		Enabled: e.enabled(), Incarnation: e.incarnation, LogDepth: len(e.log), LogCapacity: e.size, NextSeq: e.last + 1,
		LostMarkers: e.lost, UnboundStores: e.unbound, Subscribers: len(e.subs),
	}
}

// kvObserver tells the log of every object, and the metrics of their sample.
type kvObserver struct {
	cacheObserver
	events *kvEvents
	rate   float64 // share of objects that the metrics follow
}

// Sampled implements [l1cache.Sampler].
func (o kvObserver) Sampled(events []l1cache.ObjectEvent) {
	o.events.record(events)
	if o.rate <= 0 {
		return
	}
	sample := events[:0]
	for i := range events {
		if float64(binary.LittleEndian.Uint32(events[i].Hash[:])) < o.rate*(1<<32) {
			sample = append(sample, events[i])
		}
	}
	if len(sample) > 0 {
		o.cacheObserver.Sampled(sample)
	}
}

// observer is what the store tells, and of which share of its objects.
func (s *Server) observer() (o l1cache.Observer, rate float64) {
	rate = s.opt.sampleRate()
	if !s.events.enabled() {
		return cacheObserver{s.met}, rate
	}
	return kvObserver{cacheObserver{s.met}, s.events, rate}, 1
}
