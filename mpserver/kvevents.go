package mpserver

import (
	"context"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// stream is a disabled subscription that has not been ended: the end frame must
// wait for the client's "ack" or "cancel", or the client loses the batch and
// subscribes again without a pause.
type stream struct {
	op []byte
}

// maxStreams bounds the open subscriptions of one client.
const maxStreams = 64

// handleSubscribeKVEvents answers one batch that says "disabled": the client
// gives the stream up for good and reports its own stores.
func handleSubscribeKVEvents(s *Server, _ context.Context, r *request) reply {
	return s.failed(r, "")
}

func failSubscribe(s *Server, r *request) reply {
	r.client.openStream(r.uid, r.opFrame)
	return value(wire.AppendKVEventBatch(nil, &wire.KVEventBatch{Incarnation: s.start.UnixNano()}))
}

// openStream remembers a subscription. The newest win.
func (c *client) openStream(uid, op []byte) {
	c.streamMu.Lock()
	defer c.streamMu.Unlock()
	if c.streams == nil {
		c.streams, _ = simplelru.NewLRU[string, stream](maxStreams, nil)
	}
	c.streams.Add(string(uid), stream{op: append([]byte(nil), op...)})
}

// endStream forgets a subscription and returns its op frame.
func (c *client) endStream(uid []byte) (op []byte, ok bool) {
	c.streamMu.Lock()
	defer c.streamMu.Unlock()
	if c.streams == nil {
		return nil, false
	}
	st, ok := c.streams.Get(string(uid))
	if ok {
		c.streams.Remove(string(uid))
	}
	return st.op, ok
}

// streamControl takes [uid][""]["ack" | "cancel"], on the goroutine that reads from c.
func (s *Server) streamControl(c *client, frames [][]byte) {
	if len(frames) != 3 {
		s.met.Dropped("stream_control")
		return
	}
	switch string(frames[2]) {
	case "ack", "cancel":
		if op, ok := c.endStream(frames[0]); ok {
			s.send(c, &outgoing{uid: frames[0], op: op}, true)
		}
	default:
		s.met.Dropped("stream_control")
	}
}
