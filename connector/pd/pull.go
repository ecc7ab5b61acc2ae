package pd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lmcache-go/lmcache-go/nixl"
)

// Result is what a pull did.
type Result struct {
	// Blocks that were read, of all groups together, and their bytes.
	Blocks int
	Bytes  int64
	// Ranks that were read from.
	Ranks int
	// Descriptors is what NIXL was asked to move, after joining neighbours.
	Descriptors int
	// Direct: the blocks were copied around NIXL.
	Direct bool
	// Handshake is the time until the producer was known, Transfer that from
	// the first post to the end.
	Handshake, Transfer time.Duration
	// Settled is closed when nothing can write to the local blocks any more. It
	// is never nil, and closed already when Pull succeeds. It stays open for
	// good when a transfer never ends: the blocks are lost then, not reused.
	Settled <-chan struct{}
}

var settled = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Pull reads the KV of a request into local blocks: one list for each KV cache
// group, at most as many as the producer's, paired with the last ones of it.
// With no block at all it only tells the producer to free its own.
//
// It waits for the end of the transfer, Options.TransferTimeout or ctx. After an
// error the blocks may still be written to until Result.Settled is closed. The
// producer is told by the transfer itself, when the data has arrived, so a
// failed pull leaves its blocks to their lease.
//
// Pull what was offered once: params are not marked as used.
func (p *Peer) Pull(ctx context.Context, requestID string, params *Params, local [][]int64) (Result, error) {
	res := Result{Settled: settled}
	if err := p.begin(); err != nil {
		return res, err
	}
	defer p.work.Done()
	defer p.Untrack(requestID)
	if err := params.Check(); err != nil {
		return res, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(ErrClosed) })()
	start := time.Now()
	e, err := p.engines.acquire(ctx, params)
	res.Handshake = time.Since(start)
	if err != nil {
		return res, err
	}
	defer p.engines.release(e)
	notif := fmt.Appendf(nil, "%s:%d", params.RemoteRequestID, e.readers)
	n := 0
	for _, ids := range local {
		n += len(ids)
	}
	if n == 0 {
		return res, p.notify(e, notif, nil)
	}
	x := pull{p: p, e: e, notif: notif}
	err = x.make(params, local)
	if err == nil {
		ctx, stop := context.WithTimeoutCause(ctx, p.opts.TransferTimeout, errTimeout)
		err = x.run(ctx)
		stop()
	}
	if err == nil {
		x.result(&res, n)
		if err := p.notifyRest(e, notif); err != nil {
			p.opts.Logger.Warn("ranks with copies of the blocks keep them until their lease ends", "request", requestID, "err", err)
		}
	} else {
		p.stats.add(func(s *Stats) { s.FailedTransfers++ })
		p.opts.Logger.Warn("a pull failed", "request", requestID, "engine", e.id, "remote_request", params.RemoteRequestID, "err", err)
	}
	x.end(&res)
	return res, err
}

var errTimeout = fmt.Errorf("%w: it takes longer than TransferTimeout: is the producer stopped?", context.DeadlineExceeded)

// notify tells ranks of a producer that its blocks are not needed any more: all
// that this peer knows, except those in but.
func (p *Peer) notify(e *engine, notif []byte, but map[int]bool) error {
	var errs []error
	for n, r := range e.ranks {
		if but[n] {
			continue
		}
		if err := r.remote.Notify(notif); err != nil {
			p.stats.add(func(s *Stats) { s.FailedNotifications++ })
			errs = append(errs, fmt.Errorf("%w: rank %d of engine %s: %w", ErrNotify, n, e.id, err))
		}
	}
	return errors.Join(errs...)
}

// notifyRest tells the ranks that hold a copy of what was read elsewhere.
func (p *Peer) notifyRest(e *engine, notif []byte) error {
	read := map[int]bool{}
	for _, s := range e.sources {
		read[s.rank] = true
	}
	if len(read) == len(e.ranks) {
		return nil
	}
	return p.notify(e, notif, read)
}

// pull is one request under way.
type pull struct {
	p     *Peer
	e     *engine
	notif []byte

	xfers   []*nixl.Transfer
	copies  []directCopy
	copying <-chan struct{} // closed when the copies have ended; nil without any
	bytes   int64
	elapsed time.Duration
}

// make prepares one transfer for each rank that is read.
func (x *pull) make(params *Params, local [][]int64) error {
	for _, s := range x.e.sources {
		r := x.e.ranks[s.rank]
		l, far, err := x.p.geo.pair(local, params.RemoteBlockIDs, r.meta.BlocksPerLogical)
		if err != nil {
			return err
		}
		spans, err := x.p.geo.spans(s, r.meta, l, far)
		if err != nil {
			return err
		}
		for _, sp := range spans {
			x.bytes += int64(sp.bytes)
		}
		if c, ok := r.direct.prepare(spans); ok {
			c.rank = r
			x.copies = append(x.copies, c)
			continue
		}
		a := nixl.Descs{Mem: x.p.mem, List: make([]nixl.Desc, len(spans))}
		b := nixl.Descs{Mem: r.mem, List: make([]nixl.Desc, len(spans))}
		here, there := uint64(0), uint64(0)
		if a.Mem == nixl.VRAM {
			here = x.p.opts.Memory[0].Dev
		}
		if b.Mem == nixl.VRAM {
			there = uint64(r.meta.DeviceID)
		}
		for i, sp := range spans {
			a.List[i] = nixl.Desc{Addr: sp.local, Len: sp.bytes, Dev: here}
			b.List[i] = nixl.Desc{Addr: sp.remote, Len: sp.bytes, Dev: there}
		}
		t, err := r.remote.NewTransfer(nixl.Read, x.p.ucx, a, b, nixl.XferOptions{Notif: x.notif})
		if err != nil {
			x.p.engines.drop(x.e) // the next pull shakes hands again
			return fmt.Errorf("%w: rank %d of engine %s: %w", ErrTransfer, s.rank, x.e.id, err)
		}
		x.xfers = append(x.xfers, t)
	}
	return nil
}

// run posts everything, and waits for all of it or the end of ctx.
func (x *pull) run(ctx context.Context) error {
	start := time.Now()
	var errs []error
	if err := x.runDirect(ctx); err != nil {
		return err
	}
	x.elapsed = time.Since(start)
	for i, t := range x.xfers {
		done, err := t.Post()
		if err != nil {
			x.lost(t)
			return fmt.Errorf("%w: transfer %d to engine %s: %w", ErrTransfer, i, x.e.id, err)
		}
		_ = done
	}
	for i, t := range x.xfers {
		err := t.Wait(ctx)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: transfer %d from engine %s: %w", ErrTransfer, i, x.e.id, context.Cause(ctx))
		}
		x.lost(t)
		errs = append(errs, fmt.Errorf("%w: transfer %d from engine %s: %w", ErrTransfer, i, x.e.id, err))
	}
	x.elapsed = time.Since(start)
	return errors.Join(errs...)
}

// lost is called when the library failed a transfer: its connection is of no
// use any more, and a load of the same metadata would not make a new one.
func (x *pull) lost(t *nixl.Transfer) {
	x.p.engines.drop(x.e)
	_ = t.Remote().Close() // busy while others end
}

// result fills in what was done, and counts it.
func (x *pull) result(res *Result, blocks int) {
	res.Blocks, res.Bytes, res.Ranks, res.Transfer = blocks, x.bytes, len(x.e.sources), x.elapsed
	res.Direct = len(x.copies) > 0
	var list []Transfer
	for _, t := range x.xfers {
		m := Transfer{Xfer: x.elapsed, Bytes: x.bytes / int64(len(x.e.sources)), Descriptors: t.Descs()}
		if tm, err := t.Telemetry(); err == nil {
			m = Transfer{Xfer: tm.Xfer, Post: tm.Post, Bytes: int64(tm.Bytes), Descriptors: int(tm.Descs)}
		}
		list = append(list, m)
	}
	for _, c := range x.copies {
		list = append(list, Transfer{Xfer: c.took, Bytes: c.bytes, Descriptors: len(c.spans)})
	}
	for _, m := range list {
		res.Descriptors += m.Descriptors
	}
	x.p.stats.add(func(s *Stats) { s.Transfers = append(s.Transfers, list...) })
}

// end frees the transfers; what still runs holds Settled open.
func (x *pull) end(res *Result) {
	var open []*nixl.Transfer
	for _, t := range x.xfers {
		if err := t.Close(); err != nil {
			open = append(open, t)
		}
	}
	copying := x.copying
	select {
	case <-copying:
		copying = nil
	default:
	}
	if len(open) == 0 && copying == nil {
		return
	}
	c := make(chan struct{})
	res.Settled = c
	e := x.e
	x.p.engines.hold(e)  // what is copied from stays mapped
	x.p.work.Go(func() { // Pull still counts as work, so Close has not ended
		defer x.p.engines.release(e)
		if copying != nil {
			<-copying
		}
		for _, t := range open {
			select {
			case <-t.Settled():
			case <-x.p.agentGone:
				select {
				case <-t.Settled():
				default:
					return // never: the memory is lost
				}
			}
		}
		close(c)
	})
}
