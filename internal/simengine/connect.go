package simengine

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lmcache-go/lmcache-go/connector"
	"github.com/lmcache-go/lmcache-go/connector/multi"
	"github.com/lmcache-go/lmcache-go/connector/pd"
	"github.com/lmcache-go/lmcache-go/nixl"
)

// links are the connectors of an engine and what is asked of them by name.
type links struct {
	sched  multi.Scheduler // nil without a connector
	worker multi.Worker
	// composed says that several connectors stand behind sched.
	composed bool
	mp       *connector.Scheduler // nil without LMCache
	mpWorker *connector.Worker
	chunk    int // tokens that a load is rounded to; at least 1

	pd         *pd.Peer // nil without NIXL
	nixlMu     sync.Mutex
	nixlTotals nixlTotals // guarded by nixlMu
}

// connect builds the connectors that the transfer config names, in its order.
func (e *Engine) connect(ctx context.Context) error {
	e.chunk = 1
	t := e.opts.Connector
	if t == nil {
		return nil
	}
	for _, w := range t.Warnings() {
		e.opts.Logger.Warn("kv-transfer-config", "advice", w)
	}
	e.policy = t.FailurePolicy
	if e.opts.links != nil {
		e.sched, e.worker = e.opts.links(e)
		return nil
	}
	list := t.Children
	if e.composed = t.Connector == connector.MultiConnector; !e.composed {
		list = []*connector.TransferConfig{t}
	}
	var (
		scheds  []multi.Child[multi.Scheduler]
		workers []multi.Child[multi.Worker]
		errs    []error
	)
	for _, c := range list {
		s, w, err := e.child(ctx, c)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		scheds = append(scheds, multi.Child[multi.Scheduler]{Name: c.Connector, Conn: s})
		workers = append(workers, multi.Child[multi.Worker]{Name: c.Connector, Conn: w})
	}
	err := errors.Join(errs...)
	if len(scheds) == 0 {
		return err
	}
	if !e.composed {
		e.sched, e.worker = scheds[0].Conn, workers[0].Conn
		return err
	}
	ms, serr := multi.NewScheduler(scheds...)
	mw, werr := multi.NewWorker(workers...)
	e.sched, e.worker = ms, mw
	return errors.Join(err, serr, werr)
}

// child builds one connector. Whatever it returns beside an error is closed.
func (e *Engine) child(ctx context.Context, t *connector.TransferConfig) (multi.Scheduler, multi.Worker, error) {
	switch t.Connector {
	case connector.MPConnector:
		return e.lmcache(ctx, t)
	case connector.NixlConnector, nixlPull:
		return e.nixl(ctx, t)
	}
	return nil, nil, fmt.Errorf("%w: kv_connector %q is not simulated: use %s, %s or %s",
		errOptions, t.Connector, connector.MPConnector, connector.NixlConnector, connector.MultiConnector)
}

func (e *Engine) lmcache(ctx context.Context, t *connector.TransferConfig) (multi.Scheduler, multi.Worker, error) {
	cfg, err := t.MPWithEnv(e.opts.Getenv)
	if err != nil {
		return nil, nil, err
	}
	w, err := connector.NewWorker(ctx, connector.WorkerOptions{Model: e.opts.Model, Config: cfg, Logger: e.opts.Logger})
	if err != nil {
		return nil, nil, err
	}
	if err := w.Register(ctx, e.kv.caches(e.mem)); err != nil {
		return nil, nil, errors.Join(err, w.Close(ctx))
	}
	s, err := connector.NewScheduler(ctx, connector.SchedulerOptions{Model: e.opts.Model, Config: cfg, BlockTokens: []int{e.opts.BlockTokens}, Logger: e.opts.Logger})
	if err != nil {
		return nil, nil, errors.Join(err, w.Close(ctx))
	}
	e.mp, e.mpWorker, e.chunk = s, w, s.ChunkSize()
	return multi.MP(s), multi.MPWorker(w), nil
}

// disconnect closes the connectors and the memory. Memory that NIXL still
// touches is left to the end of the process.
func (e *Engine) disconnect() error {
	var err error
	if e.sched != nil {
		err = e.sched.Close()
	}
	if e.worker != nil {
		err = errors.Join(err, e.worker.Close(context.Background()))
	}
	if errors.Is(err, nixl.ErrBusy) {
		return err
	}
	return errors.Join(err, e.mem.Close())
}
