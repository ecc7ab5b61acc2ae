package mpserver

import (
	"context"
	"errors"
	"time"

	"github.com/lmcache-go/lmcache-go/internal/copyplan"
	"github.com/lmcache-go/lmcache-go/internal/device"
	"github.com/lmcache-go/lmcache-go/internal/kvlayout"
	"github.com/lmcache-go/lmcache-go/l1cache"
	"github.com/lmcache-go/lmcache-go/mpserver/hash"
	"github.com/lmcache-go/lmcache-go/mpserver/metrics"
	"github.com/lmcache-go/lmcache-go/mpserver/wire"
)

// blockTransfer is a decoded STORE or RETRIEVE.
type blockTransfer struct {
	transfer
	d      *serverDriven
	blocks [][]int64
	event  []byte
	chunkN int
}

// blockTransfer decodes r. An empty reason means that the range, and every
// block id of it, is one that may be copied.
func (s *Server) blockTransfer(r *request) (t blockTransfer, reason string) {
	var err error
	t.transfer, reason = s.transfer(r, false)
	if reason != "" {
		return t, reason
	}
	t.d = t.in.driven
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

// copied is the answer to a transfer that needs no copy, or whose copy is done.
func copied(event []byte) reply { return value(wire.AppendStoreReply(nil, event, true)) }

// handleStore copies the engine's blocks into new objects. They are found by
// the lookups that come after the answer; one that comes before waits for the
// copy.
func handleStore(s *Server, ctx context.Context, r *request) reply {
	t, reason := s.blockTransfer(r)
	if reason != "" {
		return s.failed(r, reason)
	}
	plan := copyplan.Acquire()
	parts, err := s.planStore(ctx, &t, plan)
	if err != nil {
		abortAll(parts)
		plan.Release()
		return s.failed(r, planReason(err))
	}
	if plan.Bytes == 0 {
		abortAll(parts)
		plan.Release()
		return copied(nil)
	}
	for _, p := range parts {
		p.BeginFill()
	}
	return s.submit(r, &t, t.d.stores, copyplan.Store, plan, func(err error) bool {
		if err != nil {
			abortAll(parts)
			return false
		}
		ok := true
		for _, p := range parts {
			ok = p.Publish(nil) == len(p.Slots()) && ok
			p.Release()
		}
		return ok
	})
}

func abortAll(parts []*l1cache.Reservation) {
	for _, p := range parts {
		p.Abort()
	}
}

// planStore reserves what the store lacks of the range, in every object group,
// and plans the copies there.
func (s *Server) planStore(ctx context.Context, t *blockTransfer, plan *copyplan.Plan) (parts []*l1cache.Reservation, err error) {
	kv := t.in.layout.kv
	var null []bool
	for g := range t.in.layout.groups {
		null = copyplan.NullChunks(kv, g, t.blocks, t.chunkN, int64(s.opt.NullBlockID), null[:0])
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
			return parts, err
		}
		parts = append(parts, res)
		objects := make([]copyplan.Object, 0, len(res.Slots()))
		for _, sl := range res.Slots() {
			objects = append(objects, copyplan.Object{Chunk: index[sl.Chunk], Offset: sl.Offset, Bytes: t.in.layout.groups[g].sizeBytes})
		}
		if len(objects) == 0 {
			continue
		}
		req := copyplan.Request{Layout: kv, Group: g, BlockIDs: t.blocks, Chunks: t.chunkN}
		if err := plan.Add(&req, objects, t.d.dev.Traits().Plans); err != nil {
			return parts, err
		}
	}
	return parts, nil
}

// handleRetrieve copies the objects of a hit into the engine's blocks.
func handleRetrieve(s *Server, _ context.Context, r *request) reply {
	t, reason := s.blockTransfer(r)
	skip, err := wire.DecodeInt(r.payloads[4])
	if err != nil || skip < 0 {
		reason = "payload"
	}
	if reason != "" {
		if reason == "block_ids" {
			s.giveUp(&t) // the hit will not be retrieved
		}
		return s.failed(r, reason)
	}
	if t.chunkN == 0 {
		return copied(nil)
	}
	transfers, err := s.takeHit(&t)
	if err != nil {
		s.met.ReadFailed(metrics.ReadNoLease, t.Model, t.chunkN)
		return s.failed(r, "not_held")
	}
	plan := copyplan.Acquire()
	if err := s.planLoad(&t, plan, transfers, int(min(skip, int64(t.End)))); err != nil {
		endAll(transfers)
		plan.Release()
		s.log.Warn("a hit cannot be loaded; nothing was copied", "component", "mq", "instance_id", t.instance, "err", err)
		return s.failed(r, planReason(err))
	}
	if plan.Bytes == 0 {
		endAll(transfers)
		plan.Release()
		return copied(nil)
	}
	return s.submit(r, &t, t.d.loads, copyplan.Load, plan, func(err error) bool {
		endAll(transfers)
		if err == nil {
			s.met.ChunksLoaded(int64(t.WorkerID), t.Model, t.Salt, t.chunkN)
		}
		return err == nil
	})
}

func endAll(transfers []*l1cache.Transfer) {
	for _, tr := range transfers {
		tr.Done()
	}
}

// readableGroups is how many of l's groups a hit has.
func (l *layout) readableGroups() int {
	n := 0
	for _, g := range l.groups {
		if !g.aux {
			n++
		}
	}
	return n
}

func (s *Server) takeHit(t *blockTransfer) ([]*l1cache.Transfer, error) {
	lay := t.in.layout
	return s.sessions.take(t.RequestID, t.match(lay.scope(t.Salt, 0)), lay.readableGroups(), t.rank, t.from, t.to, time.Now())
}

// giveUp ends the holds of a retrieve that cannot be served.
func (s *Server) giveUp(t *blockTransfer) {
	if transfers, err := s.takeHit(t); err == nil {
		endAll(transfers)
	}
}

// planLoad plans the copies of a hit, less what is skipped.
func (s *Server) planLoad(t *blockTransfer, plan *copyplan.Plan, transfers []*l1cache.Transfer, skip int) error {
	kv := t.in.layout.kv
	for g, tr := range transfers {
		from, to := kv.RetrieveChunks(g, t.chunkN, skip)
		var objects []copyplan.Object
		for _, o := range tr.Objects() {
			c := o.Chunk - t.from
			if c < from || c >= to {
				continue
			}
			objects = append(objects, copyplan.Object{Chunk: c, Offset: o.Offset, Bytes: o.Length, Form: s.forms.Form(uint8(o.Order))})
		}
		if len(objects) != to-from {
			return l1cache.ErrNotHeld
		}
		if len(objects) == 0 {
			continue
		}
		req := copyplan.Request{Layout: kv, Group: g, BlockIDs: t.blocks, Chunks: t.chunkN, SkipTokens: skip}
		if err := plan.Add(&req, objects, t.d.dev.Traits().Plans); err != nil {
			return err
		}
	}
	return nil
}

// submit queues the copies of r and answers when nothing can touch the
// client's blocks any more, or, if the device has events, at once with one.
// finish publishes or releases, and says whether the transfer succeeded.
func (s *Server) submit(r *request, t *blockTransfer, stream device.Stream, dir copyplan.Direction, plan *copyplan.Plan, finish func(error) bool) reply {
	d := t.d
	mdir := metrics.Store
	if dir == copyplan.Load {
		mdir = metrics.Retrieve
	}
	bytes, begin := plan.Bytes, time.Now()
	traits := d.dev.Traits()
	job := &device.Job{Direction: dir, Plan: plan, Engine: d.memory, Pool: s.arena.Bytes(), After: t.event}
	var late *time.Timer
	job.Done = func(err error) {
		late.Stop()
		plan.Release()
		ok := finish(err)
		d.inflight.Add(-1)
		if err == nil {
			s.met.TransferEnded(mdir, d.name, bytes)
			s.met.TransferSpeed(mdir, d.name, d.instance, t.Model, bytes, time.Since(begin))
		} else {
			s.log.Warn("a copy failed", "component", "device", "op", r.op.String(), "instance_id", d.instance, "request_id", t.RequestID, "err", err)
		}
		switch {
		case !traits.AnswerAtDone: // the client was answered after Submit
			return
		case !ok:
			s.later(r, s.failed(r, copyReason(err)))
		default:
			s.later(r, copied([]byte(traits.StubEvent)))
		}
	}
	// A copy that does not begin or end in time is called off; the answer
	// still waits until it cannot write any more.
	late = time.AfterFunc(time.Until(r.received.Add(r.row.deadline)), func() {
		s.met.TimedOut("copy")
		stream.Cancel(job)
	})
	d.inflight.Add(1)
	s.met.TransferBegun(mdir, d.name)
	event, err := stream.Submit(job)
	if err != nil {
		late.Stop()
		d.inflight.Add(-1)
		plan.Release()
		finish(err)
		return s.failed(r, copyReason(err))
	}
	if traits.AnswerAtDone {
		return reply{kind: replyLater}
	}
	return copied(event)
}

func planReason(err error) string {
	switch {
	case errors.Is(err, copyplan.ErrObject), errors.Is(err, kvlayout.ErrForms):
		return "object_form"
	case errors.Is(err, l1cache.ErrNotHeld):
		return "not_held"
	case errors.Is(err, copyplan.ErrBlockID), errors.Is(err, copyplan.ErrShort), errors.Is(err, copyplan.ErrLists):
		return "block_ids"
	}
	return reserveReason(err)
}

func copyReason(err error) string {
	switch {
	case err == nil:
		return "expired"
	case errors.Is(err, device.ErrLost):
		return "engine_memory_gone"
	case errors.Is(err, device.ErrCanceled):
		return "deadline"
	case errors.Is(err, device.ErrBusy):
		return "queue_full"
	case errors.Is(err, device.ErrClosed):
		return "unknown_instance"
	}
	return "copy"
}
