package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// maxDepth is what the low bits of a uid can number.
const maxDepth = 1 << 10

// client is one connection and the requests in flight on it. It belongs to one
// goroutine.
type client struct {
	cfg   *config
	index int
	conn  conn
	st    *stats

	opFrames [wire.NumOps][]byte
	flights  []flight
	idle     []int
	inflight int // requests of the workload; 0 while the client calls singly

	chunkTokens int
	chunks      int // of a prompt
	instance    []byte
	one         []byte
	registered  bool
	lookKey     *keyTemplate
	xferKey     *keyTemplate
	data        *dataPlane

	rng    *rand.Rand
	seq    uint64
	set    []uint32 // stored prompts
	recent []uint32 // prompts in the order in which they were stored
}

// flight is one request cycle: at most one message of it is on the wire, so its
// number, with a generation, is the uid.
type flight struct {
	c      *client
	slot   int
	gen    uint32
	uid    [5]byte
	op     wire.Op
	next   func(*flight, []byte, bool) error
	rid    [ridBytes]byte
	ridMsg []byte
	token  uint32
	hits   int
	start  time.Time // of the cycle
	since  time.Time // of the transfer
	bytes  int64
}

func newClient(cfg *config, index int) (*client, error) {
	nc, err := dial(cfg.Transport, cfg.URL, cfg.Timeout)
	if err != nil {
		return nil, err
	}
	c := &client{
		cfg: cfg, index: index, conn: nc, st: newStats(),
		one: wire.AppendInt(nil, 1), rng: rand.New(rand.NewPCG(uint64(cfg.Salt), uint64(index))),
	}
	c.instance = wire.AppendInt(nil, 1<<40+c.rng.Int64N(1<<40))
	for op := range c.opFrames {
		c.opFrames[op] = wire.AppendOp(nil, wire.Op(op))
	}
	c.flights = make([]flight, cfg.Depth)
	for i := range c.flights {
		c.flights[i] = flight{c: c, slot: i}
		c.idle = append(c.idle, i)
	}
	if err := c.setUp(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// setUp does what a client does before its first request.
func (c *client) setUp() error {
	v, _, err := c.call(wire.OpGetChunkSize)
	if err != nil {
		return err
	}
	size, err := wire.DecodeInt(v)
	if err != nil || size < blockTokens || size > 1<<20 {
		return fmt.Errorf("chunk size % x: %w", v, err)
	}
	c.chunkTokens = int(size)
	if !c.cfg.transfers() {
		return nil
	}
	tokens := c.cfg.Tokens
	c.chunks = tokens / c.chunkTokens
	if c.cfg.Ops != "lookup" {
		c.chunks = c.cfg.Chunks
		tokens = c.chunks * c.chunkTokens
	}
	mark := min(c.cfg.SharedPrefix, tokens-1)
	base := baseTokens(tokens, mark)
	end := c.chunks * c.chunkTokens
	if c.lookKey, err = newKeyTemplate(c.cfg.Model, base, -1, 0, end, mark); err != nil {
		return err
	}
	if c.xferKey, err = newKeyTemplate(c.cfg.Model, base, 0, 0, end, mark); err != nil {
		return err
	}
	return c.register()
}

func (c *client) register() error {
	l := layouts[c.cfg.Layout]
	id, err := wire.DecodeInt(c.instance)
	if err != nil {
		return err
	}
	reg := wire.EngineDrivenContext{
		InstanceID: id, Model: c.cfg.Model, WorldSize: 1, BlockSize: blockTokens, NumLayers: l.layers,
		HiddenDim: l.hidden(), DType: dtype, NumPhysicalSlots: c.chunkTokens,
	}
	v, ok, err := c.call(wire.OpRegisterEngineDriven, wire.AppendEngineDrivenContext(nil, &reg))
	if err != nil || !ok {
		return errors.Join(errors.New("register: no answer with a value"), err)
	}
	c.registered = true
	name, size, err := wire.DecodeEngineDrivenReply(v)
	if err != nil {
		return err
	}
	mode := "pickle"
	if name != "" && size > 0 {
		mode = "shm"
	}
	if mode != c.cfg.Mode {
		return fmt.Errorf("the server negotiated %s, --mode is %s: start it accordingly", mode, c.cfg.Mode)
	}
	if c.cfg.moves() || c.cfg.prefilled() {
		c.data, err = newDataPlane(c, name, size)
	}
	return err
}

// close unregisters and disconnects; it may be called once.
func (c *client) close() error {
	var err error
	if c.registered {
		_, _, err = c.call(wire.OpUnregisterEngineDriven, c.instance)
	}
	return errors.Join(err, c.data.close(), c.conn.close())
}

// post sends a message of a flight; next gets the reply.
func (f *flight) post(op wire.Op, next func(*flight, []byte, bool) error, payloads ...[]byte) error {
	f.gen++
	f.op, f.next = op, next
	f.uid[0] = 0xce // msgpack uint32
	binary.BigEndian.PutUint32(f.uid[1:], f.gen<<10|uint32(f.slot))
	var frames [5][]byte
	n := copy(frames[:], [][]byte{f.uid[:], f.c.opFrames[op]})
	n += copy(frames[n:], payloads)
	return f.c.conn.send(frames[:n]...)
}

// handle gives a reply to the flight it belongs to.
func (c *client) handle(m [][]byte) error {
	if len(m) < 2 || len(m) > 3 || len(m[0]) != 5 {
		return fmt.Errorf("a reply of %d frames", len(m))
	}
	slot := int(binary.BigEndian.Uint32(m[0][1:]) & (maxDepth - 1))
	if slot >= len(c.flights) {
		return fmt.Errorf("a reply with an unknown uid % x", m[0])
	}
	f := &c.flights[slot]
	if f.next == nil || !bytes.Equal(m[0], f.uid[:]) {
		return fmt.Errorf("a second reply, or one to uid % x, which nobody sent", m[0])
	}
	if !bytes.Equal(m[1], c.opFrames[f.op]) {
		return fmt.Errorf("%v was refused (op frame % x)", f.op, m[1])
	}
	next := f.next
	f.next = nil
	if len(m) == 3 {
		return next(f, m[2], true)
	}
	return next(f, nil, false)
}

// call sends one request and waits for its reply, which stays valid until the
// next receive. Nothing else may be in flight.
func (c *client) call(op wire.Op, payloads ...[]byte) (value []byte, ok bool, err error) {
	done := false
	err = c.flights[0].post(op, func(_ *flight, v []byte, present bool) error {
		value, ok, done = v, present, true
		return nil
	}, payloads...)
	for err == nil && !done {
		err = c.pump(c.cfg.Timeout)
	}
	if err != nil {
		err = fmt.Errorf("%v: %w", op, err)
	}
	return value, ok, err
}

// pump flushes, waits for a reply, and handles it and all others that came
// with it.
func (c *client) pump(wait time.Duration) error {
	if err := c.conn.flush(); err != nil {
		return err
	}
	m, err := c.conn.recv(wait)
	for err == nil {
		if err := c.handle(m); err != nil {
			return err
		}
		m, err = c.conn.recv(0)
		if errors.Is(err, errNothing) {
			return nil
		}
	}
	if errors.Is(err, errNothing) {
		return fmt.Errorf("no reply within %v", wait)
	}
	return err
}

// run keeps depth requests in flight until the deadline, or until --requests
// were begun. The last of them are left in flight, for drain.
func (c *client) run(deadline time.Time) error {
	first := c.seq
	more := func() bool { return c.cfg.Requests == 0 || c.seq-first < uint64(c.cfg.Requests) }
	for time.Now().Before(deadline) && (more() || c.inflight > 0) {
		for c.inflight < c.cfg.Depth && more() {
			if err := c.startOne(); err != nil {
				return err
			}
		}
		if err := c.pump(c.cfg.Timeout); err != nil {
			return err
		}
	}
	return nil
}

// drain waits for everything in flight.
func (c *client) drain() error {
	for c.inflight > 0 {
		if err := c.pump(c.cfg.Timeout); err != nil {
			return err
		}
	}
	return nil
}

// take starts a cycle on an idle flight.
func (c *client) take() *flight {
	slot := c.idle[len(c.idle)-1]
	c.idle = c.idle[:len(c.idle)-1]
	c.inflight++
	c.seq++
	f := &c.flights[slot]
	if c.registered { // others have no sessions
		copy(f.rid[:], fmt.Appendf(f.rid[:0], "c%03d-%07d-%010d-", c.index, c.cfg.Salt, c.seq))
		f.ridMsg = append(append(f.ridMsg[:0], 0xa0|ridBytes), f.rid[:]...) // msgpack fixstr
	}
	f.start = time.Now()
	return f
}

// done ends a cycle.
func (f *flight) done() {
	f.c.idle = append(f.c.idle, f.slot)
	f.c.inflight--
}
