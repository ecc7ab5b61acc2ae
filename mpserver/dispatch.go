package mpserver

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/zmtp"
	"github.com/lmcache-go/lmcache-go/mpserver/metrics"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// request is one message on its way.
type request struct {
	client   *client
	uid      []byte
	opFrame  []byte // echoed as received
	op       wire.Op
	payloads [][]byte
	size     int // bytes of all payloads
	row      *operation
	received time.Time
	answered atomic.Bool
	// msg holds the frames of a request that left the connection's buffer.
	msg zmtp.Message
	// placed is what of its bytes lies in the pool already, nil for nothing.
	placed *placed
}

// reply is what a handler says.
type reply struct {
	value  []byte
	kind   replyKind
	reason string // of a failure, for the metric and the debug log
	// pieces are a value that is not in one piece; done is called when nobody
	// reads them any more.
	pieces [][]byte
	done   func()
}

type replyKind uint8

const (
	replyEmpty  replyKind = iota // None: two frames
	replyValue                   // three frames
	replyRefuse                  // two frames, the op frame of another operation (wire-protocol 3.1)
	replyLater                   // the handler has parked the request and will answer itself
)

func value(v []byte) reply { return reply{kind: replyValue, value: v} }

func (r reply) because(reason string) reply {
	r.reason = reason
	return r
}

var (
	empty  = reply{kind: replyEmpty}
	refuse = reply{kind: replyRefuse}
)

// operation is one row of the table: a new operation is one row and one handler.
type operation struct {
	class laneClass
	// inline: may run on the goroutine that reads from the client when the
	// frames are small and nothing of the same client and class waits. Such a
	// handler keeps nothing of the frames, which are then used again, unless it
	// answers later.
	inline bool
	// deadline bounds the way from reception to the start of the handler; the
	// handler's context carries what is left.
	deadline time.Duration
	handle   func(*Server, context.Context, *request) reply
	// fail is the answer to bad arity, bad payloads, a full queue, a passed
	// deadline and a panic (wire-protocol 3.1).
	fail func(*Server, *request) reply
}

const (
	// inlineBytes is the largest request that is answered without a lane.
	// Handing over costs 40-80 % more CPU than answering; parsing this much costs
	// some 2 ms, which is what the same client's next request then waits.
	inlineBytes = 1 << 20
	// Deadlines: a lookup that comes late is a miss, cheaper than waiting; a
	// retrieve is a promise that the engine depends on.
	deadlineShort = 10 * time.Second
	deadlineLong  = 120 * time.Second
)

// table is every operation that a default server registers; whatever is not
// in it is refused.
var table = [wire.NumOps]operation{
	wire.OpNoop:                   {laneRequest, true, deadlineShort, handleNoop, failRefuse},
	wire.OpGetChunkSize:           {laneRequest, true, deadlineShort, handleGetChunkSize, failRefuse},
	wire.OpGetExperimental:        {laneRequest, true, deadlineShort, handleGetExperimental, failRefuse},
	wire.OpPing:                   {laneRequest, true, deadlineShort, handlePing, failFalse},
	wire.OpClear:                  {laneRequest, false, deadlineLong, handleClear, failRefuse},
	wire.OpReportBlockAllocation:  {laneRequest, true, deadlineShort, handleReportBlockAllocation, failEmpty},
	wire.OpLookup:                 {laneRequest, true, deadlineShort, handleLookup, failLookup},
	wire.OpQueryPrefetchStatus:    {laneRequest, true, deadlineShort, handleQueryPrefetchStatus, failZero},
	wire.OpWaitPrefetchStatus:     {laneRequest, true, deadlineShort, handleWaitPrefetchStatus, failZero},
	wire.OpFreeLookupLocks:        {laneRequest, true, deadlineLong, handleFreeLookupLocks, failEmpty},
	wire.OpEndSession:             {laneRequest, true, deadlineLong, handleEndSession, failEmpty},
	wire.OpRegisterEngineDriven:   {laneTransfer, true, deadlineLong, handleRegisterEngineDriven, failRegister},
	wire.OpUnregisterEngineDriven: {laneTransfer, true, deadlineLong, handleUnregister, failEmpty},
	wire.OpPrepareStore:           {laneTransfer, true, deadlineLong, handlePrepareStore, failPrepareStore},
	wire.OpCommitStore:            {laneTransfer, true, deadlineLong, handleCommitStore, failFalse},
	wire.OpPrepareRetrieve:        {laneTransfer, true, deadlineLong, handlePrepareRetrieve, failPrepareRetrieve},
	wire.OpCommitRetrieve:         {laneTransfer, true, deadlineLong, handleCommitRetrieve, failFalse},
	wire.OpRegisterKVCache:        {laneTransfer, false, deadlineLong, handleRegisterKVCache, failRegister},
	wire.OpUnregisterKVCache:      {laneTransfer, false, deadlineLong, handleUnregister, failEmpty},
	wire.OpStore:                  {laneTransfer, false, deadlineLong, handleStore, failStore},
	wire.OpRetrieve:               {laneTransfer, false, deadlineLong, handleRetrieve, failStore},
	wire.OpP2PLookupAndLock:       {laneRequest, true, deadlineShort, handleP2PLookup, failP2PLookup},
	wire.OpP2PQueryLookupResults:  {laneRequest, true, deadlineShort, handleP2PQuery, failEmpty},
	wire.OpP2PUnlockObjects:       {laneRequest, true, deadlineShort, handleP2PUnlock, failEmpty},
	wire.OpSubscribeKVEvents:      {laneRequest, true, deadlineShort, handleSubscribeKVEvents, failSubscribe},
}

func failRefuse(*Server, *request) reply { return refuse }
func failEmpty(*Server, *request) reply  { return empty }
func failFalse(*Server, *request) reply  { return value(wire.AppendBool(nil, false)) }
func failZero(*Server, *request) reply   { return value(wire.AppendInt(nil, 0)) }
func failStore(*Server, *request) reply  { return value(wire.AppendStoreReply(nil, nil, false)) }
func failPrepareStore(*Server, *request) reply {
	return value(wire.AppendPrepareStore(nil, nil, nil, false))
}

func failPrepareRetrieve(*Server, *request) reply {
	return value(wire.AppendPrepareRetrieve(nil, false, nil, nil, false))
}

// accept takes one message of c: [uid][op][payload…]. It runs on the goroutine
// that reads from c, and the frames are valid until it returns.
func (s *Server) accept(c *client, m *zmtp.Message) {
	frames := m.Frames
	if len(frames) < 2 {
		s.met.Dropped("short")
		return
	}
	if len(frames[1]) == 0 {
		s.streamControl(c, frames)
		return
	}
	op, err := wire.ParseOp(frames[1])
	if err != nil {
		s.met.Dropped("op")
		return
	}
	if mayPark(op) {
		own := m.Detach()
		m, frames = &own, own.Frames
	}
	r := c.spare
	if r == nil {
		r = &request{}
	}
	c.spare = nil
	r.client, r.uid, r.opFrame, r.op, r.payloads = c, frames[0], frames[1], op, frames[2:]
	r.row, r.size, r.received = nil, 0, time.Now()
	r.answered.Store(false)
	for _, p := range r.payloads {
		r.size += len(p)
	}
	r.take(m.TakePlacement())
	if s.dispatch(r, m) {
		r.unplace()
		c.spare = r
	}
}

// mayPark reports whether a request of op can outlive its handler although
// that runs inline.
func mayPark(op wire.Op) bool { return op == wire.OpWaitPrefetchStatus }

// dispatch answers r, whose frames are those of m, on the spot, or queues it in
// its lane. It reports whether nobody uses r any more.
func (s *Server) dispatch(r *request, m *zmtp.Message) (over bool) {
	r.row = rowOf(r.op)
	if r.row == nil {
		s.answer(r, refuse.because("unknown_operation"), true)
		return true
	}
	if len(r.payloads) != r.op.Arity() {
		s.answer(r, s.failed(r, "arity"), true)
		return true
	}
	if !s.serves(r.op) {
		s.answer(r, s.failed(r, "transfer_mode"), true)
		return true
	}
	if s.draining.Load() {
		s.answer(r, s.failed(r, "stopping"), true)
		return true
	}
	l := &r.client.lanes[r.row.class]
	if r.row.inline && r.size-r.placedBytes() <= inlineBytes && l.idle() && s.mayInline(r) {
		out := s.execute(r)
		s.answer(r, out, true)
		return out.kind != replyLater
	}
	r.msg = m.Detach()
	r.uid, r.opFrame, r.payloads = r.msg.Frames[0], r.msg.Frames[1], r.msg.Frames[2:]
	ok, ready := l.push(r, s.opt.LaneDepth)
	if !ok {
		s.answer(r, s.failed(r, "queue_full"), true)
		r.msg.Release()
		return true
	}
	if ready {
		s.lanes.submit(l)
	}
	return false
}

// rowOf is the row of op, nil when it is not served.
func rowOf(op wire.Op) *operation {
	if int(op) >= len(table) || table[op].handle == nil {
		return nil
	}
	return &table[op]
}

// serves reports whether the transfer mode has op. One of the other mode is
// answered as its failure: a refusal of a store or retrieve would be raised in
// the engine's step.
func (s *Server) serves(op wire.Op) bool {
	switch op {
	case wire.OpRegisterEngineDriven, wire.OpUnregisterEngineDriven, wire.OpPrepareStore, wire.OpCommitStore, wire.OpPrepareRetrieve, wire.OpCommitRetrieve:
		return s.opt.TransferMode != TransferLMCacheDriven
	case wire.OpRegisterKVCache, wire.OpUnregisterKVCache, wire.OpStore, wire.OpRetrieve:
		return s.opt.TransferMode != TransferEngineDriven
	default:
		return true
	}
}

// mayInline reports whether r is sure to be quick: a store waits for pages while
// the pool still grows, and objects of engines whose heads come first are
// reordered for a worker that copies itself.
func (s *Server) mayInline(r *request) bool {
	switch r.op {
	case wire.OpPrepareStore, wire.OpCommitStore:
		return s.arena.ReadyBytes() >= s.arena.SizeBytes()
	case wire.OpPrepareRetrieve:
		return !s.headsFirst.Load()
	default:
		return true
	}
}

// runLane is a worker's turn at one request.
func (s *Server) runLane(r *request) {
	out := s.execute(r)
	s.answer(r, out, false)
	r.unplace()
	if r.row.inline && out.kind != replyLater {
		r.msg.Release() // such a handler has kept nothing
	}
}

// execute runs the handler of r under its deadline and contains its panics.
func (s *Server) execute(r *request) (out reply) {
	left := r.row.deadline - time.Since(r.received)
	if left <= 0 {
		return s.failed(r, "deadline")
	}
	defer func() {
		if p := recover(); p != nil {
			s.met.Panicked(r.op.String())
			s.log.Error("handler panicked; the request is answered as failed", "component", "mq", "op", r.op.String(), "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			out = s.failed(r, "panic")
		}
	}()
	return r.row.handle(s, deadlineContext(r.received.Add(r.row.deadline)), r)
}

// failed is the failure answer of r's operation.
func (s *Server) failed(r *request, reason string) reply {
	return r.row.fail(s, r).because(reason)
}

// answer sends out. onReader says that this is the goroutine that reads from
// the client.
func (s *Server) answer(r *request, out reply, onReader bool) {
	m := s.counters(r.op)
	if onReader {
		m.Count()
	} else {
		m.Done(time.Since(r.received))
	}
	if out.reason != "" {
		s.countFailure(r.op, out.reason)
		s.log.Debug("request failed", "component", "mq", "op", r.op.String(), "reason", out.reason, "bytes", r.size)
	}
	if out.kind == replyLater {
		return
	}
	if r.answered.Swap(true) {
		if out.done != nil {
			out.done()
		}
		return
	}
	o := outgoing{uid: r.uid, op: r.opFrame}
	switch out.kind {
	case replyValue:
		o.value, o.hasValue, o.pieces, o.done = out.value, true, out.pieces, out.done
	case replyRefuse:
		o.op = wire.RefusalFrame(r.op)
	default:
	}
	s.send(r.client, &o, onReader)
}

// countFailure counts a failure and remembers it for /status.
func (s *Server) countFailure(op wire.Op, reason string) {
	if int(op) >= len(s.ops) || s.ops[op] == nil {
		op = 0 // those that are not served share one
	}
	s.ops[op].Failed(reason)
	s.failures.note(op.String(), reason, time.Now())
}

// counters are those of op; operations that are not served share one.
func (s *Server) counters(op wire.Op) *metrics.Op {
	if int(op) < len(s.ops) && s.ops[op] != nil {
		return s.ops[op]
	}
	return s.ops[0]
}

// later answers a request whose handler returned replyLater. Any goroutine.
func (s *Server) later(r *request, out reply) { s.answer(r, out, false) }
