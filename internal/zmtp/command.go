package zmtp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
)

// Heartbeats of ZMTP 3.1 (rfc.zeromq.org/spec/37).
const (
	// ttlUnit is what the time to live of a PING counts.
	ttlUnit = 100 * time.Millisecond
	// maxPingContext is what a PONG must send back.
	maxPingContext = 16
)

// command takes a command of the peer. Unknown ones mean nothing to us.
func (p *Peer) command(body []byte) error {
	if rest, ok := bytes.CutPrefix(body, []byte("\x04PING")); ok {
		if len(rest) < 2 || len(rest) > 2+maxPingContext {
			return fmt.Errorf("%w: a PING of %d bytes", ErrProtocol, len(body))
		}
		// If nothing at all comes for that long, the peer wants to be given up.
		p.ttl = time.Duration(binary.BigEndian.Uint16(rest)) * ttlUnit
		return p.pong(rest[2:])
	}
	if bytes.HasPrefix(body, []byte("\x05ERROR")) {
		return fmt.Errorf("%w: the peer ends the connection: %.64q", ErrProtocol, body)
	}
	return nil
}

// pong answers a PING, behind what was sent before. A queue that is full
// shows that the peer is not there to see it.
func (p *Peer) pong(context []byte) error {
	p.mu.Lock()
	if !p.gone && p.msgs+p.outs < p.sock.opt.QueueMessages {
		if p.tail == nil {
			p.tail, p.spare = p.spare, nil
		}
		p.tail = appendCommand(p.tail, append([]byte("\x04PONG"), context...))
		p.msgs++
	}
	p.mu.Unlock()
	if p.held.IsZero() {
		p.held = time.Now()
	}
	return nil
}
