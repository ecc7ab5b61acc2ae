package mpserver

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/hash"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

const (
	// maxInstances bounds registered workers; a node has a few dozen.
	maxInstances = 4096
	// maxStrangers bounds the unknown ids whose PING was answered False once.
	maxStrangers = 4096
)

// instance is a registered worker. All fields but those set at registration
// are guarded by instances.mu.
type instance struct {
	id         int64
	layout     *layout
	engine     bool          // engine-driven: the worker copies
	driven     *serverDriven // the server copies; nil for engine-driven and ill ones
	ill        bool          // its registration could not be served (--on-register-failure degrade)
	registered time.Time

	conn     *client // who spoke for it last
	lastSeen time.Time
	pinged   bool
	lastErr  string
	hands    map[handKey]*hand
}

// handKey names what a worker has in its hands between PREPARE and COMMIT. The
// reference keys it without request id and last hash, and then mixes up two
// equal requests in flight.
type handKey struct {
	write      bool
	requestID  string
	salt       string
	start, end int
	worker     int
	last       hash.Digest // chain hash of the range's last chunk
}

// hand is memory of the pool that a worker writes or reads itself.
type hand struct {
	key handKey
	res *l1cache.Reservation // of a write
	// Of a read: equal PREPARE_RETRIEVEs in flight, each of which is
	// committed, and what they hold. A repeated one that found no hold of its
	// own reads under those that are there.
	reads int
	held  []*heldRead
}

// heldRead is a hit that a worker reads out of the pool.
type heldRead struct {
	tr      *l1cache.Transfer
	scratch *l1cache.Reservation // its objects in the worker's order; nil when they were
	slots   []wire.Slot
}

func (h *heldRead) done() {
	h.tr.Done()
	if h.scratch != nil {
		h.scratch.Release()
	}
}

// modelKey names a layout.
type modelKey struct {
	model     string
	worldSize int
}

// modelEntry is a registered layout and how many instances use it.
type modelEntry struct {
	layout *layout
	refs   int
	ill    int // refs of ill instances: while there is one, lookups count 0
}

// limboKey is what a late COMMIT names.
type limboKey struct {
	instance int64
	key      handKey
}

// limboEntry is a slot of an instance that was dropped while its process may
// still write there.
type limboEntry struct {
	conn *client
	hand *hand
}

// instances is the table of workers and of the layouts that they registered.
type instances struct {
	mu        sync.Mutex
	byID      map[int64]*instance             // guarded by mu
	models    map[modelKey]*modelEntry        // guarded by mu
	strangers *simplelru.LRU[int64, struct{}] // guarded by mu: unknown ids that were told False
	limbo     map[limboKey]limboEntry         // guarded by mu
	closing   map[*serverDriven]closing       // guarded by mu: ended, and copies still on their way
	closed    bool                            // guarded by mu: the server stops
	// retire is told of the streams and mappings of instances that have
	// ended; it must not block.
	retire func(*serverDriven, ending)
}

// closing is what is left of a server-driven instance that has ended.
type closing struct {
	model string
	since time.Time
}

func newInstances(retire func(*serverDriven, ending)) *instances {
	t := &instances{
		retire: retire, byID: map[int64]*instance{}, models: map[modelKey]*modelEntry{},
		limbo: map[limboKey]limboEntry{}, closing: map[*serverDriven]closing{},
	}
	t.strangers, _ = simplelru.NewLRU[int64, struct{}](maxStrangers, nil)
	return t
}

// Errors of a registration.
var (
	errTooManyInstances = errors.New("too many registered workers")
	errStopping         = errors.New("the server is stopping")
	errLayoutConflict   = errors.New("another worker of this model and world size has registered a different KV layout")
)

// refresh notes a registration of what is registered already; false when there
// is something new in it.
func (t *instances) refresh(id int64, l *layout, engine bool, c *client, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.byID[id]
	if in == nil || in.ill || in.engine != engine || !in.layout.identical(l) {
		return false
	}
	in.conn, in.lastSeen = c, now
	return true
}

// register adds in. A known id is the same process starting over: what it had
// in its hands goes into limbo, and what the server held of it is returned,
// being closed.
func (t *instances) register(in *instance, now time.Time) (former *serverDriven, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.strangers.Remove(in.id)
	mk := modelKey{in.layout.model, in.layout.worldSize}
	if t.closed {
		return nil, errStopping
	}
	if old := t.byID[in.id]; old != nil {
		former = old.driven
		t.drop(old, endDoubtful)
	}
	if len(t.byID) >= maxInstances {
		return former, fmt.Errorf("%w (%d): unregister some or restart the server", errTooManyInstances, maxInstances)
	}
	e := t.models[mk]
	if e != nil && !in.ill && e.refs > e.ill && !e.layout.same(in.layout) {
		return former, fmt.Errorf("%w: registered is %s, this worker has %s: give one of the engines another model name, or its own server", errLayoutConflict, e.layout.fingerprint, in.layout.fingerprint)
	}
	if e == nil {
		e = &modelEntry{}
		t.models[mk] = e
	}
	e.refs++
	if in.ill {
		e.ill++
	} else {
		e.layout = in.layout
	}
	in.registered, in.lastSeen = now, now
	in.hands = map[handKey]*hand{}
	t.byID[in.id] = in
	return former, nil
}

// drop removes in. If its process may still use the slots in its hands, they
// go into limbo, and otherwise their memory returns at once. mu is held.
func (t *instances) drop(in *instance, why ending) {
	delete(t.byID, in.id)
	t.strangers.Remove(in.id)
	mk := modelKey{in.layout.model, in.layout.worldSize}
	if e := t.models[mk]; e != nil {
		e.refs--
		if in.ill {
			e.ill--
		}
		if e.refs == 0 {
			delete(t.models, mk)
		}
	}
	for k, h := range in.hands {
		if why != endDoubtful {
			h.release()
			continue
		}
		if h.res != nil {
			h.res.Quarantine()
		}
		t.limbo[limboKey{in.id, k}] = limboEntry{conn: in.conn, hand: h}
	}
	in.hands = nil
	if in.driven != nil {
		t.closing[in.driven] = closing{in.layout.model, time.Now()}
		t.retire(in.driven, why)
	}
}

// retired forgets d: nothing touches its memory any more.
func (t *instances) retired(d *serverDriven) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.closing, d)
}

// lost drops the instance of d, if it is still that: its memory has gone.
func (t *instances) lost(d *serverDriven) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.byID[d.instance]
	if in == nil || in.driven != d {
		return false
	}
	t.drop(in, endDoubtful)
	return true
}

// release ends a hand: nobody uses its memory any more.
func (h *hand) release() {
	if h.res != nil {
		h.res.Release()
	}
	for _, r := range h.held {
		r.done()
	}
}

// unregister removes id and returns what it was, nil when it was unknown.
func (t *instances) unregister(id int64) *instance {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.byID[id]
	if in != nil {
		t.drop(in, endAsked)
	}
	return in
}

// armPing makes the next PING of id hear False, after a registration that failed.
func (t *instances) armPing(id int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.strangers.Remove(id)
}

// ping notes a heartbeat and is its answer: False once for an id that is not
// registered (or ill), so that the unmodified worker registers again.
func (t *instances) ping(id int64, c *client, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if in := t.byID[id]; in != nil {
		in.conn, in.lastSeen, in.pinged = c, now, true
		if !in.ill {
			return true
		}
	}
	if t.strangers.Contains(id) {
		return true
	}
	t.strangers.Add(id, struct{}{})
	return false
}

// get returns the instance of id for a transfer and notes that it lives; nil
// when it is unknown, ill, or of the other transfer mode.
func (t *instances) get(id int64, engine bool, c *client, now time.Time) *instance {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.byID[id]
	if in == nil {
		return nil
	}
	in.conn, in.lastSeen = c, now
	if in.ill || in.engine != engine {
		return nil
	}
	return in
}

// copied returns the instance of id if the server copies for it.
func (t *instances) copied(id int64) *instance {
	t.mu.Lock()
	defer t.mu.Unlock()
	if in := t.byID[id]; in != nil && in.driven != nil {
		return in
	}
	return nil
}

// model returns the layout registered for a pair, nil when there is none to
// serve; ill reports that a worker of the pair could not be served.
func (t *instances) model(model string, worldSize int) (l *layout, ill bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.models[modelKey{model, worldSize}]
	if e == nil {
		return nil, false
	}
	if e.ill > 0 {
		return nil, true
	}
	return e.layout, false
}

// handsFull reports whether in already has k in its hands, or a slot of that
// name lies in limbo: reserving again would make its commit ambiguous.
func (t *instances) handsFull(in *instance, k handKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, limbo := t.limbo[limboKey{in.id, k}]
	return limbo || in.hands[k] != nil || in.hands == nil
}

// endOneRead takes one of several equal reads out of h, with what it holds
// unless the rest needs it.
func (h *hand) endOneRead() *hand {
	h.reads--
	last := len(h.held) - 1
	if last < h.reads {
		return nil
	}
	one := &hand{key: h.key, held: []*heldRead{h.held[last]}}
	h.held = h.held[:last]
	return one
}

// give puts the write h into the hands of in; false when in has ended meanwhile (the
// caller keeps h) or k is there already.
func (t *instances) give(in *instance, h *hand) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if in.hands == nil || in.hands[h.key] != nil {
		return false
	}
	in.hands[h.key] = h
	return true
}

// giveRead puts a read into the hands of in. Without a hold of its own (nil) it
// shares that of an equal read in flight, if there is one. It returns what to
// read under; nil when there is none or in has ended (the caller keeps own).
func (t *instances) giveRead(in *instance, k handKey, own *heldRead) *heldRead {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := in.hands[k]
	if in.hands == nil || h == nil && own == nil {
		return nil
	}
	if h == nil {
		h = &hand{key: k}
		in.hands[k] = h
	}
	if own != nil {
		h.held = append(h.held, own)
	}
	h.reads++
	return h.held[0]
}

// takeBack removes k from the hands of instance id. late reports that it lay
// in limbo: its bytes must not be published.
func (t *instances) takeBack(id int64, k handKey) (h *hand, late bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if in := t.byID[id]; in != nil {
		if h = in.hands[k]; h != nil {
			if h.reads > 1 {
				return h.endOneRead(), false
			}
			delete(in.hands, k)
			return h, false
		}
	}
	lk := limboKey{id, k}
	if e, ok := t.limbo[lk]; ok {
		delete(t.limbo, lk)
		return e.hand, true
	}
	return nil, false
}

// reaped is an instance that a sweep dropped.
type reaped struct {
	id     int64
	model  string
	reason string
	silent time.Duration
	hands  int
}

// sweep drops silent workers and those whose connection has ended, moves
// expired reservations out of others' way, and gives back what lay in limbo
// for connections that have ended.
func (t *instances) sweep(now time.Time, o *Options) (out []reaped) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, e := range t.limbo {
		if e.conn == nil || e.conn.goneFor(o.ConnectionGrace, now) {
			e.hand.release()
			delete(t.limbo, k)
		}
	}
	for _, in := range t.byID {
		silent := now.Sub(in.lastSeen)
		budget := o.WorkerRegistrationGrace
		if in.pinged {
			budget = o.WorkerReapTimeout
		}
		r := reaped{id: in.id, model: in.layout.model, silent: silent, hands: len(in.hands)}
		switch {
		case in.conn != nil && in.conn.goneFor(o.ConnectionGrace, now):
			r.reason = "connection_gone"
			t.drop(in, endGone)
		case o.WorkerReapTimeout > 0 && silent > budget:
			r.reason = "silent"
			t.drop(in, endDoubtful)
		default:
			for _, h := range in.hands {
				if h.res != nil && h.res.Expired() {
					h.res.Quarantine()
				}
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// close gives everything back: no client is served any more.
func (t *instances) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, in := range t.byID {
		t.drop(in, endAsked)
	}
	for k, e := range t.limbo {
		e.hand.release()
		delete(t.limbo, k)
	}
}
