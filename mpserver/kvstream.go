package mpserver

import (
	"context"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

const (
	// maxStreams bounds the open subscriptions of one client, maxSubscribers
	// those of all.
	maxStreams     = 64
	maxSubscribers = 1024
)

// stream is a subscription that has not been ended. Without a subscriber it is
// of a log that is switched off, and its one batch is sent: the end frame must
// wait for the client's "ack" or "cancel", or the client loses the batch and
// subscribes again without a pause.
type stream struct {
	op  []byte
	sub *kvSubscriber
}

// kvSubscriber is a reader of the log. It gets a batch for each credit, and has
// at most one.
type kvSubscriber struct {
	client   *client
	uid, op  []byte
	instance int64
	model    string
	limit    int
	cursor   int64 // guarded by kvEvents.mu, as what follows
	credit   bool
	begun    bool // the first batch, which may be empty, is on its way
	ended    bool
}

// handleSubscribeKVEvents opens a stream of batches, of which the first is sent
// at once. Its answer is the first batch of the stream.
func handleSubscribeKVEvents(s *Server, _ context.Context, r *request) reply {
	if !s.events.enabled() {
		return s.failed(r, "")
	}
	instance, err1 := wire.DecodeInt(r.payloads[0])
	model, err2 := wire.DecodeString(r.payloads[1])
	cursor, err3 := wire.DecodeInt(r.payloads[2])
	limit, err4 := wire.DecodeInt(r.payloads[3])
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || cursor < 0 || limit < 1 || limit > wire.MaxKVEvents {
		return s.failed(r, "payload")
	}
	sub := &kvSubscriber{
		client: r.client, uid: append([]byte(nil), r.uid...), op: append([]byte(nil), r.opFrame...),
		instance: instance, model: model, limit: int(limit), cursor: cursor, credit: true,
	}
	// Before a batch can leave, whose acknowledgement must find it.
	if evicted := r.client.openStream(r.uid, r.opFrame, sub); evicted != nil {
		s.events.end(evicted)
		s.events.sendEnd(evicted)
	}
	former, ok := s.events.subscribe(sub)
	if !ok {
		return s.failed(r, "too_many_streams")
	}
	if former != nil && former.client.endStream(former.uid) {
		s.events.sendEnd(former)
	}
	s.events.nudge()
	return reply{kind: replyLater}
}

// failSubscribe answers one batch that says "disabled": the client gives the
// stream up for good and reports its own stores. A server that stops says
// nothing: the client subscribes again when there is another one.
func failSubscribe(s *Server, r *request) reply {
	if s.draining.Load() {
		return reply{kind: replyLater}
	}
	r.client.openStream(r.uid, r.opFrame, nil)
	return value(wire.AppendKVEventBatch(nil, &wire.KVEventBatch{Incarnation: s.start.UnixNano()}))
}

// openStream remembers a subscription. The newest win: it returns the reader of
// one that is forgotten.
func (c *client) openStream(uid, op []byte, sub *kvSubscriber) (evicted *kvSubscriber) {
	c.streamMu.Lock()
	defer c.streamMu.Unlock()
	if c.streams == nil {
		c.streams, _ = simplelru.NewLRU[string, stream](maxStreams, nil)
	}
	if c.streams.Len() == maxStreams && !c.streams.Contains(string(uid)) {
		_, st, _ := c.streams.RemoveOldest()
		evicted = st.sub
	}
	c.streams.Add(string(uid), stream{op: append([]byte(nil), op...), sub: sub})
	return evicted
}

// stream returns a subscription.
func (c *client) stream(uid []byte) (st stream, ok bool) {
	c.streamMu.Lock()
	defer c.streamMu.Unlock()
	if c.streams == nil {
		return st, false
	}
	return c.streams.Get(string(uid))
}

// endStream forgets a subscription and reports whether there was one.
func (c *client) endStream(uid []byte) bool {
	c.streamMu.Lock()
	defer c.streamMu.Unlock()
	return c.streams != nil && c.streams.Remove(string(uid))
}

// streamControl takes [uid][""]["ack" | "cancel"], on the goroutine that reads from c.
func (s *Server) streamControl(c *client, frames [][]byte) {
	if len(frames) != 3 {
		s.met.Dropped("stream_control")
		return
	}
	control := string(frames[2])
	if control != "ack" && control != "cancel" {
		s.met.Dropped("stream_control")
		return
	}
	st, ok := c.stream(frames[0])
	switch {
	case !ok: // of a stream that has ended
	case st.sub != nil && control == "ack":
		s.events.acknowledged(st.sub)
	case c.endStream(frames[0]):
		if st.sub != nil {
			s.events.end(st.sub)
		}
		s.send(c, &outgoing{uid: frames[0], op: st.op}, true)
	}
}

// subscribe adds a reader and returns the one of the same instance, which ends.
func (e *kvEvents) subscribe(sub *kvSubscriber) (former *kvSubscriber, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgetGone()
	former = e.subs[sub.instance]
	if former == nil && len(e.subs) >= maxSubscribers {
		return nil, false
	}
	if former != nil {
		former.ended = true
	}
	e.subs[sub.instance] = sub
	e.heard.Store(true)
	return former, true
}

// end removes a reader.
func (e *kvEvents) end(sub *kvSubscriber) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sub.ended = true
	if e.subs[sub.instance] == sub {
		delete(e.subs, sub.instance)
	}
}

// forgetGone removes the readers whose connection has ended. e.mu is held.
func (e *kvEvents) forgetGone() {
	for id, sub := range e.subs {
		if sub.client.isGone() {
			sub.ended = true
			delete(e.subs, id)
		}
	}
}

// acknowledged gives a reader its next credit.
func (e *kvEvents) acknowledged(sub *kvSubscriber) {
	e.mu.Lock()
	sub.credit = true
	more := sub.cursor < e.last
	e.mu.Unlock()
	if more {
		e.nudge()
	}
}

// sendEnd sends the end frame of a stream.
func (e *kvEvents) sendEnd(sub *kvSubscriber) {
	e.send(sub.client, &outgoing{uid: sub.uid, op: sub.op})
}

// run sends batches until stop is closed.
func (e *kvEvents) run(stop <-chan struct{}) {
	var due []delivery
	for {
		select {
		case <-stop:
			return
		case <-e.wake:
		}
		due = e.due(due[:0])
		for i := range due {
			d := &due[i]
			for j, body := range d.tokens {
				if body != nil {
					d.batch.Events[j].TokenIDs, _ = decodeTokens(body, e.chunk) // ids beyond 32 bits are not told
				}
			}
			e.send(d.sub.client, &outgoing{uid: d.sub.uid, op: d.sub.op, value: wire.AppendKVEventBatch(nil, &d.batch), hasValue: true})
			*d = delivery{}
		}
	}
}

// delivery is a batch on its way, whose tokens are still to be read.
type delivery struct {
	sub    *kvSubscriber
	batch  wire.KVEventBatch
	tokens [][]byte
}

// due takes the next batch of every reader that has a credit and something to
// read.
func (e *kvEvents) due(out []delivery) []delivery {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgetGone()
	for _, sub := range e.subs {
		if !sub.credit {
			continue
		}
		b, tokens := e.read(sub.model, sub.cursor, sub.limit)
		sub.cursor = b.NextCursor
		if sub.begun && len(b.Events) == 0 && !b.Lost {
			continue
		}
		if b.Lost {
			e.lost++
		}
		sub.begun, sub.credit = true, false
		out = append(out, delivery{sub, b, tokens})
	}
	return out
}
