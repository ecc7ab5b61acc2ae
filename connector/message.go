package connector

import (
	"encoding/binary"
	"sync"

	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// uidBytes is the size of a uid: msgpack uint32, always in the long form, so
// that it can be set after the rest of the message was made. Servers do not
// look into it (wire-protocol 1).
const uidBytes = 5

// uidAt is where it lies: behind flags and length of a short frame.
const uidAt = 2

// shortMessageBytes is more than a message without a key needs.
const shortMessageBytes = 1 << 10

// message is one request as it goes over the wire, frame heads included, in a
// buffer that is reused.
type message struct {
	op   wire.Op
	left int // frames still to come
	buf  []byte
	call *Call         // nil for a mark in the queue
	sent chan struct{} // of a mark
}

// messages keeps short ones and those with a key apart: a pool that mixes them
// hands out buffers that have to grow.
var messages, keyMessages = sync.Pool{New: newBuffer}, sync.Pool{New: newBuffer}

func newBuffer() any { return new(message) }

var opFrames = func() (f [wire.NumOps][]byte) {
	for op := range f {
		f[op] = wire.AppendOp(nil, wire.Op(op))
	}
	return f
}()

// newMessage begins a request with so many payloads.
func newMessage(op wire.Op, payloads int) *message {
	return messages.Get().(*message).begin(op, payloads)
}

// newKeyMessage begins one whose first payload is a key.
func newKeyMessage(op wire.Op, payloads int) *message {
	return keyMessages.Get().(*message).begin(op, payloads)
}

func (m *message) begin(op wire.Op, payloads int) *message {
	m.op, m.left = op, payloads
	m.buf = zmtp.AppendHead(m.buf[:0], uidBytes, true)
	m.buf = append(m.buf, 0xce, 0, 0, 0, 0)
	m.buf = zmtp.AppendFrame(m.buf, opFrames[op], payloads > 0)
	return m
}

// frame appends a payload.
func (m *message) frame(p []byte) {
	m.left--
	m.buf = zmtp.AppendFrame(m.buf, p, m.left > 0)
}

// build appends a payload of at most size bytes that fill appends in place, so
// that large ones are not copied.
func (m *message) build(size int, fill func(dst []byte) []byte) {
	m.left--
	const head = 9
	if need := len(m.buf) + head + size; need > cap(m.buf) {
		m.buf = append(make([]byte, 0, need+64), m.buf...)
	}
	at := len(m.buf)
	m.buf = append(m.buf, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	m.buf = fill(m.buf)
	n := len(m.buf) - at - head
	h := zmtp.AppendHead(m.buf[at:at], n, m.left > 0)
	if len(h) < head { // a short frame after all
		copy(m.buf[at+len(h):], m.buf[at+head:])
		m.buf = m.buf[:at+len(h)+n]
	}
}

// key appends a key.
func (m *message) key(k *wire.Key) {
	m.build(len(k.Tokens)+len(k.Model)+len(k.RequestID)+len(k.Salt)+len(k.Configs)+256, func(dst []byte) []byte { return wire.AppendKey(dst, k) })
}

func (m *message) int(v int64) {
	var b [9]byte
	m.frame(wire.AppendInt(b[:0], v))
}

func (m *message) setUID(uid uint32) { binary.BigEndian.PutUint32(m.buf[uidAt+1:], uid) }

// release gives the buffer back, unless it is large.
func (m *message) release() {
	pool := &messages
	switch n := cap(m.buf); {
	case n > pooledMessageBytes:
		return
	case n > shortMessageBytes:
		pool = &keyMessages
	}
	*m = message{buf: m.buf[:0]}
	pool.Put(m)
}
