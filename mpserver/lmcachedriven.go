package mpserver

import (
	"context"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/hash"
	"github.com/lmcache-go/lmcache-go/mpserver/metrics"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// blockTransfer is a decoded STORE or RETRIEVE.
type blockTransfer struct {
	transfer
	d      *serverDriven // nil without a worker that the server copies for
	blocks [][]int64
	event  []byte
	chunkN int
}

// blockTransfer decodes r. An empty reason means that the range, and every
// block id of it, is one that may be copied.
func (s *Server) blockTransfer(r *request) (t blockTransfer, reason string) {
	if t.transfer, reason = s.transfer(r, false); t.in != nil {
		t.d = t.in.driven
	}
	if reason != "" {
		return t, reason
	}
	var err error
	if t.blocks, err = wire.DecodeBlockIDs(r.payloads[2], nil); err != nil {
		return t, "payload"
	}
	if t.event, err = wire.DecodeBytes(r.payloads[3]); err != nil {
		return t, "payload"
	}
	t.chunkN = t.to - t.from
	if err := copyplan.CheckBlocks(t.in.layout.kv, t.blocks, t.chunkN); err != nil {
		s.log.Warn("block ids of a transfer are not usable; nothing was copied", "component", "mq", "op", r.op.String(), "instance_id", t.instance, "err", err)
		return t, "block_ids"
	}
	return t, ""
}

// copied is the answer to a transfer that needs no copy, or whose copy is done
// when the event has fired.
func copied(event []byte) reply { return value(wire.AppendStoreReply(nil, event, true)) }

// storeWork is what a STORE has acquired so far.
type storeWork struct {
	plan  *copyplan.Plan
	parts []*l1cache.Reservation
}

func (w *storeWork) abort() {
	for _, p := range w.parts {
		p.Abort()
	}
}

// handleStore copies the engine's blocks into new objects. They are found by
// the lookups that come after the answer; one that comes before waits for the
// copy.
func handleStore(s *Server, ctx context.Context, r *request) reply {
	t, reason := s.blockTransfer(r)
	if reason != "" {
		return s.refuseInOrder(r, &t, copyplan.Store, reason)
	}
	w := &storeWork{plan: copyplan.Acquire()}
	handed := false
	defer func() { // an error, or a panic
		if !handed {
			w.abort()
			w.plan.Release()
		}
	}()
	if err := s.planStore(ctx, &t, w); err != nil {
		return s.refuseInOrder(r, &t, copyplan.Store, planReason(err))
	}
	for _, p := range w.parts {
		p.BeginFill()
	}
	handed = true
	return s.submit(r, &t, copyplan.Store, w.plan, w.finish)
}

// finish publishes what was copied. A reservation whose time has run out
// publishes nothing.
func (w *storeWork) finish(err error) (reason string) {
	defer w.abort() // what a panic leaves
	if err != nil {
		return copyReason(err)
	}
	for _, p := range w.parts {
		if p.Publish(nil) != len(p.Slots()) {
			reason = "expired"
		}
	}
	return reason
}

// planStore reserves what the store lacks of the range, in every object group,
// and plans the copies there.
func (s *Server) planStore(ctx context.Context, t *blockTransfer, w *storeWork) error {
	kv := t.in.layout.kv
	var null []bool
	for g := range t.in.layout.groups {
		null = copyplan.NullChunks(kv, g, t.blocks, t.chunkN, int64(s.opt.NullBlockID), null)
		hashes := make([]hash.Digest, 0, t.chunkN)
		index := make([]int, 0, t.chunkN)
		for i, h := range t.chunks() {
			if !null[i] {
				hashes, index = append(hashes, h), append(index, i)
			}
		}
		if len(hashes) == 0 {
			continue
		}
		res, err := s.reserve(ctx, &t.transfer, g, hashes)
		if err != nil {
			return err
		}
		w.parts = append(w.parts, res)
		slots := res.Slots()
		if len(slots) == 0 {
			continue
		}
		objects := make([]copyplan.Object, len(slots))
		for i, sl := range slots {
			objects[i] = copyplan.Object{Chunk: index[sl.Chunk], Offset: sl.Offset, Bytes: t.in.layout.groups[g].sizeBytes}
		}
		req := copyplan.Request{Layout: kv, Group: g, BlockIDs: t.blocks, Chunks: t.chunkN}
		if err := w.plan.Add(&req, objects, t.d.dev.Traits().Plans); err != nil {
			return err
		}
	}
	return nil
}

// loadWork is what a RETRIEVE has acquired so far.
type loadWork struct {
	plan      *copyplan.Plan
	transfers []*l1cache.Transfer
	scratch   []*l1cache.Reservation // copies of objects in the engine's order
}

// end lets go of the objects: nobody reads them any more.
func (w *loadWork) end() {
	for _, tr := range w.transfers {
		tr.Done()
	}
	for _, p := range w.scratch {
		p.Release()
	}
}

// handleRetrieve copies the objects of a hit into the engine's blocks.
func handleRetrieve(s *Server, ctx context.Context, r *request) reply {
	t, reason := s.blockTransfer(r)
	skip, err := wire.DecodeInt(r.payloads[4])
	if reason == "" && (err != nil || skip < 0) {
		reason = "payload"
	}
	if reason != "" {
		s.giveUp(&t) // the hit will not be retrieved
		return s.refuseInOrder(r, &t, copyplan.Load, reason)
	}
	if t.chunkN == 0 {
		return s.submit(r, &t, copyplan.Load, copyplan.Acquire(), func(error) string { return "" })
	}
	w := &loadWork{plan: copyplan.Acquire()}
	handed := false
	defer func() { // an error, or a panic
		if !handed {
			w.end()
			w.plan.Release()
		}
	}()
	if w.transfers, err = s.takeHit(&t.transfer, t.in.layout); err != nil {
		s.met.ReadFailed(metrics.ReadNotFound, t.Model, t.chunkN)
		return s.refuseInOrder(r, &t, copyplan.Load, "not_held")
	}
	if err := s.planLoad(ctx, &t, w, int(min(skip, int64(t.End)))); err != nil {
		s.log.Warn("a hit cannot be loaded; nothing was copied", "component", "mq", "instance_id", t.instance, "err", err)
		return s.refuseInOrder(r, &t, copyplan.Load, planReason(err))
	}
	worker, model, salt, chunks := t.instance, t.Model, t.Salt, t.chunkN
	handed = true
	return s.submit(r, &t, copyplan.Load, w.plan, func(err error) string {
		w.end()
		if err != nil {
			return copyReason(err)
		}
		s.met.ChunksLoaded(worker, model, salt, chunks)
		return ""
	})
}

// readableGroups is how many of l's groups a hit has: the first ones.
func (l *layout) readableGroups() int {
	n := 0
	for _, g := range l.groups {
		if !g.aux {
			n++
		}
	}
	return n
}

// takeHit moves the holds of the range to transfers, one a group that is read,
// which have every chunk that the group needs.
func (s *Server) takeHit(t *transfer, lay *layout) ([]*l1cache.Transfer, error) {
	n := lay.readableGroups()
	out, err := s.sessions.take(t.RequestID, t.match(lay.scope(t.Salt, 0)), n, t.rank, t.from, t.to, time.Now())
	if err != nil || whole(t, lay, out) {
		return out, err
	}
	for _, tr := range out {
		tr.Done()
	}
	// An engine that asks several servers loads the shortest of their hits.
	// Where it ends, a window has other chunks than those of our hit.
	lease, _ := s.cache.Lookup(l1cache.LookupRequest{Groups: lay.lookupGroups(t.Salt), Ranks: []uint32{t.rank}, Hashes: t.prompt.Chunks()[:t.to], Readers: 1}, nil)
	if lease == nil {
		return nil, l1cache.ErrNotHeld
	}
	defer lease.Release()
	if lease.Hit() < t.to {
		return nil, l1cache.ErrNotHeld
	}
	return takeGroups(lease, n, t.rank, t.from, t.to)
}

// whole reports whether the transfers have the windows of t's range.
func whole(t *transfer, lay *layout, transfers []*l1cache.Transfer) bool {
	for g, tr := range transfers {
		from := t.from
		if w := lay.groups[g].windowChunks; w > 0 {
			from = max(from, t.to-w)
		}
		if len(tr.Objects()) < t.to-from {
			return false
		}
	}
	return true
}

// giveUp ends the holds of a retrieve that cannot be served, also that of a
// worker which is not registered.
func (s *Server) giveUp(t *blockTransfer) {
	if !t.ranged || t.from == t.to {
		return
	}
	lay, _ := s.instances.model(t.Model, t.WorldSize)
	if t.in != nil {
		lay = t.in.layout
	}
	if lay == nil {
		return
	}
	if transfers, err := s.takeHit(&t.transfer, lay); err == nil {
		for _, tr := range transfers {
			tr.Done()
		}
	}
}

// planLoad plans the copies of a hit, less what is skipped. Objects in another
// order than the engine's are reordered on the way, or before, where the device
// can only copy.
func (s *Server) planLoad(ctx context.Context, t *blockTransfer, w *loadWork, skip int) error {
	kv, traits := t.in.layout.kv, t.d.dev.Traits()
	for g, tr := range w.transfers {
		from, to := kv.RetrieveChunks(g, t.chunkN, skip)
		if from >= to {
			continue
		}
		objects := make([]copyplan.Object, 0, to-from)
		for _, o := range s.objectsOf(tr) {
			if o.Chunk -= t.from; o.Chunk >= from && o.Chunk < to {
				objects = append(objects, o)
			}
		}
		if len(objects) != to-from {
			return l1cache.ErrNotHeld
		}
		if traits.CopiesOnly {
			res, err := s.convert(ctx, objects, t.in.layout.groups[g].form)
			if res != nil {
				w.scratch = append(w.scratch, res)
			}
			if err != nil {
				return err
			}
		}
		req := copyplan.Request{Layout: kv, Group: g, BlockIDs: t.blocks, Chunks: t.chunkN, SkipTokens: skip}
		if err := w.plan.Add(&req, objects, traits.Plans); err != nil {
			return err
		}
	}
	return nil
}
