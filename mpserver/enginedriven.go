package mpserver

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/hash"
	"github.com/lmcache-go/lmcache-go/mpserver/metrics"
	"github.com/lmcache-go/lmcache-go/mpserver/torchpickle"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// transfer is a decoded PREPARE or COMMIT: a chunk range of one worker.
type transfer struct {
	*requestKey
	op       wire.Op
	instance int64
	in       *instance // nil when unknown, ill or registered for the other mode
	// ranged says that the range is one a worker may transfer; only then is
	// what follows set.
	ranged   bool
	from, to int // chunks
	hand     handKey
	rank     uint32
}

// chunks are the hashes of the range.
func (t *transfer) chunks() []hash.Digest { return t.prompt.Chunks()[t.from:t.to] }

func (t *transfer) match(scope l1cache.Scope) leaseMatch {
	return leaseMatch{scope: scope, chunks: t.prompt.Chunks()}
}

// transfer decodes the key and instance of r. An empty reason means that the
// range is one the worker may transfer: whole chunks, inside the tokens.
func (s *Server) transfer(r *request, engine bool) (t transfer, reason string) {
	k, err := s.decodeKey(r.payloads[0])
	if err != nil {
		return t, "payload"
	}
	t.requestKey, t.op = k, r.op
	if t.instance, err = wire.DecodeInt(r.payloads[1]); err != nil {
		return t, "payload"
	}
	bad := t.setRange(s.opt.ChunkSize)
	t.in = s.instances.get(t.instance, engine, r.client, time.Now())
	switch {
	case t.in == nil:
		return t, "unknown_instance"
	case k.Model != t.in.layout.model || k.WorldSize != t.in.layout.worldSize:
		return t, "other_model"
	}
	return t, bad
}

// setRange works out the chunks of t, of c tokens each, and its rank. The
// reason is empty when there is nothing wrong with them.
func (t *transfer) setRange(c int) (reason string) {
	k := t.requestKey
	switch {
	case !k.HasWorker:
		return "worker"
	case k.Start < 0 || k.Start%c != 0 || k.End%c != 0 || k.End > k.TokenCount:
		return "range"
	}
	var ok bool
	if t.rank, ok = wire.KVRank(k.WorldSize, k.WorkerID); !ok {
		return "worker"
	}
	t.from, t.to = k.Start/c, max(k.Start, k.End)/c
	if t.to > len(k.prompt.Chunks()) {
		return "token_range"
	}
	t.hand = handKey{requestID: k.RequestID, salt: k.Salt, start: k.Start, end: k.End, worker: k.WorkerID}
	if t.to > t.from {
		t.hand.last = k.prompt.Chunks()[t.to-1]
	}
	t.ranged = true
	return ""
}

// reserve asks the store for the chunks of t that it lacks.
func (s *Server) reserve(ctx context.Context, t *transfer, group int, hashes []hash.Digest) (*l1cache.Reservation, error) {
	res, err := s.tryReserve(ctx, t, group, hashes)
	if err != nil {
		s.met.AllocationFailed(metrics.DuringStore, t.Model, len(hashes))
		s.failures.explain(t.op.String(), reserveReason(err), err)
	}
	return res, err
}

// tryReserve is reserve by somebody who can do without.
func (s *Server) tryReserve(ctx context.Context, t *transfer, group int, hashes []hash.Digest) (*l1cache.Reservation, error) {
	g := &t.in.layout.groups[group]
	res, err := s.cache.Reserve(ctx, l1cache.ReserveRequest{Scope: t.in.layout.scope(t.Salt, group), Rank: t.rank, Hashes: hashes, SizeBytes: g.sizeBytes, Form: g.formID})
	if err == nil {
		s.events.bind(t, hashes, res.Slots())
	}
	return res, err
}

// How an engine-driven worker's bytes travel: its device in the metrics, where
// the reference counts no such transfer at all.
const (
	bySlots  = "shm"
	byPickle = "pickle"
)

// loaded counts the end of a load by an engine-driven worker.
func (s *Server) loaded(t *transfer, by string, chunks int) {
	s.met.TransferEnded(metrics.Retrieve, by, int64(chunks)*t.in.layout.groups[0].sizeBytes)
	s.met.ChunksLoaded(t.instance, t.Model, t.Salt, chunks)
}

// handlePrepareStore hands the worker slots of the shared pool. Chunks that
// are resident, or that somebody else is writing, get none: the worker takes
// them as stored. Without room there is no "slots" key at all: the worker
// gathers, commits, and hears False, instead of taking the chunks as stored.
func handlePrepareStore(s *Server, ctx context.Context, r *request) reply {
	t, reason := s.transfer(r, true)
	if reason != "" {
		return s.failed(r, reason)
	}
	if !s.sharesPool() {
		return value(wire.AppendPrepareStore(nil, nil, nil, false))
	}
	nothing := value(wire.AppendPrepareStore(nil, nil, nil, true))
	t.hand.write = true
	if t.from == t.to || s.instances.handsFull(t.in, t.hand) {
		return nothing
	}
	res, err := s.reserve(ctx, &t, 0, t.chunks())
	if err != nil {
		return s.failed(r, reserveReason(err))
	}
	slots := res.Slots()
	if len(slots) == 0 {
		res.Release()
		return nothing
	}
	if !s.instances.give(t.in, &hand{key: t.hand, res: res}) {
		res.Release() // the instance has ended, or an equal request was faster
		return s.failed(r, "unknown_instance")
	}
	s.met.TransferBegun(metrics.Store, bySlots)
	g := &t.in.layout.groups[0]
	out := make([]wire.Slot, len(slots))
	chunks := make([]int, len(slots))
	for i, sl := range slots {
		out[i] = wire.Slot{Offset: sl.Offset, Length: g.sizeBytes, Shape: g.shape, DType: g.dtype.Name}
		chunks[i] = sl.Chunk
	}
	return value(wire.AppendPrepareStore(nil, out, chunks, true))
}

func reserveReason(err error) string {
	switch {
	case errors.Is(err, l1cache.ErrTooLarge):
		return "too_large"
	case errors.Is(err, l1cache.ErrNoSpace):
		return "no_space"
	case errors.Is(err, l1cache.ErrGrowing):
		return "pool_growing"
	}
	return "reserve"
}

// handleCommitStore publishes what the worker has written into its slots, or,
// with data, what its pickle holds.
func handleCommitStore(s *Server, ctx context.Context, r *request) reply {
	data, err := wire.DecodeBytes(r.payloads[2])
	if err != nil {
		return s.failed(r, "payload")
	}
	t, reason := s.transfer(r, true)
	if reason != "" && reason != "unknown_instance" {
		return s.failed(r, reason)
	}
	if reason == "unknown_instance" {
		s.lateCommit(&t, true)
		return s.failed(r, reason)
	}
	t.hand.write = true
	h, late := s.instances.takeBack(t.instance, t.hand)
	if late {
		h.release()
		return s.failed(r, "late_commit")
	}
	if len(data) > 0 {
		return s.commitPickle(ctx, r, &t, h, data)
	}
	if h == nil {
		return s.failed(r, "not_prepared")
	}
	n := h.res.Publish(nil)
	h.res.Release()
	s.met.TransferEnded(metrics.Store, bySlots, int64(n)*t.in.layout.groups[0].sizeBytes)
	if n == 0 {
		return s.failed(r, "expired")
	}
	return value(wire.AppendBool(nil, true))
}

// lateCommit gives back what a worker had in its hands when it was dropped: it
// has said that it is done.
func (s *Server) lateCommit(t *transfer, write bool) {
	c := s.opt.ChunkSize
	k := t.requestKey
	if !k.HasWorker || k.End%c != 0 || k.End <= 0 || k.End/c > len(k.prompt.Chunks()) {
		return
	}
	key := handKey{write: write, requestID: k.RequestID, salt: k.Salt, start: k.Start, end: k.End, worker: k.WorkerID, last: k.prompt.Chunks()[k.End/c-1]}
	if h, _ := s.instances.takeBack(t.instance, key); h != nil {
		h.release()
	}
}

// commitPickle stores the tensors of an inline COMMIT_STORE: into the slots
// that a PREPARE has reserved (h, may be nil), and into new ones. It is true
// when everything that was reserved was written; good chunks are kept beside
// bad ones.
func (s *Server) commitPickle(ctx context.Context, r *request, t *transfer, h *hand, data []byte) reply {
	var parts []*l1cache.Reservation
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	if h != nil {
		parts = append(parts, h.res)
	}
	frame := r.payloads[2]
	tensors, err := torchpickle.Parse(data)
	if r.placed != nil {
		if g := &t.in.layout.groups[0]; err == nil && h == nil && r.placed.in == t.in && r.placed.fits(frame, tensors, g) {
			s.met.TransferBegun(metrics.Store, byPickle)
			n := len(r.placed.res.Slots())
			published := r.placed.res.Publish(nil)
			s.directly.Add(1)
			s.met.TransferEnded(metrics.Store, byPickle, int64(published)*g.sizeBytes)
			if published < n {
				return s.failed(r, "expired")
			}
			return value(wire.AppendBool(nil, true))
		}
		r.undo()
		tensors, err = torchpickle.Parse(data)
	}
	if err != nil {
		s.log.Warn("the pickle of a store cannot be read", "component", "mq", "instance_id", t.instance, "bytes", len(data), "err", err)
		return s.failed(r, "pickle")
	}
	s.met.TransferBegun(metrics.Store, byPickle)
	good, why, total := true, "shape", 0
	if t.to > t.from { // what the prepared slots do not cover
		res, err := s.reserve(ctx, t, 0, t.chunks())
		if err != nil {
			good, why = false, reserveReason(err)
		} else {
			parts = append(parts, res)
		}
	}
	for _, p := range parts {
		p.BeginFill()
		keep := s.fill(p, &t.in.layout.groups[0], tensors)
		published := p.Publish(keep)
		good = good && published == len(keep) && !slices.Contains(keep, false)
		total += published
	}
	s.met.TransferEnded(metrics.Store, byPickle, int64(total)*t.in.layout.groups[0].sizeBytes)
	if !good {
		return s.failed(r, why)
	}
	r.client.pickles.learn(frame, tensors, t.in.layout.groups[0].sizeBytes)
	return value(wire.AppendBool(nil, true))
}

// fill copies the tensors of a pickle into the slots of p and says which fit.
func (s *Server) fill(p *l1cache.Reservation, g *groupLayout, tensors []torchpickle.Tensor) []bool {
	pool := s.arena.Bytes()
	slots := p.Slots()
	keep := make([]bool, len(slots))
	for i, sl := range slots {
		if sl.Chunk >= len(tensors) {
			continue
		}
		x := &tensors[sl.Chunk]
		if x.DType.Name != g.dtype.Name || !slices.Equal(x.Shape, g.shape) {
			continue
		}
		keep[i] = x.CopyTo(pool[sl.Offset:sl.Offset+g.sizeBytes]) == nil
	}
	return keep
}

// handlePrepareRetrieve hands out the chunks of a hit: slots of the shared
// pool that stay as they are until COMMIT_RETRIEVE, or a pickle.
func handlePrepareRetrieve(s *Server, ctx context.Context, r *request) reply {
	t, reason := s.transfer(r, true)
	if reason != "" {
		return s.failed(r, reason)
	}
	if t.from == t.to {
		return s.failed(r, "range")
	}
	lay := t.in.layout
	g := &lay.groups[0]
	var own *heldRead
	if taken, err := s.sessions.take(t.RequestID, t.match(lay.scope(t.Salt, 0)), 1, t.rank, t.from, t.to, time.Now()); err == nil {
		if !s.sharesPool() {
			return s.retrievePickle(r, &t, g, taken[0])
		}
		if own, err = s.slotsOf(ctx, g, taken[0]); err != nil {
			s.log.Warn("a hit cannot be handed out", "component", "mq", "instance_id", t.instance, "err", err)
			return s.failed(r, planReason(err))
		}
	}
	read := s.instances.giveRead(t.in, t.hand, own)
	if read == nil {
		if own != nil {
			own.done()
			return s.failed(r, "unknown_instance") // it has ended meanwhile
		}
		s.met.ReadFailed(metrics.ReadNotFound, t.Model, t.to-t.from)
		return s.failed(r, "not_held")
	}
	s.met.TransferBegun(metrics.Retrieve, bySlots)
	return value(wire.AppendPrepareRetrieve(nil, true, nil, read.slots, true))
}

// slotsOf are the slots of a hit, in the order that engine-driven workers know.
// On an error the transfer has ended.
func (s *Server) slotsOf(ctx context.Context, g *groupLayout, tr *l1cache.Transfer) (_ *heldRead, err error) {
	h, ok := &heldRead{tr: tr}, false
	defer func() { // an error, or a panic
		if !ok {
			h.done()
		}
	}()
	objects := s.objectsOf(tr)
	if h.scratch, err = s.convert(ctx, objects, g.form); err != nil {
		return nil, err
	}
	h.slots = make([]wire.Slot, len(objects))
	for i := range objects {
		h.slots[i] = wire.Slot{Offset: objects[i].Offset, Length: g.sizeBytes, Shape: g.shape, DType: g.dtype.Name}
	}
	ok = true
	return h, nil
}

// retrievePickle answers a hit with the bytes themselves. It ends tr when they
// have left.
func (s *Server) retrievePickle(r *request, t *transfer, g *groupLayout, tr *l1cache.Transfer) (out reply) {
	defer func() { // a failure, or a panic
		if out.done == nil {
			tr.Done()
		}
	}()
	enc, err := torchpickle.NewEncoder(g.dtype, g.shape)
	if err != nil {
		return s.failed(r, "pickle")
	}
	pool := s.arena.Bytes()
	objects := s.objectsOf(tr)
	chunks := make([][]byte, len(objects))
	var other []int
	for i, o := range objects {
		chunks[i] = pool[o.Offset : o.Offset+o.Bytes]
		if o.Form != g.form {
			other = append(other, i)
		}
	}
	err = inParallel(len(other), func(i int) error {
		i = other[i]
		b := make([]byte, g.sizeBytes)
		err := reorder(b, g.form, chunks[i], objects[i].Form)
		chunks[i] = b
		return err
	})
	if err != nil {
		return s.failed(r, planReason(err))
	}
	size := enc.Size(len(chunks))
	if size > maxBinBytes {
		return s.failed(r, "too_large")
	}
	// The pool's memory goes into the socket as it is, and the hit is held
	// until it has gone, or its reader has.
	pieces := make([][]byte, 0, 3*len(chunks)+4)
	pieces = append(pieces, wire.AppendPrepareRetrieveHead(nil, true, size))
	pieces = append(enc.Pieces(pieces, chunks), wire.AppendPrepareRetrieveTail(nil))
	s.met.TransferBegun(metrics.Retrieve, byPickle)
	s.loaded(t, byPickle, len(chunks))
	return reply{kind: replyValue, pieces: pieces, done: tr.Done}
}

// handleCommitRetrieve ends a read of the shared pool. It is true also when
// nothing was prepared: the worker has its bytes, or knows that it has not.
func handleCommitRetrieve(s *Server, _ context.Context, r *request) reply {
	t, reason := s.transfer(r, true)
	switch reason {
	case "":
	case "payload":
		return s.failed(r, reason)
	case "unknown_instance":
		s.lateCommit(&t, false)
		return s.failed(r, reason)
	default:
		return value(wire.AppendBool(nil, true))
	}
	if h, late := s.instances.takeBack(t.instance, t.hand); h != nil {
		if !late {
			s.loaded(&t, bySlots, t.to-t.from)
		}
		h.release()
	}
	return value(wire.AppendBool(nil, true))
}
